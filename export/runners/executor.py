"""`npu`: the command-stream executor."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np

from udc_tf.export.npu import NpuNetwork
from udc_tf.export.runners.base import ESTIMATE_NOTE, Runner, RunResult


class NpuRunner(Runner):
    """Executes what Vela wrote, on the host. See `udc_tf.export.npu` for how exactly."""

    name = "npu"
    takes_compiled = True
    families = ("ethos-u55", "ethos-u65")

    def unavailable(self) -> str | None:
        return None

    def load(self, path: str | os.PathLike[str]) -> None:
        self.network = NpuNetwork(self.read(path))

    def run(self, inputs: Sequence[np.ndarray]) -> RunResult:
        start = time.perf_counter()
        outputs = self.network.run(inputs)
        seconds = time.perf_counter() - start
        known = self.network.estimates_cycles
        return RunResult(
            self.name,
            outputs,
            seconds,
            cycles=sum(map(sum, self.network.estimated_cycles)) if known else None,
            arena_bytes=self.network.arena_bytes,
            notes=(ESTIMATE_NOTE,) if known else (),
            cycles_estimated=known,
        )
