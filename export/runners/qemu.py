"""`qemu`: our own firmware on an emulated Corstone-300, with the executor as its NPU.

The firmware is the one for Arm's models, byte for byte: see `emulator` for how it gets an NPU.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from udc_tf.export.npu import NpuNetwork
from udc_tf.export.runners import elf, emulator, firmware
from udc_tf.export.runners.base import ESTIMATE_NOTE, Runner, RunResult
from udc_tf.export.runners.stand_in import StandInNpu
from udc_tf.export.runners.uart_report import parse_log

_MAIN, _ENDED, _BASE, _FREE = "main", "simulation_ended", "ethosu_base", "bss_end"


class QemuRunner(Runner):
    """Boots the firmware on QEMU and lends it the executor as NPU.

    Args:
        golden: outputs the firmware compares with; None takes the executor's own.
        timeout: seconds until the emulator is ended.
        folder: where to keep firmware and log; None uses a temporary one.
        attach: False leaves the NPU out, to see the firmware say so.
        macs: MACs per cycle of the NPU; None takes what the network is compiled for.
    """

    name = "qemu"
    takes_compiled = True

    def __init__(
        self,
        golden: Sequence[np.ndarray] | None = None,
        timeout: float = 120.0,
        folder: str | os.PathLike[str] | None = None,
        attach: bool = True,
        macs: int | None = None,
    ):
        self._golden = golden
        self._timeout = timeout
        self._folder = folder
        self._attach = attach
        self._macs = macs

    def unavailable(self) -> str | None:
        return emulator.emulator_missing() or firmware.compiler_missing()

    def load(self, path: str | os.PathLike[str]) -> None:
        self._network = NpuNetwork(self.read(path))

    def run(self, inputs: Sequence[np.ndarray]) -> RunResult:
        self.require()
        with tempfile.TemporaryDirectory(prefix="udc-qemu-") as scratch:
            folder = pathlib.Path(self._folder or scratch)
            golden = self._golden if self._golden is not None else self._network.run(inputs)
            program = firmware.build_firmware(self._network, inputs, golden, folder)
            start = time.perf_counter()
            log = self._simulate(program, folder / "uart.log")
            seconds = time.perf_counter() - start
        report = parse_log(log, self._network, len(inputs[0]))
        notes = ["PASS" if report.passed else f"FAIL: {report.mismatch}"]
        return RunResult(
            self.name,
            report.outputs,
            seconds,
            cycles=report.cycles,
            arena_bytes=self._network.arena_bytes,
            notes=(
                *notes,
                "firmware on an emulated Cortex-M55, the executor as its NPU",
                ESTIMATE_NOTE,
            ),
            cycles_estimated=True,
        )

    def _simulate(self, program: pathlib.Path, log: pathlib.Path) -> str:
        places = elf.symbols(program, (_MAIN, _ENDED, _BASE, _FREE))
        # Free memory behind the firmware's variables serves as the NPU's registers.
        registers = places[_FREE] + 0xFFF & ~0xFFF
        with emulator.Emulator(program, log, self._timeout) as board:
            macs = self._macs or self._network.macs_per_cycle
            npu = StandInNpu(self._network, macs, board.gdb, registers)

            def attach() -> None:
                board.gdb.write_word(places[_BASE], registers)
                emulator.lend(board, npu)

            hooks = {places[_MAIN]: attach} if self._attach else {}
            emulator.serve(board, npu, hooks, {places[_ENDED]})
            if npu.failure is not None:
                raise npu.failure
            return board.output()
