"""One integer tensor per layer, or two: f(x,Q) + beta*f(x,sign). Flash and accuracy of both.

    python -m benchmarks.two_tensors

A small network, 4 bits and 30% non-zeros in the shifted number format, finetuned on the embedded
digits with two seeds; then exported in both ways. Accuracy on the test part, in TFLM's arithmetic.
"""

import functools
import tempfile
from collections.abc import Mapping

import keras
import numpy as np
from absl import flags, logging

import udc_tf
import udc_tf.export
from benchmarks import harness
from benchmarks.data import scaled_digits
from benchmarks.harness import Row, Rows, table
from benchmarks.networks import uniform_compact
from udc_tf import models
from udc_tf.export import int8, tflm_check

SEEDS = (0, 1)


def finetuned(seed: int, train, epochs: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    tiny = uniform_compact(models.small_cnn((8, 8, 1), 10), 4, 0.3, dense_ends=False)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    stages = udc_tf.Stages(epochs=epochs)
    udc_tf.finetune(tiny, train, stages=stages, loss=loss, batch_size=32, seed=seed, verbose=0)
    return tiny


def exported(tiny: keras.Model, deployment: str, calibration, test) -> Row:
    x, y = test
    with tempfile.TemporaryDirectory() as folder:
        result = udc_tf.export.export(
            tiny, folder, calibration=calibration, deployment=deployment, golden_samples=1
        )
        exact = int8.to_int8(tiny, calibration, deployment)
        (outputs,) = tflm_check.run(exact.content, exact.quantize_inputs([x]))
        return {
            "flash_bytes": result.flash_bytes,
            "sram_bytes": result.sram_bytes,
            "estimated_cycles": result.manifest["estimated_cycles"],
            "accuracy": round(float(np.mean(outputs.argmax(-1) == y)), 4),
        }


def measure(seed: int, epochs: int) -> Row:
    train, test = scaled_digits("train"), scaled_digits("test")
    tiny = finetuned(seed, train, epochs)
    predicted = tiny.predict(test[0], verbose=0).argmax(-1)
    row = {"keras": {"accuracy": round(float(np.mean(predicted == test[1])), 4)}}
    for deployment in int8.DEPLOYMENTS:
        row[deployment] = exported(tiny, deployment, train[0][:128], test)
    return row


def report(rows: Mapping[str, Row]) -> str:
    kinds = ("flash_bytes", "sram_bytes", "estimated_cycles", "accuracy")
    lines = [
        (seed, deployment, *(row[deployment][kind] for kind in kinds))
        for seed, row in rows.items()
        for deployment in int8.DEPLOYMENTS
    ]
    return table(("", "deployment", *kinds), lines)


def run(rows: Rows) -> str:
    logging.set_verbosity(logging.ERROR)
    for seed in SEEDS:
        rows.once(f"seed {seed}", functools.partial(measure, seed, flags.FLAGS.epochs))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_integer("epochs", 12, "Of finetuning.")
    harness.main(run, "two_tensors")
