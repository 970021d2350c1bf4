"""Five networks x three random configurations x bits: is the exported file what it should be?

    python benchmarks/export_matrix.py [--untrained]

Checks for each case that the .tflite holds the network's integers, that Vela leaves nothing to the
CPU, that TFLM runs it, and how often its outputs are within one step of the fake-quant network's.

The networks are trained for 80 steps on an easy task. Weights that have learned nothing
(--untrained) ask for more than export can give: a deep network of such is a chaos. `own_within_1`
says what to expect: how often outputs of the fake-quant network stay within one step of its own
when one input in a hundred moves by one step. Resumes: cases in the file of results are not run
again.
"""

import json
import pathlib
import tempfile

import keras
import numpy as np
from absl import app, flags
from export_networks import NETWORKS, random_compact, random_inputs, task, trained_compact

from udc_tf.export import int8, tflm_check, vela
from udc_tf.files import replaced_atomically

_UNTRAINED = flags.DEFINE_bool("untrained", False, "Random weights instead of trained ones.")
_SAMPLES = flags.DEFINE_integer("samples", 24, "Inputs compared, besides those of the calibration.")
_NETWORKS = flags.DEFINE_list("networks", list(NETWORKS), "Which of them.")
_CONFIGURATIONS = flags.DEFINE_list("configurations", ["0", "1", "2"], "Which of them.")
BITS = (1, 2, 4, 8)


def case(name: str, seed: int, bits: int) -> dict:
    rng = np.random.default_rng(100 + seed)
    if _UNTRAINED.value:
        model, inputs = random_compact(name, seed, bits), random_inputs
    else:
        model, inputs = trained_compact(name, seed, bits), lambda *args: task(*args)[0]
    exact = int8.to_int8(model, inputs(model, 64, rng))
    unseen = [inputs(model, _SAMPLES.value, rng)]
    checks = int8.checked_codes(model, exact)
    reference = _reference(model, exact, unseen[0])
    difference = np.abs(tflm_check.run(exact.content, exact.quantize_inputs(unseen))[0] - reference)
    step = float(exact.quantizations[exact.network.inputs[0]].scale)
    moved = unseen[0] + step * (rng.random(unseen[0].shape) < 0.01)
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
    """int8 outputs of the fake-quant network; by its simulation where Keras has no ranges yet."""
    if _UNTRAINED.value:
        return exact.reference([inputs])[0].astype(int)
    output = exact.quantizations[exact.network.outputs[0]]
    return output.quantize(model.predict(inputs, verbose=0)).astype(int)


def main(_):
    suffix = "_untrained.json" if _UNTRAINED.value else ".json"
    path = pathlib.Path(__file__).with_name(pathlib.Path(__file__).stem + suffix)
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in _NETWORKS.value:
        for seed in map(int, _CONFIGURATIONS.value):
            for bits in BITS:
                key = f"{name}, configuration {seed}, {bits} bits"
                if key in results:
                    continue
                keras.utils.clear_session()  # or every case would be slower than the one before
                results[key] = case(name, seed, bits)
                print(key, results[key], flush=True)
                with replaced_atomically(path) as partial:
                    partial.write_text(json.dumps(results, indent=1) + "\n")
    rows = results.values()
    values = sum(r["values"] for r in rows)
    within = sum(r["within_1"] * r["values"] for r in rows) / values
    good = sum(r["within_1"] >= 0.99 for r in rows)
    exactly = sum(not (r["channels_different"] or r["channels_written_as_zeros"]) for r in rows)
    print(
        f"{len(results)} cases. Every code equal: {exactly} cases; channels written as zeros: "
        f"{sum(r['channels_written_as_zeros'] for r in rows)}; different: "
        f"{sum(r['channels_different'] for r in rows)}."
    )
    print(f"All operators on the NPU: {sum(not r['cpu_operators'] for r in rows)} cases.")
    print(f"TFLM within 1 step: {within:.2%} of {values} values; at least 99% in {good} cases.")


if __name__ == "__main__":
    app.run(main)
