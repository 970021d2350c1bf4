"""How much of its flash budget does a network use that comes from Python, as the README shows it?

    python -m benchmarks.flash_use

Four networks, each with one call of `fit_size_model`, a search, a finetuning and an export; beside
it the same without the fit. Short: two epochs of search, three of finetuning, on the embedded
digits (8x8) and 2,000 images of Fashion-MNIST (14x14).
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
from benchmarks.data import Arrays, fashion_mnist_14, scaled_digits
from benchmarks.harness import Row, Rows, table
from benchmarks.networks import DIGIT_NETWORKS, budget_between, resnet8_14

SPACE = "ethos_u55"
NETWORKS = {**DIGIT_NETWORKS, "resnet8, Fashion-MNIST": lambda: resnet8_14(1.0)}
SHARE = 0.2  # of the way from the smallest to the largest file of the space


def data(name: str) -> Arrays:
    return scaled_digits("train", 960) if name in DIGIT_NETWORKS else fashion_mnist_14(2000)[0]


def measure(name: str, fitted: bool) -> Row:
    keras.utils.set_random_seed(0)
    model = NETWORKS[name]()
    x, y = data(name)
    target = budget_between(model, SHARE)
    if fitted:
        target = udc_tf.export.fit_size_model(model, SPACE, target)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=name in DIGIT_NETWORKS)
    search = udc_tf.make_searchable(model, SPACE, target)
    search.compile(loss=loss)
    search.fit(x, y, batch_size=32, epochs=2, verbose=0)
    tiny = search.architecture().build()
    stages = udc_tf.Stages(epochs=(1, 1, 1))
    udc_tf.finetune(tiny, (x, y), stages=stages, loss=loss, batch_size=32, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        result = udc_tf.export.export(tiny, folder, target=target, calibration=x[:64])
    return {
        "budget": target.budget,
        "compiled": result.flash_bytes,
        "use": round(result.flash_bytes / target.budget, 4),
        "rounds_of_tightening": len(result.report["tightening"]),
    }


def report(rows: Mapping[str, Row]) -> str:
    head = ("network", "budget", "use", "rounds of tightening")
    lines = [
        (key, f"{row['budget']:,}", f"{row['use']:.1%}", row["rounds_of_tightening"])
        for key, row in rows.items()
    ]
    medians = [
        f"{kind}: median {np.median([row['use'] for row in found]):.1%} of {len(found)}"
        for kind in ("fitted", "not fitted")
        if (found := [row for key, row in rows.items() if key.endswith(f", {kind}")])
    ]
    return f"{table(head, lines)}\n{'; '.join(medians)}"


def run(rows: Rows) -> str:
    logging.set_verbosity(logging.ERROR)
    for kind in ("fitted", "not fitted"):
        for name in NETWORKS:
            rows.once(f"{name}, {kind}", functools.partial(measure, name, kind == "fitted"))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "flash_use")
