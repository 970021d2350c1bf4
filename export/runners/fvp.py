"""`fvp`: Arm's model of Corstone-300 with an Ethos-U55, where it is installed.

Its NPU cycles are accurate, its CPU cycles are not. Its exit status is 0 even when the application
fails, so only the firmware's own words count, and a process time-out stands beside the model's own
time limit.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from udc_tf.export.npu import NpuNetwork
from udc_tf.export.runners import firmware
from udc_tf.export.runners.base import RunFailedError, Runner, RunResult
from udc_tf.export.runners.report import parse_log

BINARIES = ("FVP_Corstone_SSE-300_Ethos-U55", "VHT_Corstone_SSE-300_Ethos-U55")
_MARGIN = 30.0  # seconds the process may live beyond the simulated time limit
_SIMULATED = re.compile(r"^Simulated time\s*:\s*([0-9.]+)", re.M)
_WALL = re.compile(r"^Wall time\s*:\s*([0-9.]+)", re.M)


class FvpRunner(Runner):
    """Runs the firmware on the Corstone-300 FVP or its VHT build.

    Args:
        fvp: path of the model's binary; None looks on PATH.
        golden: outputs the firmware compares with; None takes the executor's, so that PASS means
            the model's NPU and the executor agree bit for bit.
        num_macs: the model's MACs per cycle; None takes the compiled network's, and anything else
            is an error.
        timeout: seconds of simulated time; the process is ended half a minute after that.
        folder: where to keep firmware and log; None uses a temporary one.
    """

    name = "fvp"
    takes_compiled = True

    def __init__(
        self,
        fvp: str | os.PathLike[str] | None = None,
        golden: Sequence[np.ndarray] | None = None,
        num_macs: int | None = None,
        timeout: float = 120.0,
        folder: str | os.PathLike[str] | None = None,
    ):
        self._given = fvp
        self._golden = golden
        self._num_macs = num_macs
        self._timeout = timeout
        self._folder = folder

    def unavailable(self) -> str | None:
        if self._binary() is None:
            if self._given is not None:
                return f"there is no executable {str(self._given)!r}"
            return (
                f"neither {' nor '.join(BINARIES)} is on PATH (it comes from Arm's own download "
                "page; pass its path as `fvp` or --fvp)"
            )
        return firmware.compiler_missing()

    def load(self, path: str | os.PathLike[str]) -> None:
        self._network = NpuNetwork(self.read(path))
        macs = self._network.macs_per_cycle
        if self._num_macs not in (None, macs):
            raise ValueError(
                f"`num_macs` must be what the network is compiled for, {macs}. "
                f"Received: {self._num_macs}"
            )

    def run(self, inputs: Sequence[np.ndarray]) -> RunResult:
        self.require()
        with tempfile.TemporaryDirectory(prefix="udc-fvp-") as scratch:
            folder = pathlib.Path(self._folder or scratch)
            golden = self._golden if self._golden is not None else self._network.run(inputs)
            elf = firmware.build_firmware(self._network, inputs, golden, folder)
            start = time.perf_counter()
            log = self._simulate(elf)
            seconds = time.perf_counter() - start
        report = parse_log(log, self._network, len(inputs[0]))
        notes = ["PASS" if report.passed else f"FAIL: {report.mismatch}"]
        for name, pattern in (("simulated", _SIMULATED), ("wall", _WALL)):
            found = pattern.search(log)
            if found:
                notes.append(f"{name} time {float(found[1]):g} s by --stat")
        return RunResult(
            self.name,
            report.outputs,
            seconds,
            cycles=report.cycles,
            arena_bytes=self._network.arena_bytes,
            notes=tuple(notes),
        )

    def _binary(self) -> str | None:
        if self._given is not None:
            return shutil.which(str(self._given))
        return next((found for found in map(shutil.which, BINARIES) if found), None)

    def command(self, elf: str | os.PathLike[str]) -> list[str]:
        """The model's command line: no window, no telnet, UART on standard output."""
        settings = {
            "ethosu.num_macs": self._network.macs_per_cycle,
            "mps3_board.visualisation.disable-visualisation": 1,
            "mps3_board.telnetterminal0.start_telnet": 0,
            "mps3_board.uart0.out_file": "-",
            "mps3_board.uart0.unbuffered_output": 1,
            "mps3_board.uart0.shutdown_on_eot": 1,
            "mps3_board.uart0.shutdown_tag": "EXITTHESIM",
        }
        command = [self._binary() or BINARIES[0]]
        for name, value in settings.items():
            command += ["-C", f"{name}={value}"]
        return [*command, "--stat", "--timelimit", f"{self._timeout:g}", "-a", str(elf)]

    def _simulate(self, elf: pathlib.Path) -> str:
        try:
            done = subprocess.run(
                self.command(elf),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self._timeout + _MARGIN,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"")[-500:].decode("ascii", "replace")
            raise RunFailedError(
                f"the model was ended after {error.timeout:g} s. Its last words: {said}"
            ) from None
        return done.stdout.decode("ascii", "replace")
