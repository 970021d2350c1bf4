"""Do compiled files keep flash, working memory and cycles at once, on every Ethos-U?

    python -m benchmarks.device_targets

ResNet8 and DS-CNN for the embedded digits at 16x16, each for all accelerators: a flash budget and,
in turns, one of SRAM, of cycles, or of both. What is predicted is fitted to 8 networks, the search
runs for 60 steps, then the network that it found is exported with its budgets, without finetuning.
Budgets lie between what the smallest and the largest network should need, by a fit to 4 others; one
that the fit to 8 then calls unreachable is raised to a tenth above the least.
"""

import functools
import tempfile
from collections.abc import Mapping

import keras
import numpy as np
from absl import logging

import udc_tf
import udc_tf.export
from benchmarks import harness
from benchmarks.data import scaled_digits
from benchmarks.harness import Row, Rows, table
from udc_tf import models
from udc_tf.cost.accelerators import ACCELERATORS
from udc_tf.cost.targets import Target, target_from_dict
from udc_tf.search.make import problem_of, searchable
from udc_tf.search.reachable import reachable

SPACE = "ethos_u55"
NETWORKS = {"resnet8": models.resnet8, "ds_cnn": models.ds_cnn}
KINDS = (("sram",), ("cycles",), ("sram", "cycles"))
SHARES = {"flash": 0.4, "sram": 0.4, "cycles": 0.4}  # of the way from the smallest to the largest
CASES = [
    (name, accelerator, KINDS[(2 * n + a) % 3], a % 3)
    for a, accelerator in enumerate(ACCELERATORS)
    for n, name in enumerate(NETWORKS)
]


def budgets_between(
    model: keras.Model, accelerator: str, kinds: tuple[str, ...]
) -> dict[str, Target]:
    """Budgets between the extremes of what the network can need."""
    large = {
        "flash": udc_tf.Flash("64MiB", accelerator),
        "sram": udc_tf.Sram("64MiB", accelerator),
        "cycles": udc_tf.Cycles(1e12, accelerator),
    }
    wanted = {kind: large[kind] for kind in ("flash", *kinds)}
    fitted = udc_tf.export.fit_size_model(model, SPACE, list(wanted.values()), configurations=4)
    found = searchable(model, SPACE, fitted).reachable()
    made: dict[str, Target] = {}
    for (kind, target), reach in zip(wanted.items(), found, strict=True):
        budget = reach.smallest + SHARES[kind] * (reach.largest - reach.smallest)
        made[kind] = type(target)(round(budget), accelerator)
    return made


def raised(model: keras.Model, targets: list[Target], number: int) -> Target:
    """A target, with a tenth more than the least if the fit says that it is below that."""
    problem = problem_of(model, udc_tf.SearchSpace.preset(SPACE), tuple(targets))
    reach = reachable(targets, problem.bound, problem.plan)[number]
    target = targets[number]
    budget = target.budget if target.budget >= reach.smallest else round(1.1 * reach.smallest)
    return target_from_dict({**target.to_dict(), "budget": budget})


def measure(name: str, accelerator: str, kinds: tuple[str, ...], seed: int) -> Row:
    keras.utils.set_random_seed(seed)
    model = NETWORKS[name]((16, 16, 1), 10)
    budgets = budgets_between(model, accelerator, kinds)
    targets = list(budgets.values())
    targets = udc_tf.export.fit_size_model(model, SPACE, targets, configurations=8)
    targets = [raised(model, targets, number) for number in range(len(targets))]
    settings = udc_tf.SearchSettings(seed=seed, samples=2)
    search = udc_tf.make_searchable(model, SPACE, targets, settings)
    search.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = scaled_digits("train", 960)
    x = x.repeat(2, axis=1).repeat(2, axis=2)
    search.fit(x, y, batch_size=32, epochs=2, verbose=0)
    arch = search.architecture(statistics=x[:256])
    with tempfile.TemporaryDirectory() as folder:
        result = udc_tf.export.export(arch.build(), folder, target=targets, calibration=x[:64])
    lines = result.manifest["budgets"]
    return {
        "compiled": {kind: line["need"] for kind, line in zip(budgets, lines, strict=True)},
        "budget": {kind: line["have"] for kind, line in zip(budgets, lines, strict=True)},
        "use": round(max(line["need"] / line["have"] for line in lines), 4),
        "rounds_of_tightening": len(result.report["tightening"]),
        "executed": result.manifest["executed"]["compiled"]["on"],
    }


def report(rows: Mapping[str, Row]) -> str:
    def cells(row: Row) -> list[str]:
        needs = [(k, row["compiled"][k], have) for k, have in row["budget"].items()]
        return [", ".join(f"{k} {need / have:.1%}" for k, need, have in needs)]

    head = ("case", "of each budget", "compiled stream executed on")
    lines = [(key, *cells(row), row["executed"] or "nothing here") for key, row in rows.items()]
    use = np.array([row["use"] for row in rows.values()])
    return (
        f"{table(head, lines)}\n{len(use)} cases, {int((use > 1).sum())} over a budget; use of the "
        f"one that binds: median {np.median(use):.1%}, least {use.min():.1%}."
    )


def run(rows: Rows) -> str:
    logging.set_verbosity(logging.ERROR)
    for name, accelerator, kinds, seed in CASES:
        key = f"{name}, {accelerator}, flash and {' and '.join(kinds)}, seed {seed}"
        rows.once(key, functools.partial(measure, name, accelerator, kinds, seed))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "device_targets")
