"""What a search step costs beside a plain training step of the same network and batch.

    python -m benchmarks.step_overhead

Processor and wall time, interleaved in one process: a round of plain steps, one of search steps
with the full `ethos_u55` space, one with two options per decision, and again. Ratios are medians
over rounds. Times alone mean little on a shared machine; the ratios do. What happens once in a call
of `fit`, before its second step, is no part of a step, nor is what a search does between steps a
few times in a run, guessing and settling.

The first step, which traces, has rows of its own: MobileNetV2 0.35 at 96x96, each time in a fresh
process, plain training, search, all three stages of finetuning and export in turns. What Vela is
asked before a training is left out of them (it is remembered), and so is building the model.
"""

import concurrent.futures
import functools
import multiprocessing
import tempfile
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, Seconds, Stopwatch, table
from udc_tf.models import mobilenet_v2, resnet8
from udc_tf.search.problem import require_targets

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
FIRST = "mobilenet_v2 0.35, 96x96, batch 64"  # of which first steps are taken
FIRST_ROUNDS = 3
ROUNDS, STEPS = 6, 16  # timed steps of a round: one refresh of the masks is among them
SEARCH, SPACE = "search / plain (CPU, wall)", "full space / two options (CPU, wall)"


class StepWatch(keras.callbacks.Callback):
    """Takes the time of all steps of an epoch but the first."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch == 0:
            self._watch = Stopwatch()
        self.seconds = self._watch.read(digits=6)


def measure(name: str) -> Row:
    make, image, batch, budget = NETWORKS[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, image, image, 3)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, rng.integers(0, 10, batch))).repeat(1 + STEPS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    models = {"plain": make()}
    models["plain"].compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss, jit_compile=False)
    for kind, space in (("full", "ethos_u55"), ("two", TWO_OPTIONS)):
        settings = udc_tf.SearchSettings(warmup=0.0, evidence=0.0)
        models[kind] = udc_tf.make_searchable(make(), space, udc_tf.Flash(budget), settings)
        # Slow: what is measured are steps on noise, not training.
        sgd, adam = keras.optimizers.SGD(1e-3, momentum=0.9), keras.optimizers.Adam(1e-3)
        models[kind].compile(sgd, loss, decision_optimizer=adam)
    times: dict[str, list[Seconds]] = {kind: [] for kind in models}
    for r in range(1 + ROUNDS):  # the first traces
        for kind, model in models.items():
            long = {} if kind == "plain" else {"planned_epochs": 1000}
            watch = StepWatch()
            model.fit(data, verbose=0, shuffle=False, callbacks=[watch], **long)
            times[kind] += [watch.seconds] if r else []
    seconds = {kind: np.asarray(taken) for kind, taken in times.items()}

    def ratio(a: str, b: str) -> list[float]:
        return [round(float(v), 3) for v in np.median(seconds[a] / seconds[b], axis=0)]

    return {
        "plain step, CPU seconds": round(float(np.median(seconds["plain"][:, 0])) / STEPS, 4),
        SEARCH: ratio("full", "plain"),
        SPACE: ratio("full", "two"),
    }


def first_step(kind: str) -> Row:
    """Seconds of everything in a fresh process that comes before the second step."""
    make, image, batch, budget = NETWORKS[FIRST]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, image, image, 3)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, rng.integers(0, 10, batch)))
    # What a process does once, for whatever it computes first, is no part of it.
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).predict(np.ones((2, 4)), verbose=0)
    watch = _FIRST[kind](make(), data, x, budget)
    seconds = watch.read(digits=2)
    return {"CPU": seconds.cpu, "wall": seconds.wall}


_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _first_plain(model: keras.Model, data: tf.data.Dataset, x: np.ndarray, _: str) -> Stopwatch:
    sgd = keras.optimizers.SGD(1e-3, momentum=0.9)
    model.compile(sgd, _LOSS, metrics=["accuracy"], jit_compile=False)
    watch = Stopwatch()
    model.fit(data, verbose=0)
    return watch


def _first_search(
    model: keras.Model, data: tf.data.Dataset, x: np.ndarray, budget: str
) -> Stopwatch:
    search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash(budget))
    search.compile(loss=_LOSS, metrics=["accuracy"])
    require_targets(search)
    watch = Stopwatch()
    search.fit(data, verbose=0, planned_epochs=100)
    return watch


def _first_finetuning(
    model: keras.Model, data: tf.data.Dataset, x: np.ndarray, _: str
) -> Stopwatch:
    tiny = udc_tf.compact(model, bits=4, nonzeros=0.5)
    watch = Stopwatch()
    stages = udc_tf.Stages(epochs=(1, 1, 1))
    udc_tf.finetune(tiny, data, stages=stages, loss=_LOSS, verbose=0, accelerator=None)
    return watch


def _first_export(
    model: keras.Model, data: tf.data.Dataset, x: np.ndarray, budget: str
) -> Stopwatch:
    tiny = udc_tf.compact(model, bits=4, nonzeros=0.5)
    udc_tf.finetune(tiny, data, stages=udc_tf.Stages(epochs=(1, 1, 1)), loss=_LOSS, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        watch = Stopwatch()
        udc_tf.export.export(tiny, folder, target=udc_tf.Flash("1MiB"), calibration=x)
    return watch


_FIRST = {
    "plain": _first_plain,
    "search": _first_search,
    "finetuning": _first_finetuning,
    "export": _first_export,
}


def _in_a_process(kind: str) -> Row:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(first_step, kind).result()


def _report_of_first_steps(rows: Mapping[str, Row]) -> str:
    lines = []
    for kind in _FIRST:
        ratios, seconds = [], []
        for r in range(FIRST_ROUNDS):
            plain, row = (rows.get(_key(k, r)) for k in ("plain", kind))
            if plain is None or row is None:
                continue
            ratios.append([row[t] / plain[t] for t in ("CPU", "wall")])
            seconds.append(row["CPU"])
        if ratios:
            cpu, wall = np.median(ratios, axis=0)
            lines.append((kind, f"{np.median(seconds):.1f}", f"{cpu:.2f}", f"{wall:.2f}"))
    return table(("first step", "processor seconds", "/ plain: processor", "wall"), lines)


def _key(kind: str, r: int) -> str:
    return f"first step, {kind}, round {r}"


def report(rows: Mapping[str, Row]) -> str:
    head = ("network", "search / plain: processor", "wall", "full space / two options", "wall")
    lines = [
        (name, *(f"{ratio:.2f}" for ratio in (*row[SEARCH], *row[SPACE])))
        for name, row in rows.items()
        if name in NETWORKS
    ]
    return table(head, lines) + "\n" + _report_of_first_steps(rows)


def run(rows: Rows) -> str:
    for name in NETWORKS:
        rows.once(name, functools.partial(measure, name))
    for r in range(FIRST_ROUNDS):
        for kind in _FIRST:
            rows.once(_key(kind, r), functools.partial(_in_a_process, kind))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "step_overhead")
