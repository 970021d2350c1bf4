"""Does every compiled file fit its budget, and how much of the budget does it use?

    python -m benchmarks.export_budgets

Twenty cases of network, budget and seed on the embedded digits, each the whole way as `udc` goes
it, but short: the size model is fitted to 8 networks, the search runs for 60 steps, finetuning
for 45, then the network is exported with its budget. Fits are kept in --workdir.
"""

import functools
import pathlib
import tempfile
from collections.abc import Mapping

import keras
import numpy as np
from absl import flags, logging

import udc_tf
import udc_tf.export
from benchmarks import harness
from benchmarks.data import scaled_digits
from benchmarks.harness import Row, Rows
from benchmarks.networks import DIGIT_NETWORKS, budget_between

SHARES = (0.1, 0.3)  # of the way from the smallest to the largest file of the space
CASES = [
    (name, share, seed)
    for name, seeds in (("small_cnn", 4), ("resnet8", 3), ("ds_cnn", 3))
    for share in SHARES
    for seed in range(seeds)
]


def fitted_target(name: str, share: float, workdir: pathlib.Path) -> udc_tf.Flash:
    """A budget between the network's extremes, with a size model fitted to it."""
    keras.utils.set_random_seed(0)
    model = DIGIT_NETWORKS[name]()
    path = workdir / f"{name}_{share}.json"
    target = budget_between(model, share)
    return udc_tf.export.fit_size_model(model, "ethos_u55", target, path=path, configurations=8)


def measure(name: str, share: float, seed: int, workdir: pathlib.Path) -> Row:
    target = fitted_target(name, share, workdir)
    x, y = scaled_digits("train", 960)
    keras.utils.set_random_seed(seed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    search = udc_tf.make_searchable(
        DIGIT_NETWORKS[name](), "ethos_u55", target, udc_tf.SearchSettings(seed=seed)
    )
    search.compile(loss=loss)
    search.fit(x, y, batch_size=32, epochs=2, verbose=0)
    arch = search.architecture()
    tiny = arch.build()
    stages = udc_tf.Stages(epochs=(1, 1, 1))
    udc_tf.finetune(tiny, (x, y), stages=stages, loss=loss, batch_size=64, seed=seed, verbose=0)
    folder = workdir / f"{name}_{share}_{seed}"
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


def report(rows: Mapping[str, Row]) -> str:
    found = rows.values()
    use = np.array([r["use"] for r in found])
    missed = np.abs([r["predicted"] / r["first_compiled"] - 1 for r in found])
    over = sum(r["compiled"] > r["budget"] for r in found)
    return (
        f"{len(rows)} cases, {over} over budget; use of the budget: median {np.median(use):.1%}, "
        f"least {use.min():.1%}. Predicted size of the finetuned network: {missed.mean():.1%} off, "
        f"worst {missed.max():.1%}."
    )


def run(rows: Rows) -> str:
    logging.set_verbosity(logging.ERROR)
    workdir = pathlib.Path(flags.FLAGS.workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    for name, share, seed in CASES:
        key = f"{name}, share {share}, seed {seed}"
        rows.once(key, functools.partial(measure, name, share, seed, workdir))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_string(
        "workdir",
        str(pathlib.Path(tempfile.gettempdir(), "udc_export_budgets")),
        "Where fits and artefacts are kept.",
    )
    harness.main(run, "export_budgets")
