"""`arm`: Arm's own inference runner on an emulated Corstone-300, with the executor as its NPU.

Arm's binary is not changed. Its TFLite Micro reads the compiled file, its driver checks the file
against the NPU's identity, starts the command streams, takes the interrupt and looks at the status;
operators outside the NPU run on the emulated core. What is ours is what the NPU computes.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from udc_tf.export.npu import NpuError, NpuNetwork, container
from udc_tf.export.runners import elf, emulator, guest_printf, inference_runner
from udc_tf.export.runners.base import ESTIMATE_NOTE, RunFailedError, Runner, RunResult
from udc_tf.export.runners.firmware import DRIVER_PAYLOAD
from udc_tf.export.runners.inference_runner import Report
from udc_tf.export.runners.stand_in import StandInNpu

ACCELERATORS = {f"ethos-u55-{macs}": macs for macs in (32, 64, 128, 256)}
NOTE = "Arm's runner, driver and TFLM on an emulated Cortex-M55, the executor as its NPU"
_DEFAULT_MACS = 128
_INIT, _EXIT = "ethosu_init", "_exit"
_PRINT = ("fprintf", "fiprintf")
_FAULTS = tuple(f"{kind}_Handler" for kind in ("HardFault", "MemManage", "BusFault", "UsageFault"))
_FAULT_SECONDS = 1.0  # what a fault handler gets to print what it knows
_TFLM_BYTES = 64 << 10  # what TFLM may keep beside the tensors
_REGISTERS = 0x9FFF0000  # in DDR, far behind the runner's data
_BASE_ARGUMENT = 1  # of ethosu_init: where the NPU is


class ArmRunner(Runner):
    """Boots Arm's inference runner on QEMU, once for every input.

    Args:
        binary: its ELF; None takes the one of the installed package `mlia-ethos-u`.
        accelerator: the NPU to show, "ethos-u55-32" to "ethos-u55-256"; None takes the one that
            the network is compiled for.
        timeout: seconds for one inference, until the emulator is ended.
        folder: where to keep the UART logs; None uses a temporary one.
    """

    name = "arm"
    takes_compiled = True
    families = ("ethos-u",)  # another NPU than the one shown is for Arm's driver to tell

    def __init__(
        self,
        binary: str | os.PathLike[str] | None = None,
        accelerator: str | None = None,
        timeout: float = 60.0,
        folder: str | os.PathLike[str] | None = None,
    ):
        if accelerator is not None and accelerator not in ACCELERATORS:
            raise ValueError(
                f"`accelerator` should be one of {', '.join(ACCELERATORS)}: the runner's NPU is "
                f"an Ethos-U55. Received: {accelerator!r}"
            )
        self._binary = binary
        self._macs = ACCELERATORS.get(accelerator or "")
        self._timeout = timeout
        self._folder = folder

    def unavailable(self) -> str | None:
        return emulator.emulator_missing() or inference_runner.missing(self._binary)

    def load(self, path: str | os.PathLike[str]) -> None:
        # What the executor refuses is booted all the same, to hear what Arm's software says to it.
        self._graph: container.Container | None = None
        self._network: NpuNetwork | NpuError
        try:
            self._data = self.read(path)
            self._graph = container.parse(self._data)
            self._network = NpuNetwork(self._data, streams_only=True)
        except NpuError as error:
            if type(error) is NpuError:  # a sound file, but not one that Vela wrote
                raise
            self._data = pathlib.Path(path).read_bytes()
            self._network = error
        inference_runner.check_model(self._data)

    def run(self, inputs: Sequence[np.ndarray]) -> RunResult:
        self.require()
        with tempfile.TemporaryDirectory(prefix="udc-arm-") as scratch:
            folder = pathlib.Path(self._folder or scratch)
            folder.mkdir(parents=True, exist_ok=True)
            model = pathlib.Path(scratch, "model.tflite")
            model.write_bytes(self._data)
            paths: list[pathlib.Path | None] = [
                None
            ]  # a network that cannot be read has no inputs, and ends in an error
            if self._graph is not None:
                paths = [*inference_runner.write_inputs(self._graph, inputs, pathlib.Path(scratch))]
            start = time.perf_counter()
            results = [
                self._boot(model, path, folder / f"uart_{case}.log")
                for case, path in enumerate(paths)
            ]
            seconds = time.perf_counter() - start
        if self._graph is None:
            raise RunFailedError("the network cannot be read")
        first = results[0][0]
        return RunResult(
            self.name,
            inference_runner.split_outputs(self._graph, [outputs for _, outputs in results]),
            seconds,
            cycles=first.cycles,
            arena_bytes=first.arena_bytes,
            notes=(NOTE, *first.operators, *first.counters, ESTIMATE_NOTE),
            cycles_estimated=True,
        )

    def _boot(
        self, model: pathlib.Path, inputs: pathlib.Path | None, log: pathlib.Path
    ) -> tuple[Report, bytes]:
        """One inference: the runner's report and the bytes of its outputs."""
        program = inference_runner.found(self._binary)
        places = elf.symbols(program, (_INIT, _EXIT, *_FAULTS), optional=_PRINT)
        files = {inference_runner.MODEL_ADDRESS: model}
        if inputs is not None:
            files[inference_runner.INPUTS_ADDRESS] = inputs
        log.unlink(missing_ok=True)
        heard: list[str] = []
        with emulator.Emulator(program, log, self._timeout, files) as board:
            npu = StandInNpu(self._network, self._shown_macs(), board.gdb, _REGISTERS)

            def attach() -> None:
                board.gdb.set_register(_BASE_ARGUMENT, _REGISTERS)
                emulator.lend(board, npu)

            hooks = {places[_INIT]: attach}
            for name in _PRINT:
                if name in places:
                    hooks[places[name]] = lambda: heard.append(guest_printf.printed(board.gdb))
            ends = {places[name] for name in (_EXIT, *_FAULTS)}
            try:
                if emulator.serve(board, npu, hooks, ends) != places[_EXIT]:
                    board.run_on(_FAULT_SECONDS)
                if self._graph is None:
                    raise RunFailedError("the network cannot be read")
                report = inference_runner.parse(board.output(), self._graph)
            except RunFailedError as error:
                said = inference_runner.words(board.output(), heard)
                ours = self._explanation(npu)
                raise RunFailedError(f"{error}. Arm's runner: {said}. udc-tf: {ours}") from error
            size = inference_runner.output_bytes(self._graph)
            return report, board.gdb.read(inference_runner.OUTPUTS_ADDRESS, size)

    def _shown_macs(self) -> int:
        if self._macs is not None:
            return self._macs
        macs = _DEFAULT_MACS if self._graph is None else self._graph.npu_operators[0].macs
        return macs if macs in ACCELERATORS.values() else _DEFAULT_MACS

    def _explanation(self, npu: StandInNpu) -> str:
        """What we know about a run that Arm's runner did not complete."""
        if isinstance(self._network, NpuError):
            return str(self._network)
        if npu.failure is not None:
            return str(npu.failure)
        operators = self._network.container.npu_operators
        shown = f"ethos-u55-{self._shown_macs()}"
        if any(f"{operator.product}-{operator.macs}" != shown for operator in operators):
            return (
                f"the network is compiled for {self._network.container.accelerator}, the NPU shown "
                f"is an {shown}"
            )
        if any(operator.payload != DRIVER_PAYLOAD for operator in operators):
            return (
                f"its driver takes the payload {DRIVER_PAYLOAD}, the file holds "
                f"{operators[0].payload}; compile without --cop-format and --separate-io-regions"
            )
        if self._network.arena_bytes > inference_runner.ARENA_BYTES - _TFLM_BYTES:
            return (
                f"the network's tensors take {self._network.arena_bytes} bytes; the runner has "
                f"{inference_runner.ARENA_BYTES} for them and for TFLM's own"
            )
        return "the executor finds nothing wrong with the file"
