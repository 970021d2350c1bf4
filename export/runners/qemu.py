"""`qemu`: the firmware on an emulated Corstone-300, with the executor as its NPU.

QEMU's machine mps3-an547 has the board's Cortex-M55, memories and UART, but no NPU. The firmware
is the one for Arm's models, byte for byte. What differs is done from outside: over QEMU's gdb stub
the host points the driver at registers in memory (`ethosu_base`), waits until the driver has
started the NPU, executes the command stream on the guest's memory, and sets the status that the
driver polls. There is no cycle count.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from udc_tf.export.npu import NpuNetwork
from udc_tf.export.runners import firmware
from udc_tf.export.runners.base import RunFailedError, Runner, RunResult
from udc_tf.export.runners.gdb_remote import GdbRemote
from udc_tf.export.runners.report import parse_log
from udc_tf.export.runners.stand_in import StandInNpu

SIMULATOR = "qemu-system-arm"
MACHINE = "mps3-an547"
_PROBE, _STARTED, _ENDED = "ethosu_about_to_probe", "ethosu_was_started", "simulation_ended"
_BASE, _FREE = "ethosu_base", "bss_end"


class QemuRunner(Runner):
    """Boots the firmware on QEMU and lends it the executor as NPU.

    Args:
        golden: outputs the firmware compares with; None takes the executor's own.
        timeout: seconds until the emulator is ended.
        folder: where to keep firmware and log; None uses a temporary one.
        attach: False leaves the NPU out, to see the firmware say so.
    """

    name = "qemu"
    takes_compiled = True

    def __init__(
        self,
        golden: Sequence[np.ndarray] | None = None,
        timeout: float = 120.0,
        folder: str | os.PathLike[str] | None = None,
        attach: bool = True,
    ):
        self._golden = golden
        self._timeout = timeout
        self._folder = folder
        self._attach = attach

    def unavailable(self) -> str | None:
        if shutil.which(SIMULATOR) is None:
            return f"{SIMULATOR} is not on PATH (Debian: apt-get install qemu-system-arm)"
        return firmware.compiler_missing()

    def load(self, path: str | os.PathLike[str]) -> None:
        self._network = NpuNetwork(self.read(path))

    def run(self, inputs: Sequence[np.ndarray]) -> RunResult:
        self.require()
        with tempfile.TemporaryDirectory(prefix="udc-qemu-") as scratch:
            folder = pathlib.Path(self._folder or scratch)
            golden = self._golden if self._golden is not None else self._network.run(inputs)
            elf = firmware.build_firmware(self._network, inputs, golden, folder)
            start = time.perf_counter()
            log = self._simulate(elf, folder / "uart.log", pathlib.Path(scratch))
            seconds = time.perf_counter() - start
        report = parse_log(log, self._network, len(inputs[0]))
        notes = ["PASS" if report.passed else f"FAIL: {report.mismatch}"]
        return RunResult(
            self.name,
            report.outputs,
            seconds,
            cycles=report.cycles,
            arena_bytes=self._network.arena_bytes,
            notes=(*notes, "firmware on an emulated Cortex-M55, the executor as its NPU"),
        )

    def _simulate(self, elf: pathlib.Path, log: pathlib.Path, scratch: pathlib.Path) -> str:
        deadline = time.monotonic() + self._timeout
        gdb_socket = scratch / "gdb"
        command = [SIMULATOR, "-M", MACHINE, "-kernel", str(elf), "-S"]
        command += ["-display", "none", "-monitor", "none", "-serial", f"file:{log}"]
        command += ["-chardev", f"socket,path={gdb_socket},server=on,wait=off,id=gdb"]
        command += ["-gdb", "chardev:gdb"]
        with open(scratch / "errors", "w+b") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )
            try:
                self._serve(str(gdb_socket), _symbols(elf), deadline)
            except RunFailedError as error:
                process.kill()
                errors.seek(0)
                said = errors.read()[-500:].decode("utf-8", "replace").strip()
                raise RunFailedError(f"{error} {said}".strip()) from error
            finally:
                process.kill()
                process.wait()
        return log.read_text("ascii", "replace")

    def _serve(self, socket_path: str, symbols: dict[str, int], deadline: float) -> None:
        """Answers the firmware's starts of the NPU until it comes to its end."""
        gdb = GdbRemote(socket_path, deadline)
        try:
            # Free memory behind the firmware's variables serves as the NPU's registers.
            registers = symbols[_FREE] + 0xFFF & ~0xFFF
            npu = StandInNpu(self._network, gdb.read, gdb.write, registers)
            stops = [_ENDED, *((_PROBE, _STARTED) if self._attach else ())]
            for name in stops:
                gdb.breakpoint(symbols[name])
            while True:
                counter = gdb.resume()
                if counter == symbols[_PROBE]:
                    npu.power_on()
                    gdb.write_word(symbols[_BASE], registers)
                elif counter == symbols[_STARTED]:
                    npu.run()
                elif counter == symbols[_ENDED]:
                    if npu.failure is not None:
                        raise npu.failure
                    return
                else:
                    raise RunFailedError(f"the firmware stopped at {counter:#x} by itself")
        finally:
            gdb.close()


def _symbols(elf: pathlib.Path) -> dict[str, int]:
    """Addresses of the firmware's symbols; of functions without their Thumb bit."""
    listing = subprocess.run(
        ["arm-none-eabi-nm", str(elf)], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    table = {}
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) == 3:
            value = int(fields[0], 16)
            table[fields[2]] = value & ~1 if fields[1] in "tT" else value
    missing = {_PROBE, _STARTED, _ENDED, _BASE, _FREE} - set(table)
    if missing:
        raise RunFailedError(f"the firmware has no {', '.join(sorted(missing))}")
    return table
