"""How far exported networks are from their Keras models, beside what the gate of `export` allows.

    python benchmarks/export_agreement.py

Networks of the export matrix: plain float ones (quantized after training, statistics as training
leaves them), compact ones of random weights, and compact ones that have been trained. Everything
here should pass; what is recorded is the margin. Writes export_agreement.json beside this file.
"""

import json
import pathlib
import time

import keras
import numpy as np
from absl import app, flags
from export_networks import (
    NETWORKS,
    random_compact,
    random_inputs,
    task,
    trained_compact,
    with_statistics,
)

from udc_tf.export import agreement, errors, int8
from udc_tf.files import replaced_atomically

_BITS = flags.DEFINE_list("bits", ["1", "4", "8"], "Of compact networks.")
_NETWORKS = flags.DEFINE_list("networks", list(NETWORKS), "Which of them.")
_TRAINED = flags.DEFINE_list("trained", ["ds_cnn", "cnn28", "resnet8"], "Also trained.")


def _plain(name: str) -> keras.Model:
    keras.utils.set_random_seed(0)
    return with_statistics(NETWORKS[name](), np.random.default_rng(0))


def cases():
    for name in _NETWORKS.value:
        yield f"{name}, plain", lambda name=name: _plain(name), random_inputs
        for bits in map(int, _BITS.value):
            made = lambda name=name, bits=bits: random_compact(name, 0, bits)  # noqa: E731
            yield f"{name}, {bits} bits, random weights", made, random_inputs
            if name in _TRAINED.value:
                made = lambda name=name, bits=bits: trained_compact(name, 0, bits)  # noqa: E731
                yield f"{name}, {bits} bits, trained", made, lambda *args: task(*args)[0]


def measure(model: keras.Model, data: np.ndarray) -> dict:
    started = time.perf_counter()
    exact = int8.to_int8(model, data)
    made = time.perf_counter()
    try:
        result = agreement.check(model, exact, [data])
    except errors.MismatchError as error:
        result = {"refused": str(error)}
    seconds = time.perf_counter()
    times = {"seconds": round(seconds - made, 2), "to_int8_seconds": round(made - started, 2)}
    return {**result, **times}


def main(_):
    path = pathlib.Path(__file__).with_suffix(".json")
    results = json.loads(path.read_text()) if path.exists() else {}
    for key, make, inputs in cases():
        if key in results:
            continue
        keras.utils.clear_session()
        model = make()
        results[key] = measure(model, inputs(model, 64, np.random.default_rng(100)))
        print(key, results[key], flush=True)
        with replaced_atomically(path) as partial:
            partial.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
