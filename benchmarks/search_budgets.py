"""Does every short search end inside its budget?

Three networks of the zoo x four budgets x two seeds on the embedded digits, three epochs each, far
too short to converge: the repair has to make up for it. For each: E / e* of the most likely
configuration before the repair, and of the architecture; the share of the budget in use.

    python -m benchmarks.search_budgets                # resumes; writes search_budgets.json
"""

import itertools
import json
import pathlib

import keras
import numpy as np

import udc_tf
from udc_tf.files import replaced_atomically
from udc_tf.models import ds_cnn, resnet8, small_cnn
from udc_tf.models.data.digits import digits
from udc_tf.search.make import reachable_range

RESULTS = pathlib.Path(__file__).with_suffix(".json")
NETWORKS = {
    "small_cnn": lambda: small_cnn((8, 8, 1), 10),
    "resnet8": lambda: resnet8((8, 8, 1), 10),
    "ds_cnn": lambda: ds_cnn((8, 8, 1), 10),
}
SHARES = (0.05, 0.2, 0.5, 0.8)  # of the way from the smallest to the largest configuration
SEEDS = (0, 1)


def run(make, share: float, seed: int, x, y) -> dict[str, float]:
    keras.utils.set_random_seed(seed)
    model = make()
    wide = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("64MiB"))
    low, high = reachable_range(wide.problem.bound[0], wide.problem.plan)
    target = udc_tf.Flash(low + share * (high - low))
    settings = udc_tf.SearchSettings(seed=seed)
    search = udc_tf.make_searchable(model, "ethos_u55", target, settings)
    search.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = search.fit(x, y, batch_size=32, epochs=3, verbose=0).history
    arch = search.architecture()
    return {
        "budget": target.budget,
        "argmax / budget before repair": round(history["argmax_ratio"][-1], 4),
        "architecture / budget": round(arch.flash_bytes / target.budget, 4),
    }


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    train = digits().train
    x, y = np.asarray(train.x, "float32")[:960], np.asarray(train.y)[:960]
    x = x / max(1.0, x.max())
    for name, share, seed in itertools.product(NETWORKS, SHARES, SEEDS):
        key = f"{name}/share {share}/seed {seed}"
        if key not in results:
            results[key] = run(NETWORKS[name], share, seed, x, y)
            print(key, results[key], flush=True)
            with replaced_atomically(RESULTS) as partial:
                partial.write_text(json.dumps(results, indent=1) + "\n")
    used = [r["architecture / budget"] for r in results.values()]
    print(
        f"{len(used)} searches, {sum(u > 1 for u in used)} over budget, least use {min(used):.1%}"
    )


if __name__ == "__main__":
    main()
