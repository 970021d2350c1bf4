"""Does every short search end inside its budget?

Three networks of the zoo x four budgets x two seeds on the embedded digits, three epochs each, far
too short to converge: the repair has to make up for it. For each: E / e* of the most likely
configuration before the repair, and of the architecture; the share of the budget in use. Where that
is little: whether any decision could take a larger option within the budget, or the network is as
whole as it can be.

    python -m benchmarks.search_budgets
"""

import functools
import itertools
import statistics
from collections.abc import Mapping

import keras
import numpy as np

import udc_tf
from benchmarks import harness
from benchmarks.data import scaled_digits
from benchmarks.harness import Row, Rows
from benchmarks.networks import DIGIT_NETWORKS, budget_between
from udc_tf.search.decisions import most_likely
from udc_tf.search.repair import Budget

SHARES = (0.05, 0.2, 0.5, 0.8)  # of the way from the smallest to the largest configuration
SEEDS = (0, 1)


def measure(name: str, share: float, seed: int) -> Row:
    keras.utils.set_random_seed(seed)
    model = DIGIT_NETWORKS[name]()
    target = budget_between(model, share)
    settings = udc_tf.SearchSettings(seed=seed)
    search = udc_tf.make_searchable(model, "ethos_u55", target, settings)
    search.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = scaled_digits("train", 960)
    history = search.fit(x, y, batch_size=32, epochs=3, verbose=0).history
    arch = search.architecture()
    budget = Budget(search.problem.bound)
    chosen = most_likely(search.state.log_probabilities()).numpy().argmax(axis=1)
    larger = np.arange(search.state.options) > chosen[:, None]  # options are in this order
    fits = search.state.valid.numpy() & (budget.after_moves(chosen) <= 1)
    return {
        "budget": target.budget,
        "larger options that fit": int((larger & fits).sum()),
        "argmax / budget before repair": round(history["argmax_ratio"][-1], 4),
        "architecture / budget": round(arch.flash_bytes / target.budget, 4),
    }


def report(rows: Mapping[str, Row]) -> str:
    before = [row["argmax / budget before repair"] for row in rows.values()]
    used = [row["architecture / budget"] for row in rows.values()]
    over = sum(u > 1 for u in used)
    whole = sum(
        row["argmax / budget before repair"] < 0.98 and row.get("larger options that fit") == 0
        for row in rows.values()
    )
    return (
        f"{len(used)} searches: before the repair {sum(b <= 1.02 for b in before)} at most 2% over "
        f"budget, {sum(abs(b - 1) <= 0.02 for b in before)} within 2% of it and {whole} "
        f"below, where no larger option of any decision fits; after it {over} over, "
        f"median use {statistics.median(used):.1%}, least {min(used):.1%}"
    )


def run(rows: Rows) -> str:
    for name, share, seed in itertools.product(DIGIT_NETWORKS, SHARES, SEEDS):
        key = f"{name}/share {share}/seed {seed}"
        rows.once(key, functools.partial(measure, name, share, seed))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "search_budgets")
