"""What a search step costs beside a plain training step of the same network and batch.

    python -m benchmarks.step_overhead

Processor and wall time, interleaved in one process: a round of plain steps, one of search steps
with the full `ethos_u55` space, one with two options per decision, and again. Ratios are medians
over rounds. Times alone mean little on a shared machine; the ratios do.
"""

import functools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, interleaved, table
from udc_tf.models import mobilenet_v2, resnet8

NETWORKS = {
    "resnet8, 32x32, batch 128": (lambda: resnet8((32, 32, 3)), 32, 128, "24KiB"),
    "mobilenet_v2 0.35, 32x32, batch 64": (
        lambda: mobilenet_v2((32, 32, 3), classes=10, alpha=0.35), 32, 64, "256KiB",
    ),
    "mobilenet_v2 0.35, 96x96, batch 64": (
        lambda: mobilenet_v2((96, 96, 3), classes=10, alpha=0.35), 96, 64, "256KiB",
    ),
}  # fmt: skip
TWO_OPTIONS = udc_tf.SearchSpace(widths=(0.5, 1.0), bits=(4, 8), sparsities=(0.1, 1.0))
ROUNDS, STEPS = 6, 16  # a round holds one refresh of the masks
SEARCH, SPACE = "search / plain (CPU, wall)", "full space / two options (CPU, wall)"


def measure(name: str) -> Row:
    make, image, batch, budget = NETWORKS[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, image, image, 3)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, rng.integers(0, 10, batch))).repeat(STEPS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    models = {"plain": make()}
    models["plain"].compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss, jit_compile=False)
    for kind, space in (("full", "ethos_u55"), ("two", TWO_OPTIONS)):
        models[kind] = udc_tf.make_searchable(make(), space, udc_tf.Flash(budget))
        # Slow: what is measured are steps on noise, not training.
        sgd, adam = keras.optimizers.SGD(1e-3, momentum=0.9), keras.optimizers.Adam(1e-3)
        models[kind].compile(sgd, loss, decision_optimizer=adam)
    rounds = {
        kind: functools.partial(model.fit, data, verbose=0, shuffle=False)
        for kind, model in models.items()
    }
    times = interleaved(rounds, ROUNDS)

    def ratio(a: str, b: str) -> list[float]:
        return [round(float(v), 3) for v in np.median(times[a] / times[b], axis=0)]

    return {
        "plain step, CPU seconds": round(float(np.median(times["plain"][:, 0])) / STEPS, 4),
        SEARCH: ratio("full", "plain"),
        SPACE: ratio("full", "two"),
    }


def report(rows: Mapping[str, Row]) -> str:
    head = ("network", "search / plain: processor", "wall", "full space / two options", "wall")
    lines = [
        (name, *(f"{ratio:.2f}" for ratio in (*row[SEARCH], *row[SPACE])))
        for name, row in rows.items()
    ]
    return table(head, lines)


def run(rows: Rows) -> str:
    for name in NETWORKS:
        rows.once(name, functools.partial(measure, name))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "step_overhead")
