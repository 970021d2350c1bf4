"""What a search step needs in memory beside a plain training step of the same network and batch.

    python -m benchmarks.step_memory

Each case runs two steps in a process of its own, twice. Once TensorFlow's allocator tells the most
bytes of tensors that lived at once: what a GPU would have to hold. And once the operating system
tells the highest resident memory (Linux' VmHWM, set back before the first step) less what was
resident before: that has the traced graph in it, which on a GPU is the host's. Beside them stands
what `step_memory` estimates.
"""

import concurrent.futures
import dataclasses
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
from udc_tf.models import mobilenet_v2, recipes, resnet8
from udc_tf.search.memory_estimate import step_memory

_PAPER = recipes.get("cifar100_0.55MB")
KINDS: dict[str, udc_tf.SearchSettings | None] = {
    "plain": None,
    "4 samples": udc_tf.SearchSettings(evidence=0.0),
    "4 samples, 1 per pass": udc_tf.SearchSettings(samples_per_pass=1, evidence=0.0),
    # The paper's recipe has 32 samples of 128 examples each, one after the other. How many follow
    # upon the second makes no difference to what lives at once, nor how many examples to the rest.
    "32 samples, 1 per pass": _PAPER.search,
    "2 samples, 1 per pass": dataclasses.replace(_PAPER.search, samples=2),
}
Batches = dict[str, tuple[int, ...]]  # of each kind
NETWORKS: dict[str, tuple[Callable[[], keras.Model], str | udc_tf.SearchSpace, str, Batches]] = {
    "resnet8, 32x32": (
        lambda: resnet8((32, 32, 3)), "ethos_u55", "24KiB",
        dict.fromkeys(("plain", "4 samples", "4 samples, 1 per pass"), (128, 768)),
    ),
    "mobilenet_v2 0.35, 96x96": (
        lambda: mobilenet_v2((96, 96, 3), classes=10, alpha=0.35), "ethos_u55", "256KiB",
        dict.fromkeys(("plain", "4 samples", "4 samples, 1 per pass"), (64,)),
    ),
    "wide_resnet 20-10, 32x32": (
        _PAPER.model, _PAPER.space, "0.55MB",
        {"32 samples, 1 per pass": (64,), "2 samples, 1 per pass": (256,), "plain": (64,)},
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
    make, space, budget, _ = NETWORKS[network]
    model, settings, estimate = make(), KINDS[kind], 0.0
    sgd, loss = keras.optimizers.SGD(1e-3, momentum=0.9), "sparse_categorical_crossentropy"
    if settings is None:
        model.compile(sgd, loss, jit_compile=False)
    else:
        model = udc_tf.make_searchable(model, space, udc_tf.Flash(budget), settings)
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
    for batch in NETWORKS[network][-1][kind]:
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
    for network, (*_, kinds) in NETWORKS.items():
        cases = [(batch, kind) for kind, batches in kinds.items() for batch in batches]
        for batch, kind in sorted(cases, key=lambda case: case[0]):
            plain, row = (
                rows.get(f"{network}, {k}", {}).get(f"batch {batch}") for k in ("plain", kind)
            )
            if row is not None:
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
