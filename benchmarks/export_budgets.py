"""Does every compiled file fit its budget, and how much of the budget does it use?

    python benchmarks/export_budgets.py

Twenty cases of network, budget and seed on the embedded digits, each the whole way as `udc` goes
it, but short: the size model is calibrated on 8 networks, the search runs for 60 steps, finetuning
for 45, then the network is exported with its budget. Resumes case by case; calibrations are kept in
--workdir.
"""

import json
import pathlib
import tempfile

import keras
import numpy as np
from absl import app, flags, logging

import udc_tf
import udc_tf.export
from udc_tf import models
from udc_tf.files import replaced_atomically
from udc_tf.models.data.digits import digits
from udc_tf.search.make import reachable_range

_WORKDIR = flags.DEFINE_string(
    "workdir",
    str(pathlib.Path(tempfile.gettempdir(), "udc_export_budgets")),
    "Where calibrations and artefacts are kept.",
)
NETWORKS = {
    "small_cnn": lambda: models.small_cnn((8, 8, 1), 10),
    "resnet8": lambda: models.resnet8((8, 8, 1), 10),
    "ds_cnn": lambda: models.ds_cnn((8, 8, 1), 10),
}
SHARES = (0.1, 0.3)  # of the way from the smallest to the largest file of the space
CASES = [
    (name, share, seed)
    for name, seeds in (("small_cnn", 4), ("resnet8", 3), ("ds_cnn", 3))
    for share in SHARES
    for seed in range(seeds)
]


def calibrated(name: str, share: float) -> udc_tf.Flash:
    """A budget between the network's extremes, with a size model fitted to it."""
    keras.utils.set_random_seed(0)
    model = NETWORKS[name]()
    wide = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("64MiB"))
    low, high = reachable_range(wide.problem.bound[0], wide.problem.plan)
    target = udc_tf.Flash(low + share * (high - low))
    path = pathlib.Path(_WORKDIR.value, f"{name}_{share}.json")
    return udc_tf.export.calibrate(model, "ethos_u55", target, path=path, configurations=8)


def case(name: str, share: float, seed: int, x, y) -> dict:
    target = calibrated(name, share)
    keras.utils.set_random_seed(seed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    search = udc_tf.make_searchable(
        NETWORKS[name](), "ethos_u55", target, udc_tf.SearchSettings(seed=seed)
    )
    search.compile(loss=loss)
    search.fit(x, y, batch_size=32, epochs=2, verbose=0)
    arch = search.architecture()
    tiny = arch.build()
    stages = udc_tf.Stages(epochs=(1, 1, 1))
    udc_tf.finetune(tiny, (x, y), stages=stages, loss=loss, batch_size=64, seed=seed, verbose=0)
    folder = pathlib.Path(_WORKDIR.value, f"{name}_{share}_{seed}")
    result = udc_tf.export.export(tiny, folder, target=target, calibration=x[:64])
    rounds = result.report["tightening"]
    first = rounds[0]["flash_bytes_before"] if rounds else result.flash_bytes
    return {
        "budget": target.budget,
        "predicted": arch.flash_bytes,
        "first_compiled": first,
        "rounds_of_tightening": len(rounds),
        "compiled": result.vela_path.stat().st_size,
        "use": round(result.flash_bytes / target.budget, 4),
    }


def main(_):
    logging.set_verbosity(logging.ERROR)
    pathlib.Path(_WORKDIR.value).mkdir(parents=True, exist_ok=True)
    path = pathlib.Path(__file__).with_suffix(".json")
    results = json.loads(path.read_text()) if path.exists() else {}
    train = digits().train
    x, y = np.asarray(train.x, "float32")[:960], np.asarray(train.y)[:960]
    x = x / max(1.0, x.max())
    for name, share, seed in CASES:
        key = f"{name}, share {share}, seed {seed}"
        if key not in results:
            results[key] = case(name, share, seed, x, y)
            print(key, results[key], flush=True)
            with replaced_atomically(path) as partial:
                partial.write_text(json.dumps(results, indent=1) + "\n")
    rows = list(results.values())
    use = np.array([r["use"] for r in rows])
    missed = np.array([r["predicted"] / r["first_compiled"] - 1 for r in rows])
    print(
        f"{len(rows)} cases, {sum(r['compiled'] > r['budget'] for r in rows)} over budget; use of "
        f"the budget: median {np.median(use):.1%}, least {use.min():.1%}. Predicted size of the "
        f"finetuned network: {np.abs(missed).mean():.1%} off, worst {np.abs(missed).max():.1%}."
    )


if __name__ == "__main__":
    app.run(main)
