"""Finetuning from the search's own weights against weights drawn anew; and what export keeps of it.

A search on ResNet8 (Fashion-MNIST pooled to 14x14, 8,000 training images, 16 KiB), then the same
architecture finetuned twice, equally long. Of the better start's network, the accuracy that
`evaluate` gives and that of the exported int8 file in TFLite Micro, both on the 10,000 test images.

    python -m benchmarks.inherited_weights
"""

import functools
import tempfile
from collections.abc import Mapping

import keras
import numpy as np

import udc_tf
from benchmarks import harness
from benchmarks.data import fashion_mnist_14
from benchmarks.harness import Row, Rows, Stopwatch, table
from udc_tf.models import resnet8

SEEDS = (0, 1, 2)
SEARCH_EPOCHS, FINETUNE_EPOCHS, BATCH, IMAGES = 8, 6, 64, 8_000
TARGET = udc_tf.Flash("16KiB")


def searched(seed: int, train) -> udc_tf.Architecture:
    keras.utils.set_random_seed(seed)
    settings = udc_tf.SearchSettings(seed=seed)
    search = udc_tf.make_searchable(resnet8((14, 14, 1)), "ethos_u55", TARGET, settings)
    search.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    search.fit(*train, batch_size=BATCH, epochs=SEARCH_EPOCHS, verbose=0)
    return search.architecture()


def finetuned(arch, start: str, seed: int, train, test):
    keras.utils.set_random_seed(seed)
    tiny = arch.build()
    stages = udc_tf.Stages(epochs=FINETUNE_EPOCHS, start=start)
    udc_tf.finetune(tiny, train, stages=stages, batch_size=BATCH, seed=seed, verbose=0)
    return tiny, float(tiny.evaluate(*test, batch_size=500, verbose=0)[1])


def deployed_accuracy(tiny, train, test) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        result = udc_tf.export.export(tiny, folder, target=TARGET, calibration=train[0][:256])
        (tensor,) = result.manifest["inputs"]
        scale, zero = tensor["scale"], tensor["zero_point"]
        codes = np.clip(np.round(test[0] / scale) + zero, -128, 127).astype(np.int8)
        found = udc_tf.export.run(result.tflite_path, codes, on="tflm").outputs[0]
    right = found.reshape(len(codes), -1).argmax(axis=1) == test[1]
    return {"flash_bytes": result.flash_bytes, "accuracy in TFLM": float(right.mean())}


def measure(seed: int) -> Row:
    watch, (train, test) = Stopwatch(), fashion_mnist_14(IMAGES)
    arch = searched(seed, train)
    row: Row = {"predicted_bytes": arch.flash_bytes}
    networks = {}
    for start in ("inherited", "fresh"):
        networks[start], row[start] = finetuned(arch, start, seed, train, test)
    better = max(networks, key=lambda start: row[start])
    deployed = deployed_accuracy(networks[better], train, test)
    return {**row, "exported": better, **deployed, "seconds": round(watch.read().wall)}


def report(rows: Mapping[str, Row]) -> str:
    lines = [
        (
            *(seed, f"{row['inherited']:.4f}", f"{row['fresh']:.4f}"),
            f"{100 * abs(row['accuracy in TFLM'] - row[row['exported']]):.2f}",
        )
        for seed, row in rows.items()
    ]
    return table(("seed", "inherited", "fresh", "points between TFLM and `evaluate`"), lines)


def run(rows: Rows) -> str:
    for seed in SEEDS:
        rows.once(str(seed), functools.partial(measure, seed))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "inherited_weights")
