"""What a step of a recurrent layer takes: bytes of flash, predicted and compiled, and cycles.

    python -m benchmarks.recurrent_steps

Layers of 16 units with 4-bit weights of which half are not zero, 10 features, 4, 8 and 16 steps,
not trained; the outputs of the executor are compared with those of TFLM. The size model is the
default one.
"""

import pathlib
import tempfile
from collections.abc import Mapping

import keras
import numpy as np
from keras import layers as kl

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, table

KINDS = {"LSTM": kl.LSTM, "GRU": kl.GRU, "SimpleRNN": kl.SimpleRNN}
STEPS = (4, 8, 16)
_BITS, _NONZEROS = 4, 0.5
_ROOMY = udc_tf.Flash("1MiB")


def measure(kind: str, steps: int) -> Row:
    keras.utils.set_random_seed(0)
    x = keras.Input((steps, 10))
    model = keras.Model(x, kl.Dense(4)(KINDS[kind](16)(x)))
    space = udc_tf.SearchSpace(widths=(1.0,), bits=(_BITS,), sparsities=(_NONZEROS, 1.0))
    (reach,) = udc_tf.make_searchable(model, space, _ROOMY).reachable()
    data = np.random.default_rng(0).normal(size=(64, steps, 10)).astype("float32")
    tiny = udc_tf.compact(model, bits=_BITS, nonzeros=_NONZEROS)
    with tempfile.TemporaryDirectory() as folder:
        made = udc_tf.export.export(tiny, folder, target=_ROOMY, calibration=data)
        codes = np.random.default_rng(1).integers(-128, 128, (8, steps, 10)).astype(np.int8)
        npu = udc_tf.export.run(pathlib.Path(made.vela_path), codes, on="npu")
        golden = udc_tf.export.run(pathlib.Path(made.tflite_path), codes, on="tflm")
        return {
            "flash": made.flash_bytes,
            "predicted": round(reach.smallest),
            "cycles": npu.cycles,
            "equal": bool((npu.outputs[0] == golden.outputs[0]).all()),
        }


def report(rows: Mapping[str, Row]) -> str:
    cells = [
        (name, row["flash"], row["predicted"], row["cycles"], row["equal"])
        for name, row in rows.items()
    ]
    return table(("layer, steps", "flash", "predicted", "cycles", "npu = TFLM"), cells)


def run(rows: Rows) -> str:
    for kind in KINDS:
        for steps in STEPS:
            rows.once(f"{kind}, {steps}", lambda kind=kind, steps=steps: measure(kind, steps))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "recurrent_steps")
