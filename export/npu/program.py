"""From a command stream to a checked list of operations.

Nothing here depends on the network's input, so everything that can be checked is checked once, at
load: ranges, regions, reads of bytes nobody wrote, outputs that overwrite what is being read, and
copies still under way when their bytes are used.
"""

from __future__ import annotations

import numpy as np

from udc_tf.export.npu import memory
from udc_tf.export.npu.command_words import Command, decode
from udc_tf.export.npu.container import NpuOperator
from udc_tf.export.npu.faults import MemoryAccessError, NpuError, WorkLimitError
from udc_tf.export.npu.memory import FeatureMap, Region
from udc_tf.export.npu.operations import (
    FOOTPRINT_LIMIT,
    BlockOperation,
    Dma,
    Elementwise,
    Operation,
    Pooling,
    build_convolution,
    build_dma,
    build_elementwise,
    build_pooling,
    extent,
    reads,
)
from udc_tf.export.npu.registers import Registers
from udc_tf.export.npu.streams import Span

WORK_LIMIT = 5 * 10**11  # multiply-adds of one inference: about 50 seconds on a host
SHRAM = "SHRAM"
_PER_MASK_BYTE = 20
_PER_PAIR = 2 * 10**5  # two accesses compared
_PER_COMMAND = 2 * 10**4
_RUNNING_KERNELS = 2  # operations that may still run when a copy begins
_COPIED_TOGETHER = 16  # bytes: Vela rounds the length of a copied tensor up to them


class AccessChecker:
    """Follows which bytes are written, being copied or being computed, command by command.

    It also adds up what the network costs, the checks themselves included, and refuses what would
    cost more than `work_limit`, before any of it is run.
    """

    def __init__(self, store_sizes: dict[str, int], work_limit: int):
        # Constant stores have no entry: they are always written, and nothing writes to them.
        self._written = {name: np.zeros(size, bool) for name, size in store_sizes.items()}
        self._copies: list[Dma] = []
        self._kernels: list[BlockOperation] = []
        self._work = 0
        self._work_limit = work_limit

    def spend(self, work: int) -> None:
        """Adds to the cost."""
        self._work += work
        if self._work > self._work_limit:
            raise WorkLimitError(
                f"the network up to here costs as much as {self._work} multiply-adds; "
                f"the limit is {self._work_limit}"
            )

    def define(self, store: str, start: int, length: int) -> None:
        """Marks bytes that something outside the NPU writes: an input, a CPU operator's output."""
        self._written[store][start : start + length] = True

    def defined(self, store: str, start: int, length: int) -> bool:
        """True if all these bytes have been written."""
        return store not in self._written or bool(
            self._written[store][start : start + length].all()
        )

    def restart(self, shram_size: int) -> None:
        """A new command stream begins: nothing is under way and SHRAM is undefined."""
        self._copies.clear()
        self._kernels.clear()
        self._written[SHRAM] = np.zeros(shram_size, bool)

    def wait_copies(self, count: int) -> None:
        """OP_DMA_WAIT: at most `count` copies may be under way."""
        self._copies = self._copies[len(self._copies) - min(count, len(self._copies)) :]

    def wait_kernels(self, count: int) -> None:
        """OP_KERNEL_WAIT: at most `count` operations may be under way."""
        self._kernels = self._kernels[len(self._kernels) - min(count, len(self._kernels)) :]

    def copy(self, dma: Dma) -> None:
        """Checks and notes a copy."""
        self.spend(dma.work + _PER_PAIR * 3 * len(self._kernels))
        written = self._written_of(dma.source)
        if not written[: 1 - _COPIED_TOGETHER].all():
            raise MemoryAccessError(f"reads bytes of {dma.source.name} that nothing has written")
        if self._overlap(dma.source, dma.destination):
            raise MemoryAccessError("the copy's source and destination overlap")
        for kernel in self._kernels:
            if any(self._overlap(dma.destination, r) for r in reads(kernel)):
                raise MemoryAccessError(f"overwrites what {kernel.position} may still read")
            if self._overlap(dma.source, kernel.ofm) or self._overlap(dma.destination, kernel.ofm):
                raise MemoryAccessError(f"touches what {kernel.position} may still write")
        # What nothing has written at the end of a tensor may be copied along, but not be used.
        target = dma.destination
        self._written[target.store][target.start : target.start + target.length] = written
        self._copies.append(dma)

    def kernel(self, operation: BlockOperation) -> None:
        """Checks and notes an operation on feature maps."""
        ofm = operation.ofm
        sources = reads(operation)
        if operation.footprint > FOOTPRINT_LIMIT:
            raise WorkLimitError(
                f"an operation may take {FOOTPRINT_LIMIT} bytes on a host. "
                f"Received: {operation.footprint} for an OFM of {ofm.shape}"
            )
        checked = sum(extent(source)[2] - extent(source)[1] for source in sources)
        pairs = len(sources) * (1 + len(self._copies))
        self.spend(operation.work + _PER_MASK_BYTE * checked + _PER_PAIR * pairs)
        for source in sources:
            self._check_written(source)
        if memory.overlaps_itself(ofm, self._written[ofm.region.store].size):
            raise MemoryAccessError(f"elements of the OFM of shape {ofm.shape} overlap")
        for source in sources:
            if self._overlap(source, ofm) and not self._in_place(operation, source):
                raise MemoryAccessError(f"the OFM overwrites {source.name} while it is read")
        for dma in self._copies:
            if any(self._overlap(s, dma.destination) for s in (*sources, ofm)):
                raise MemoryAccessError(f"uses bytes that {dma.position} may still be copying")
            if self._overlap(ofm, dma.source):
                raise MemoryAccessError(f"overwrites what {dma.position} may still be copying")
        memory.mark(self._written[ofm.region.store], ofm)
        self._kernels = [*self._kernels, operation][-_RUNNING_KERNELS:]

    @staticmethod
    def _in_place(operation: BlockOperation, source: FeatureMap | Span) -> bool:
        pointwise = isinstance(operation, Elementwise) or (
            isinstance(operation, Pooling)
            and operation.mode != "REDUCE_SUM"
            and operation.kernel.size == (1, 1)
        )
        return pointwise and isinstance(source, FeatureMap) and source.same_place(operation.ofm)

    def _check_written(self, what: FeatureMap | Span) -> None:
        if isinstance(what, Span):
            written = self.defined(what.store, what.start, what.length)
        elif what.region.store not in self._written:
            written = True
        else:
            written = memory.all_marked(self._written[what.region.store], what)
        if not written:
            raise MemoryAccessError(f"reads bytes of {what.name} that nothing has written")

    def _written_of(self, span: Span) -> np.ndarray:
        if span.store not in self._written:
            return np.ones(span.length, bool)
        return self._written[span.store][span.start : span.start + span.length].copy()

    def _overlap(self, one: FeatureMap | Span, other: FeatureMap | Span) -> bool:
        store, low, high = extent(one)
        other_store, other_low, other_high = extent(other)
        if store != other_store or high <= other_low or other_high <= low:
            return False
        if isinstance(one, Span) and isinstance(other, Span):
            return True
        self.spend(_PER_MASK_BYTE * self._written[store].size)
        mask = np.zeros(self._written[store].size, bool)
        for what, test in ((one, False), (other, True)):
            if isinstance(what, Span):
                part = mask[what.start : what.start + what.length]
                if test:
                    return bool(part.any())
                part[:] = True
            elif test:
                return memory.any_marked(mask, what)
            else:
                memory.mark(mask, what)
        return False


