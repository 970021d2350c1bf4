"""Five networks x three random configurations x bits: is the exported file what it should be?

    python -m benchmarks.export_matrix
    python -m benchmarks.export_matrix --networks=resnet8 --results=FILE     # a sample, once more

Checks for each case that the .tflite holds the network's integers, that Vela leaves nothing to the
CPU, that TFLM runs it, and how often its outputs equal those of the fake-quant network.

The networks are trained for 80 steps on an easy task, as a deep network that has learned nothing is
a chaos. `own_within_1` tells how much of that is left: how often outputs of the fake-quant network
stay within one step of its own when one input in a hundred moves by one step.
"""

import functools
import itertools
import pathlib
import tempfile
from collections.abc import Mapping

import keras
import numpy as np
from absl import flags

from benchmarks import harness
from benchmarks.harness import Row, Rows
from benchmarks.networks import NETWORKS, task, trained_compact
from udc_tf.export import int8, tflm_check, vela

BITS = (1, 2, 4, 8)


def measure(name: str, seed: int, bits: int, samples: int) -> Row:
    keras.utils.clear_session()  # or every case would be slower than the one before
    rng = np.random.default_rng(100 + seed)
    model = trained_compact(name, seed, bits)
    exact = int8.to_int8(model, task(model, 64, rng)[0])
    unseen = task(model, samples, rng)[0]
    checks = int8.checked_codes(model, exact)
    reference = _reference(model, exact, unseen)
    difference = np.abs(
        tflm_check.run(exact.content, exact.quantize_inputs([unseen]))[0] - reference
    )
    step = float(exact.quantizations[exact.network.inputs[0]].scale)
    moved = unseen + step * (rng.random(unseen.shape) < 0.01)
    own = np.abs(_reference(model, exact, moved.astype("float32")) - reference)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        path.write_bytes(exact.content)
        compiled = vela.compile_with_vela(path, folder, allow_cpu_operators=True)
    return {
        "layers": len(checks),
        "channels_with_equal_codes": sum(c.equal for c in checks),
        "channels_written_as_zeros": sum(c.collapsed for c in checks),
        "channels_different": sum(c.different for c in checks),
        "cpu_operators": list(compiled.cpu_operators),
        "tflite_bytes": len(exact.content),
        "flash_bytes": compiled.flash_bytes,
        "values": int(difference.size),
        "equal": round(float(np.mean(difference == 0)), 5),
        "within_1": round(float(np.mean(difference <= 1)), 5),
        "largest": int(difference.max()),
        "own_within_1": round(float(np.mean(own <= 1)), 5),
        "spread_of_outputs": round(float(reference.std()), 1),
    }


def _reference(model: keras.Model, exact: int8.Int8Model, inputs: np.ndarray) -> np.ndarray:
    """int8 outputs of the fake-quant network."""
    output = exact.quantizations[exact.network.outputs[0]]
    return output.quantize(model.predict(inputs, verbose=0)).astype(int)


def report(rows: Mapping[str, Row]) -> str:
    found = rows.values()
    exactly = sum(not (r["channels_different"] or r["channels_written_as_zeros"]) for r in found)
    return (
        f"{len(rows)} cases. Every code equal: {exactly}. All operators on the NPU: "
        f"{sum(not r['cpu_operators'] for r in found)}. TFLM's outputs equal Keras': "
        f"{sum(r['equal'] == 1 for r in found)}; least share of equal values "
        f"{min(r['equal'] for r in found):.2%}, largest difference "
        f"{max(r['largest'] for r in found)}."
    )


def run(rows: Rows) -> str:
    given = flags.FLAGS
    seeds = [int(n) for n in given.configurations]
    for name, seed, bits in itertools.product(given.networks, seeds, BITS):
        key = f"{name}, configuration {seed}, {bits} bits"
        rows.once(key, functools.partial(measure, name, seed, bits, given.samples))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_integer("samples", 24, "Inputs compared, besides those of the calibration.")
    flags.DEFINE_list("networks", list(NETWORKS), "Which of them.")
    flags.DEFINE_list("configurations", ["0", "1", "2"], "Which of them.")
    harness.main(run, "export_matrix")
