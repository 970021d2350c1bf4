"""What a search step needs in memory beside a plain training step of the same network and batch.

    python -m benchmarks.step_memory

Each case runs two steps in a process of its own, twice. Once TensorFlow's allocator tells the most
bytes of tensors that lived at once: what a GPU would have to hold. And once the operating system
tells the highest resident memory (Linux' VmHWM, set back before the first step) less what was
resident before: that has the traced graph in it, which on a GPU is the host's. Beside them stands
what `step_memory` estimates.
"""

import concurrent.futures
import functools
import multiprocessing
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from udc_tf.models import mobilenet_v2, resnet8, wide_resnet
from udc_tf.search.memory_estimate import step_memory

KINDS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "4 samples": {"samples": 4},
    "4 samples, 1 per pass": {"samples": 4, "samples_per_pass": 1},
    "32 samples, 1 per pass": {"samples": 32, "samples_per_pass": 1},  # the recipes of the paper
}
_FEW = ("plain", "4 samples", "4 samples, 1 per pass")
NETWORKS: dict[str, tuple[Any, str, tuple[int, ...], tuple[str, ...]]] = {
    "resnet8, 32x32": (lambda: resnet8((32, 32, 3)), "24KiB", (128, 768), _FEW),
    "mobilenet_v2 0.35, 96x96": (
        lambda: mobilenet_v2((96, 96, 3), classes=10, alpha=0.35), "256KiB", (64,), _FEW,
    ),
    "wide_resnet 20-10, 32x32": (
        lambda: wide_resnet((32, 32, 3), classes=100), "0.55MB", (32,),
        ("32 samples, 1 per pass", "plain"),
    ),
}  # fmt: skip
STEPS = 2
_STATUS = pathlib.Path("/proc/self/status")


def _resident(name: str) -> float:
    """MiB."""
    (line,) = (x for x in _STATUS.read_text().splitlines() if x.startswith(name + ":"))
    return int(line.split()[1]) / 1024


def _trained(network: str, kind: str, batch: int) -> tuple[Callable[[], object], float]:
    """Two steps, to be called; and the MiB that are estimated for one."""
    make, budget, *_ = NETWORKS[network]
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
    return functools.partial(model.fit, data, verbose=0, shuffle=False), estimate


def peak_of_process(network: str, kind: str, batch: int) -> Row:
    train, estimate = _trained(network, kind, batch)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    train()
    highest = _resident("VmHWM")
    return {
        "process": round(highest - before),
        "all of it": round(highest),
        "estimated": round(estimate),
    }


def peak_of_tensors(network: str, kind: str, batch: int) -> Row:
    """Weights and optimizers' variables included."""
    train, _ = _trained(network, kind, batch)
    tf.config.experimental.reset_memory_stats("CPU:0")
    train()
    return {"tensors": round(tf.config.experimental.get_memory_info("CPU:0")["peak"] / 2**20, 1)}


def measure(network: str, kind: str) -> Row:
    row: Row = {}
    for batch in NETWORKS[network][2]:
        found = [
            _in_a_process(peak, counted, network, kind, batch)
            for peak, counted in ((peak_of_tensors, True), (peak_of_process, False))
        ]
        row[f"batch {batch}"] = found[0] | found[1]
    return row


def _in_a_process(peak: Callable[..., Row], counted: bool, *arguments: Any) -> Row:
    """Processors' tensors are only counted by the allocator that GPUs have."""
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = str(counted).lower()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(peak, *arguments).result()


def report(rows: Mapping[str, Row]) -> str:
    head = ("network", "batch", "step", "MiB of tensors", "/ plain", "estimated", "of the process",
            "/ plain")  # fmt: skip
    lines = []
    for network, (_, _, batches, kinds) in NETWORKS.items():
        for batch in batches:
            plain = rows.get(f"{network}, plain", {}).get(f"batch {batch}")
            for kind in kinds:
                row = rows.get(f"{network}, {kind}", {}).get(f"batch {batch}")
                if row is None:
                    continue
                tensors, process = (
                    (row[of], f"{row[of] / plain[of]:.2f}" if plain else "")
                    for of in ("tensors", "process")
                )
                lines.append((network, batch, kind, *tensors, row["estimated"], *process))
    return table(head, lines)


def run(rows: Rows) -> str:
    for network, (*_, kinds) in NETWORKS.items():
        for kind in kinds:
            rows.once(f"{network}, {kind}", functools.partial(measure, network, kind))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "step_memory")
