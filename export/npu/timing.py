"""Estimates the cycles of a command stream, by the cost model that Vela reports with.

Nothing is simulated. Each operation costs the more of two things: computing, where the multipliers
and the output stage work side by side block by block, and memory, where bursts move what the blocks
need. Copies hide behind the operations before them as far as the stream lets them. How fast the
parts of each accelerator are is Vela's knowledge; the memories are those of the system that it
assumes by default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from udc_tf.export.npu.memory import FeatureMap
from udc_tf.export.npu.operations import (
    UNARY,
    BlockOperation,
    Convolution,
    Dma,
    Elementwise,
    Operation,
    Pooling,
    extent,
    reads,
)
from udc_tf.export.npu.streams import Span

SYSTEM, MEMORY_MODE = "Ethos_U55_High_End_Embedded", "Shared_Sram"

Shape = tuple[int, int, int]

_SUB_KERNEL = 8  # a larger kernel is worked off in parts of so many rows and columns
_COMMAND_UNITS = 4  # blocks whose commands overlap
_IFM_DEPTHS = {8: 32, 16: 16, 32: 32}  # of a block, by bits of an element
_LOOK_UP = 1.0  # cycles of a look-up table per element
_RUNNING_KERNELS = 2
_CONSTANT = "flash"  # how the names of constant stores begin


@dataclasses.dataclass(frozen=True)
class Memory:
    """A memory: its latencies in cycles, longest burst in bytes, and bytes per cycle."""

    read_latency: int
    write_latency: int
    burst: int
    bandwidth: float


SRAM = Memory(32, 32, 32, 8.0)
FLASH = Memory(64, 0, 128, 1.0)
SHRAM = Memory(0, 0, 1, 8.0)


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """How fast the parts of an Ethos-U55 are.

    Attributes:
        micro_block: height, width and depth of what the multipliers make at once.
        unary_32: cycles of the output stage per element, for an elementwise operation on one 32-bit
            input; the others likewise, for two such inputs, a product of 32 and of fewer bits or a
            wide accumulator, a sum, a maximum, and everything else.
    """

    macs: int
    micro_block: Shape
    unary_32: float
    binary_32: float
    product_32: float
    product: float
    sum: float
    maximum: float
    other: float


ACCELERATORS = {
    npu.macs: npu
    for npu in (
        Accelerator(32, (1, 1, 4), 2.0, 3.0, 3.0, 3.0, 6.0, 1.0, 2.0),
        Accelerator(64, (1, 1, 8), 1.0, 1.5, 1.5, 1.5, 3.0, 0.5, 1.0),
        Accelerator(128, (1, 2, 8), 0.75, 1.25, 0.75, 0.75, 1.5, 0.25, 0.5),
        Accelerator(256, (2, 2, 8), 0.625, 1.125, 0.5, 0.375, 0.75, 0.125, 0.25),
    )
}


def _memory(store: str) -> Memory:
    """The memory that holds a byte store."""
    if store == "SHRAM":
        return SHRAM
    return FLASH if store.startswith(_CONSTANT) else SRAM


def estimate(program: Sequence[Operation], macs: int) -> list[int]:
    """Cycles by which each operation of a stream makes it longer; their sum is the stream's.

    Args:
        program: the operations in order.
        macs: MACs per cycle of the accelerator.
    """
    npu = ACCELERATORS[macs]
    out: list[int] = []
    copies: list[tuple[Dma, float]] = []  # with the cycle in which each ends
    kernels: list[tuple[BlockOperation, float, float]] = []  # with start and end
    end = 0.0
    for operation in program:
        before = end
        if isinstance(operation, Dma):
            start = max([kernels[-1][1] if kernels else 0.0, *(done for _, done in copies[-1:])])
            for kernel, _, done in kernels[-_RUNNING_KERNELS:]:
                if _touch(operation.destination, (*reads(kernel), kernel.ofm)):
                    start = max(start, done)
            copies.append((operation, start + _copy_cycles(operation)))
        else:
            needs = (*reads(operation), operation.ofm)
            start = max([end, *(done for copy, done in copies if _touch(copy.destination, needs))])
            end = start + max(_compute_cycles(operation, npu), _memory_cycles(operation, npu))
            kernels.append((operation, start, end))
            copies = [(copy, done) for copy, done in copies if done > start]
        out.append(round(end) - round(before))
    return out


def _touch(span: Span, others: Iterable[FeatureMap | Span]) -> bool:
    store, low, high = extent(span)
    return any(s == store and a < high and low < b for s, a, b in map(extent, others))


def _copy_cycles(copy: Dma) -> int:
    source, target = _memory(copy.source.store), _memory(copy.destination.store)
    length = copy.source.length
    return max(
        int(length / source.bandwidth) + source.read_latency,
        int(length / target.bandwidth) + source.write_latency,
    )


# Computing


def _compute_cycles(operation: BlockOperation, npu: Accelerator) -> float:
    if isinstance(operation, Elementwise):
        return _elementwise_cycles(operation, npu)
    ofm, block = operation.ofm.shape, _least(operation.ofm.shape, operation.block)
    micro = _micro_block(operation, npu)
    in_block = math.prod(map(_ceil_div, block, micro))
    blocks = math.prod(map(_ceil_div, ofm, micro)) / in_block
    output: float = math.ceil(_output_cycles(operation, npu) * math.prod(block))
    if isinstance(operation, Convolution):
        latency = _memory(operation.scales.store).read_latency
        output = max(output, 10 * block[2] * latency / 256)
    multiply = _multiply_cycles(operation, npu, block, micro)
    fetch, store = _block_transfers(operation, npu)
    # Commands of several blocks overlap, but for what fetching and storing differ by.
    least = (multiply + output + (abs(fetch - store) if blocks > 1 else 0)) / _COMMAND_UNITS
    slow, fast = sorted((max(multiply, least), max(output, least)), reverse=True)
    return int(slow * blocks + fast) + fetch + store


def _elementwise_cycles(operation: Elementwise, npu: Accelerator) -> float:
    ofm = operation.ofm
    elements = math.prod(_stored(ofm, ofm.shape))
    each = _output_cycles(operation, npu)
    commands = max(_block_transfers(operation, npu)) / math.prod(operation.block) + each
    return max(math.ceil(each * elements), math.ceil(commands / _COMMAND_UNITS * elements))


def _micro_block(operation: Convolution | Pooling, npu: Accelerator) -> Shape:
    height, width, _ = operation.ofm.shape
    # One row of an even width is made four columns at a time where two rows would be.
    single = height == 1 and width % 2 == 0 and operation.kernel.size[0] == 1
    if npu.micro_block[0] == 2 and single and operation.kind == "CONV":
        return (1, 4, npu.micro_block[2])
    return npu.micro_block


def _multiply_cycles(
    operation: Convolution | Pooling, npu: Accelerator, block: Shape, micro: Shape
) -> int:
    """Cycles that the multipliers take for one block."""
    rows, columns, depth = map(_ceil_div, block, micro)
    bits = 8 * operation.ifm.dtype.itemsize
    ifm_depth = min(operation.ifm.shape[2], _ifm_block(operation, npu)[2])
    part_kernel = _is_part_kernel(operation)
    weights = 32 * micro[2] // 8  # cycles until the weights of a step have arrived
    total = 0
    for taps in _sub_kernels(operation.kernel.size):
        if isinstance(operation, Pooling) and operation.mode != "REDUCE_SUM":
            steps = 1
            cycles = max(4, taps) * rows * columns * depth
            if npu.macs != 32:
                cycles *= bits // 2
        elif operation.kind == "DEPTHWISE":
            steps = _ceil_div(taps, 4)
            cycles = max(weights, 4 * rows * columns * (bits // 8)) * steps * depth
        else:
            steps = _ceil_div(taps, 2 if bits == 16 else 4) if part_kernel else taps
            cycles = max(weights, 4 * rows * columns) * steps * depth
            if part_kernel:
                cycles *= _ceil_div(ifm_depth, 8)
        delay = _delay_cycles(operation, npu, (rows, columns, depth), steps)
        if part_kernel:
            delay *= _ceil_div(ifm_depth, 8)
        total += cycles + delay
    if operation.kind in ("CONV", "POOL REDUCE_SUM"):
        total *= _ceil_div(operation.ifm.shape[2], ifm_depth)
    return total


def _delay_cycles(
    operation: Convolution | Pooling, npu: Accelerator, micro_blocks: Shape, steps: int
) -> int:
    """Cycles lost where one micro-block follows itself."""
    rows, columns, depth = micro_blocks
    wide = operation.accumulator_bits == 40
    delay = (7 if wide else 3) if npu.macs == 32 else (3 if wide and npu.macs <= 128 else 2)
    lost = 0
    if rows == columns == 1:
        lost = delay * steps if depth == 1 else delay * (steps - 1) * depth
    if npu.macs == 32 and wide and depth > 1 and 1 in (rows, columns):
        lost += delay * depth
    return lost


def _output_cycles(operation: BlockOperation, npu: Accelerator) -> float:
    """Cycles of the output stage for one element."""
    mode = operation.mode if isinstance(operation, Elementwise) else None
    wide = mode is None and operation.accumulator_bits == 40
    if mode is not None and operation.ifm.dtype.itemsize == 4:
        cycles = npu.unary_32 if mode in UNARY else npu.binary_32
    elif mode == "MUL" and operation.ofm.dtype.itemsize == 4:
        cycles = npu.product_32
    elif wide or mode == "MUL":
        cycles = npu.product
    elif mode in ("ADD", "SUB"):
        cycles = npu.sum
    else:
        cycles = npu.maximum if operation.kind == "POOL MAX" else npu.other
    # A clamp costs no more than the output stage does anyway.
    return cycles if operation.table is None else max(cycles, _LOOK_UP)


# Memory


def _memory_cycles(operation: BlockOperation, npu: Accelerator) -> float:
    """Cycles that the busiest memory needs for all that the operation moves."""
    ifm, ofm = operation.ifm, operation.ofm
    ifm_block, block = _ifm_block(operation, npu), operation.block
    moved: dict[Memory, float] = {}

    def add(store: str, count: float) -> None:
        memory = _memory(store)
        moved[memory] = moved.get(memory, 0) + count

    written = math.prod(_stored(ofm, ofm.shape))
    add(ofm.region.store, _transfer(ofm, block, written, reading=False))
    if isinstance(operation, Elementwise):
        for source in (ifm, operation.ifm2):
            if source is not None and source.elements > 1:
                count = math.prod(_stored(source, ofm.shape))
                add(source.region.store, _transfer(source, ifm_block, count, reading=True))
    else:
        blocks = list(map(_ceil_div, ofm.shape, _least(ofm.shape, block)))
        if operation.kind != "CONV" and operation.kind != "POOL REDUCE_SUM":
            blocks[2] = 1
        height, width, _ = _stored(ifm, _least(ifm.shape, ifm_block))
        fetched = height * width * _stored(ifm, ifm.shape)[2] * math.prod(blocks)
        fetched *= len(_sub_kernels(operation.kernel.size))
        add(ifm.region.store, _transfer(ifm, ifm_block, fetched, reading=True))
        if isinstance(operation, Convolution):
            rereads = blocks[0] * blocks[1]
            add(operation.weights.store, operation.weights.length * rereads)
            # Scales that were copied to SRAM beside the weights count as if read from flash.
            add(_CONSTANT, operation.scales.length * rereads)
    return max(int(count / memory.bandwidth) for memory, count in moved.items())


def _block_transfers(operation: BlockOperation, npu: Accelerator) -> tuple[int, int]:
    """Cycles to fetch the input of one block, and to store its output."""
    ifm_block, fetch = _ifm_block(operation, npu), 0
    sources = [operation.ifm]
    if isinstance(operation, Elementwise) and operation.ifm2 is not None:
        sources.append(operation.ifm2)
    for source in sources:
        size = math.prod(_least(source.shape, ifm_block)) * source.dtype.itemsize
        memory = _memory(source.region.store)
        moved = _transfer(source, ifm_block, size, reading=True)
        fetch = max(fetch, memory.read_latency + int(moved / memory.bandwidth))
    ofm, memory = operation.ofm, _memory(operation.ofm.region.store)
    size = math.prod(_least(ofm.shape, operation.block)) * ofm.dtype.itemsize
    moved = _transfer(ofm, operation.block, size, reading=False)
    return fetch, memory.write_latency + int(moved / memory.bandwidth)


def _transfer(what: FeatureMap, block: Shape, count: int, reading: bool) -> int:
    """`count` bytes, made more by bursts that are shorter than the memory's."""
    size = what.dtype.itemsize
    _, width, depth = block
    if what.brick:
        whole = what.shape[1] * size * 16 == depth
        burst = size * width * (depth if whole else 16)
    else:
        whole = what.shape[2] * size == depth and (reading or depth <= 16)
        burst = size * width * depth if whole else size * depth
        if not reading and not whole:
            burst = min(64, 16 * size, burst)
    longest = _memory(what.region.store).burst
    return count * longest // min(longest, burst)


