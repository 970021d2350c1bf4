"""`fvp`: Arm's model of Corstone-300 with an Ethos-U55, where it is installed.

It runs Arm's inference runner, the binary that `arm` boots on QEMU, or our own firmware, the binary
of `qemu`. Its NPU cycles are accurate, its CPU cycles are not. Its exit status is 0 even when the
application fails, so only the application's own words count, and a process time-out stands beside
the model's own time limit.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

import numpy as np

from udc_tf.export.npu import NpuNetwork
from udc_tf.export.runners import firmware, inference_runner
from udc_tf.export.runners.base import RunFailedError, Runner, RunResult
from udc_tf.export.runners.uart_report import parse_log

BINARIES = ("FVP_Corstone_SSE-300_Ethos-U55", "VHT_Corstone_SSE-300_Ethos-U55")
APPLICATIONS = ("arm", "firmware")
_INSTALLED = ".mlia/backends/corstone_300"  # where Arm's `mlia-backend` puts it
_MARGIN = 30.0  # seconds the process may live beyond the simulated time limit
_SIMULATED = re.compile(r"^Simulated time\s*:\s*([0-9.]+)", re.M)
_WALL = re.compile(r"^Wall time\s*:\s*([0-9.]+)", re.M)


class FvpRunner(Runner):
    """Runs an application on the Corstone-300 FVP or its VHT build.

    Args:
        fvp: path of the model's binary; None looks on PATH and where Arm's installer puts it.
        application: "arm", Arm's inference runner, started once for every input; or "firmware", our
            own, which runs all of them and compares.
        golden: outputs the firmware compares with; None takes the executor's, so that PASS means
            the model's NPU and the executor agree bit for bit.
        num_macs: the model's MACs per cycle; None takes the compiled network's, and anything else
            is an error.
        timeout: seconds of simulated time; the process is ended half a minute after that.
        folder: where to keep firmware and logs; None uses a temporary one.
    """

    name = "fvp"
    takes_compiled = True

    def __init__(
        self,
        fvp: str | os.PathLike[str] | None = None,
        application: str = "arm",
        golden: Sequence[np.ndarray] | None = None,
        num_macs: int | None = None,
        timeout: float = 120.0,
        folder: str | os.PathLike[str] | None = None,
    ):
        if application not in APPLICATIONS:
            raise ValueError(
                f"`application` should be one of {', '.join(APPLICATIONS)}. "
                f"Received: {application!r}"
            )
        self._given = fvp
        self._application = application
        self._golden = golden
        self._num_macs = num_macs
        self._timeout = timeout
        self._folder = folder

    def unavailable(self) -> str | None:
        if self._binary() is None:
            if self._given is not None:
                return f"there is no executable {str(self._given)!r}"
            return (
                f"neither {' nor '.join(BINARIES)} is on PATH (Arm's installer gets it: "
                "pip install 'udc-tf[arm]', then `mlia-backend install corstone-300`, which asks "
                "you to accept Arm's licence; or pass its path as `fvp` or --fvp)"
            )
        if self._application == "arm":
            return inference_runner.missing()
        return firmware.compiler_missing()

    def load(self, path: str | os.PathLike[str]) -> None:
        self._data = self.read(path)
        # Arm's runner has its own operators for the CPU; our firmware has none.
        self._network = NpuNetwork(self._data, streams_only=self._application == "arm")
        macs = self._network.macs_per_cycle
        if self._num_macs not in (None, macs):
            raise ValueError(
                f"`num_macs` must be what the network is compiled for, {macs}. "
                f"Received: {self._num_macs}"
            )
        if self._application == "arm":
            inference_runner.check_model(self._data)

    def run(self, inputs: Sequence[np.ndarray]) -> RunResult:
        self.require()
        with tempfile.TemporaryDirectory(prefix="udc-fvp-") as scratch:
            folder = pathlib.Path(self._folder or scratch)
            folder.mkdir(parents=True, exist_ok=True)
            if self._application == "arm":
                return self._run_arm(inputs, pathlib.Path(scratch), folder)
            return self._run_firmware(inputs, folder)

    def _run_firmware(self, inputs: Sequence[np.ndarray], folder: pathlib.Path) -> RunResult:
        golden = self._golden if self._golden is not None else self._network.run(inputs)
        elf = firmware.build_firmware(self._network, inputs, golden, folder)
        start = time.perf_counter()
        log = self._simulate(self.command(elf))
        seconds = time.perf_counter() - start
        report = parse_log(log, self._network, len(inputs[0]))
        verdict = "PASS" if report.passed else f"FAIL: {report.mismatch}"
        return RunResult(
            self.name,
            report.outputs,
            seconds,
            cycles=report.cycles,
            arena_bytes=self._network.arena_bytes,
            notes=(verdict, *_statistics(log)),
        )

    def _run_arm(
        self, inputs: Sequence[np.ndarray], scratch: pathlib.Path, folder: pathlib.Path
    ) -> RunResult:
        graph = self._network.container
        model = scratch / "model.tflite"
        model.write_bytes(self._data)
        outputs, reports = [], []
        start = time.perf_counter()
        for case, path in enumerate(inference_runner.write_inputs(graph, inputs, scratch)):
            result = scratch / f"outputs_{case}.bin"
            size = inference_runner.output_bytes(graph)
            files = {
                inference_runner.MODEL_ADDRESS: model,
                inference_runner.INPUTS_ADDRESS: path,
            }
            command = self.command(inference_runner.found(), files)
            command += ["--dump", f"{result}@{inference_runner.OUTPUTS_ADDRESS:#x},{size}"]
            log = self._simulate(command)
            (folder / f"uart_{case}.log").write_text(log)
            try:
                reports.append(inference_runner.parse(log, graph))
            except RunFailedError as error:
                said = inference_runner.words(log)
                raise RunFailedError(f"{error}. Arm's runner: {said}") from error
            data = result.read_bytes() if result.is_file() else b""
            if len(data) != size:
                raise RunFailedError(
                    f"the model should have saved {size} bytes of outputs. Received: {len(data)}"
                )
            outputs.append(data)
        first = reports[0]
        return RunResult(
            self.name,
            inference_runner.split_outputs(graph, outputs),
            time.perf_counter() - start,
            cycles=first.cycles,
            arena_bytes=first.arena_bytes,
            notes=(
                "Arm's runner, driver and TFLM on Arm's model of core and NPU",
                *(*first.operators, *first.counters, *_statistics(log)),
            ),
        )

    def _binary(self) -> str | None:
        if self._given is not None:
            return shutil.which(str(self._given))
        homes = [os.environ.get("VIRTUAL_ENV"), str(pathlib.Path.home())]
        for name in BINARIES:
            found = shutil.which(name)
            for home in filter(None, homes):
                found = found or next(
                    (str(p) for p in pathlib.Path(home, _INSTALLED).rglob(name)), None
                )
            if found:
                return found
        return None

    def command(
        self,
        elf: str | os.PathLike[str],
        files: Mapping[int, str | os.PathLike[str]] | None = None,
    ) -> list[str]:
        """The model's command line: no window, no telnet, UART on standard output.

        Args:
            elf: the application.
            files: what lies in memory beside it, by address.
        """
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
        command += ["--stat", "--timelimit", f"{self._timeout:g}", "-a", str(elf)]
        for address, path in (files or {}).items():
            command += ["--data", f"{path}@{address:#x}"]
        return command

    def _simulate(self, command: Sequence[str]) -> str:
        try:
            done = subprocess.run(
                command,
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


def _statistics(log: str) -> list[str]:
    found = (("simulated", _SIMULATED.search(log)), ("wall", _WALL.search(log)))
    return [f"{name} time {float(match[1]):g} s by --stat" for name, match in found if match]
