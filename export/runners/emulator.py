"""QEMU's Corstone-300 board, held by a debugger: boots a program, and lends it an NPU.

The machine mps3-an547 has the board's Cortex-M55, memories, UART and interrupt controller, but no
NPU. A stand-in is put in its place from outside, and the program stays as it is: its driver is
pointed at registers in memory, QEMU's gdb stub tells which of them it writes, and the interrupt is
the board's own line.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Self

from udc_tf.export.runners.base import RunFailedError
from udc_tf.export.runners.gdb_remote import GdbRemote
from udc_tf.export.runners.stand_in import StandInNpu

SIMULATOR = "qemu-system-arm"
MACHINE = "mps3-an547"

# The NPU is interrupt 56; the subsystem's expansion interrupts begin at 32.
_INTERRUPT_LINE = "/machine/iotkit EXP_IRQ 24"


def emulator_missing() -> str | None:
    """Why the emulator cannot run here; None if it can."""
    if shutil.which(SIMULATOR) is None:
        return f"{SIMULATOR} is not on PATH (Debian: apt-get install qemu-system-arm)"
    return None


class Emulator:
    """The emulated board, from power-on; leaving the context ends it.

    Args:
        elf: the program.
        log: file for what it prints on its UART.
        timeout: seconds after which every wait fails.
        files: what lies in memory beside the program, by address.

    Attributes:
        process: the emulator's, inside the context.
        gdb: the debugger that holds it, inside the context.
    """

    process: subprocess.Popen[bytes]
    gdb: GdbRemote

    def __init__(
        self,
        elf: str | os.PathLike[str],
        log: str | os.PathLike[str],
        timeout: float,
        files: Mapping[int, str | os.PathLike[str]] | None = None,
    ):
        self._elf = elf
        self._log = pathlib.Path(log)
        self._timeout = timeout
        self._files = dict(files or {})

    def __enter__(self) -> Self:
        deadline = time.monotonic() + self._timeout
        self._scratch = tempfile.TemporaryDirectory(prefix="udc-emulator-")
        folder = pathlib.Path(self._scratch.name)
        self._errors = open(folder / "errors", "w+b")
        self.process = subprocess.Popen(
            self._command(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        try:
            self._lines = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.gdb = GdbRemote(str(folder / "gdb"), deadline)
            self._lines.settimeout(self._timeout)
            self._lines.connect(str(folder / "lines"))
        except BaseException as error:
            self._end()
            if isinstance(error, OSError | RunFailedError):
                raise RunFailedError(f"{error} {self._complaint()}".strip()) from error
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.gdb.close()
        self._end()
        complaint = self._complaint()
        self._errors.close()
        self._scratch.cleanup()
        if isinstance(error, RunFailedError) and complaint:
            raise RunFailedError(f"{error} {complaint}") from error

    def output(self) -> str:
        """What the program has printed so far."""
        if not self._log.is_file():
            return ""
        return self._log.read_text("ascii", "replace").replace("\r", "")

    def run_on(self, seconds: float) -> None:
        """Lets the program go on for a while, whatever it does, and leaves it running."""
        self.gdb.release()
        time.sleep(seconds)

    def set_interrupt(self, level: bool) -> None:
        """Raises or lowers the NPU's interrupt line."""
        self._lines.sendall(f"set_irq_in {_INTERRUPT_LINE} {int(level)}\n".encode())
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._lines.recv(256)
            if not part:
                raise RunFailedError("the emulator closed its interrupt lines")
            answer += part
        if not answer.startswith(b"OK"):
            raise RunFailedError(f"the emulator refuses its interrupt line: {answer!r}")

    def _command(self, folder: pathlib.Path) -> list[str]:
        # Should this process die without a word, the kernel ends the emulator, too.
        keeper = shutil.which("setpriv")
        command = [keeper, "--pdeathsig", "KILL", "--"] if keeper else []
        command += [SIMULATOR, "-M", MACHINE, "-accel", "tcg", "-kernel", str(self._elf), "-S"]
        command += ["-display", "none", "-monitor", "none", "-serial", f"file:{self._log}"]
        for option, name in (("-gdb", "gdb"), ("-qtest", "lines")):
            command += [option, f"unix:{folder / name},server=on,wait=off"]
        command += ["-qtest-log", "none"]
        for address, path in self._files.items():
            escaped = str(path).replace(",", ",,")
            loader = f"loader,file={escaped},addr={address:#x},force-raw=on"
            command += ["-device", loader]
        return command

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._lines.close()

    def _complaint(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-500:].decode("utf-8", "replace").strip()


def lend(emulator: Emulator, npu: StandInNpu) -> None:
    """Puts `npu` on the board; the program's driver has yet to be pointed at it."""
    for address in npu.appear():
        emulator.gdb.watch(address)


def serve(
    emulator: Emulator,
    npu: StandInNpu,
    hooks: Mapping[int, Callable[[], None]],
    ends: Collection[int],
) -> int:
    """Lets the program run to one of `ends`, and answers what it does to `npu`.

    Args:
        emulator: the board, before its program has begun.
        npu: the stand-in.
        hooks: what to do where the program comes by, by address.
        ends: addresses that mean that the program is through.

    Returns:
        The address it came to.
    """
    gdb = emulator.gdb
    for address in (*hooks, *ends):
        gdb.breakpoint(address)
    while True:
        stop = gdb.resume()
        if stop.written is not None:
            npu.written(stop.written)
            emulator.set_interrupt(npu.interrupt)
        elif stop.counter in hooks:
            hooks[stop.counter]()
        elif stop.counter in ends:
            return stop.counter
        else:
            raise RunFailedError(f"the program stopped at {stop.counter:#x} by itself")