def build(
    operator: NpuOperator,
    regions: list[Region | None],
    checker: AccessChecker,
) -> list[Operation]:
    """Decodes and checks one command stream.

    Args:
        operator: the `ethos-u` operator.
        regions: the place of each region number.
        checker: the state of memory before the stream, updated by it.

    Raises:
        NpuError: one of its kinds; the message begins with the command's position.
    """
    registers = Registers(regions)
    shram = Region("SHRAM", SHRAM, 0, operator.shram_bytes, True)
    checker.restart(shram.size)
    program: list[Operation] = []
    checker.spend(_PER_COMMAND * operator.words.size)
    for command in decode(operator.words):
        registers.begin(command.position)
        try:
            operation = _step(command, registers, checker, operator, shram)
        except NpuError as error:
            raise located(error, command.position) from None
        if operation is not None:
            program.append(operation)
    return program


def located(error: NpuError, position: object) -> NpuError:
    """`error` with the command's position in front, unless it has it already."""
    text = str(error)
    return error if text.startswith(str(position)) else type(error)(f"{position}: {text}")


def _step(
    command: Command,
    registers: Registers,
    checker: AccessChecker,
    operator: NpuOperator,
    shram: Region,
) -> Operation | None:
    name = command.name
    if not name.startswith("OP_"):
        registers.write(command)
        return None
    if name == "OP_DMA_START":
        dma = build_dma(registers, command.position, shram)
        checker.copy(dma)
        return dma
    operation: BlockOperation
    if name in ("OP_CONV", "OP_DEPTHWISE"):
        operation = build_convolution(
            registers, command, name == "OP_DEPTHWISE", operator.macs, shram
        )
    elif name == "OP_POOL":
        operation = build_pooling(registers, command, shram)
    elif name == "OP_ELEMENTWISE":
        operation = build_elementwise(registers, command, shram)
    else:
        if name == "OP_DMA_WAIT":
            checker.wait_copies(command.param)
        elif name == "OP_KERNEL_WAIT":
            checker.wait_kernels(command.param)
        return None  # OP_STOP, OP_IRQ, OP_PMU_MASK change no data
    checker.kernel(operation)
    return operation
