"""What a search step needs in memory beside a plain training step of the same network and batch.

    python -m benchmarks.step_memory

Each case is a process of its own: two steps, and the highest resident memory during them (Linux'
VmHWM, set back before the first) less what was resident before. That has the traced graph in it,
which on a GPU is the host's; so each case runs with two batch sizes, and the growth from one to
the other, which is tensors alone, is given as well, beside what `step_memory` estimates for it.
"""

import concurrent.futures
import functools
import multiprocessing
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from udc_tf.models import mobilenet_v2, resnet8, wide_resnet
from udc_tf.search.memory_estimate import step_memory

NETWORKS: dict[str, tuple[Any, str, tuple[int, ...]]] = {
    "resnet8, 32x32": (lambda: resnet8((32, 32, 3)), "24KiB", (128, 768)),
    "mobilenet_v2 0.35, 96x96": (
        lambda: mobilenet_v2((96, 96, 3), classes=10, alpha=0.35),
        "256KiB",
        (32, 128),
    ),
    "wide_resnet 20-10, 32x32": (lambda: wide_resnet((32, 32, 3), classes=100), "0.55MB", (32,)),
}
KINDS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "4 samples": {"samples": 4},
    "4 samples, 1 per pass": {"samples": 4, "samples_per_pass": 1},
}
STEPS = 2
_STATUS = pathlib.Path("/proc/self/status")


def _resident(name: str) -> float:
    """MiB."""
    (line,) = (x for x in _STATUS.read_text().splitlines() if x.startswith(name + ":"))
    return int(line.split()[1]) / 1024


def peak(network: str, kind: str, batch: int) -> tuple[float, float]:
    """MiB that two steps need above what was there before them; and what is estimated."""
    make, budget, _ = NETWORKS[network]
    model, settings, estimate = make(), KINDS[kind], 0.0
    sgd, loss = keras.optimizers.SGD(1e-3, momentum=0.9), "sparse_categorical_crossentropy"
    if settings is None:
        model.compile(sgd, loss, jit_compile=False)
    else:
        settings = udc_tf.SearchSettings(**settings, evidence=0.0)
        model = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash(budget), settings)
        model.compile(sgd, loss, decision_optimizer=keras.optimizers.Adam(1e-3))
        model.problem.require_device()  # asks Vela, which needs memory of its own
        estimate = step_memory(model, batch).total / 2**20
    shape = (model.network if settings else model).input_shape[1:]
    x = np.random.default_rng(0).normal(size=(batch, *shape)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, np.zeros(batch, int))).repeat(STEPS)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    model.fit(data, verbose=0, shuffle=False)
    return round(_resident("VmHWM") - before), round(estimate)


def measure(network: str, kind: str) -> Row:
    row: Row = {}
    for batch in NETWORKS[network][2]:
        with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn")
        ) as pool:
            measured, estimated = pool.submit(peak, network, kind, batch).result()
        row[f"batch {batch}"] = {"MiB": measured, "estimated": estimated}
    return row


def report(rows: Mapping[str, Row]) -> str:
    head = ("network", "step", "MiB by batch", "growth", "/ plain", "estimated growth")
    lines = []
    for network in NETWORKS:
        plain = _growth(rows.get(f"{network}, plain"))
        for kind in KINDS:
            row = rows.get(f"{network}, {kind}")
            if row is None:
                continue
            peaks = ", ".join(f"{k.removeprefix('batch ')}: {v['MiB']:,}" for k, v in row.items())
            growth = _growth(row)
            ratio = f"{growth / plain:.2f}" if growth and plain else ""
            estimated = _growth(row, "estimated") or ""
            lines.append((network, kind, peaks, growth or "", ratio, estimated))
    return table(head, lines)


def _growth(row: Row | None, of: str = "MiB") -> float | None:
    if row is None or len(row) < 2:
        return None
    first, *_, last = row.values()
    return last[of] - first[of]


def run(rows: Rows) -> str:
    for network in NETWORKS:
        for kind in KINDS:
            rows.once(f"{network}, {kind}", functools.partial(measure, network, kind))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "step_memory")
