"""How far exported networks are from their Keras models, beside what the gate of `export` allows.

    python -m benchmarks.export_agreement

Networks of the export matrix: plain float ones (quantized after training, statistics as training
leaves them), compact ones of random weights, and compact ones that have been trained. Everything
here should pass; what is recorded is the margin.
"""

import functools
import time
from collections.abc import Mapping

import keras
import numpy as np
from absl import flags

from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from benchmarks.networks import (
    NETWORKS,
    random_compact,
    random_inputs,
    task,
    trained_compact,
    with_statistics,
)
from udc_tf.export import agreement, errors, int8


def _plain(name: str) -> keras.Model:
    keras.utils.set_random_seed(0)
    return with_statistics(NETWORKS[name](), np.random.default_rng(0))


def cases():
    for name in flags.FLAGS.networks:
        yield f"{name}, plain", lambda name=name: _plain(name), random_inputs
        for bits in map(int, flags.FLAGS.bits):
            made = lambda name=name, bits=bits: random_compact(name, 0, bits)  # noqa: E731
            yield f"{name}, {bits} bits, random weights", made, random_inputs
            if name in flags.FLAGS.trained:
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


def measured(make, inputs) -> Row:
    keras.utils.clear_session()
    model = make()
    return measure(model, inputs(model, 64, np.random.default_rng(100)))


def report(rows: Mapping[str, Row]) -> str:
    refused = [name for name, row in rows.items() if "refused" in row]
    return table(("networks", "refused by the gate"), [(len(rows), ", ".join(refused) or 0)])


def run(rows: Rows) -> str:
    for key, make, inputs in cases():
        rows.once(key, functools.partial(measured, make, inputs))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_list("bits", ["1", "4", "8"], "Of compact networks.")
    flags.DEFINE_list("networks", list(NETWORKS), "Which of them.")
    flags.DEFINE_list("trained", ["ds_cnn", "cnn28", "resnet8"], "Also trained.")
    harness.main(run, "export_agreement")