# Geometry


def _ifm_block(operation: BlockOperation, npu: Accelerator) -> Shape:
    """The part of the input that one block of output needs."""
    height, width, depth = operation.block
    if isinstance(operation, Elementwise):
        rows, columns, _ = npu.micro_block
        return _rounded_up(height, rows), _rounded_up(width, columns), depth
    kernel = operation.kernel
    sides = []
    for axis, count in enumerate((height, width)):
        reach = min(kernel.reach[axis], _SUB_KERNEL)
        needed = (count - 1) * kernel.stride[axis] + reach + (kernel.upscale == 1)
        needed = _ceil_div(needed, 2 if kernel.upscale else 1)
        sides.append(_rounded_up(needed, npu.micro_block[axis]))
    if operation.kind in ("CONV", "POOL REDUCE_SUM"):
        bits = 8 * operation.ifm.dtype.itemsize
        deepest = 16 if _is_part_kernel(operation) else _IFM_DEPTHS[bits]
        depth = _rounded_up(min(operation.ifm.shape[2], deepest), 4 if bits == 16 else 8)
    return sides[0], sides[1], depth


def _is_part_kernel(operation: Convolution | Pooling) -> bool:
    return operation.kind == "CONV" and operation.kernel.part_kernel


def _sub_kernels(size: tuple[int, int]) -> list[int]:
    """Elements of the parts that a kernel is worked off in."""
    rows, columns = ([min(n - at, _SUB_KERNEL) for at in range(0, n, _SUB_KERNEL)] for n in size)
    return [row * column for row in rows for column in columns]


def _stored(what: FeatureMap, shape: Shape) -> Shape:
    """`shape` as it lies in memory: bricks are 16 channels deep."""
    return (*shape[:2], _rounded_up(shape[2], 16)) if what.brick else shape


def _least(one: Shape, other: Shape) -> Shape:
    height, width, depth = map(min, one, other)
    return height, width, depth


def _ceil_div(count: int, part: int) -> int:
    return -(-count // part)


def _rounded_up(count: int, part: int) -> int:
    return _ceil_div(count, part) * part
