"""The operations of a command stream, as data: built once from registers, executed many times."""

from __future__ import annotations

import dataclasses
from typing import Any

from udc_tf.export.npu.command_words import Command, Position
from udc_tf.export.npu.device import ONE_CORE
from udc_tf.export.npu.memory import FeatureMap, Region
from udc_tf.export.npu.registers import Activation, Kernel, Registers
from udc_tf.export.npu.streams import Span, Streams, core_shape, read_streams, span_of
from udc_tf.export.npu.weight_order import WeightShape

POOL_MODES = ("MAX", "AVERAGE", "REDUCE_SUM")
ELEMENTWISE_MODES = ("MUL", "ADD", "SUB", "MIN", "MAX", "LRELU", "ABS", "CLZ", "SHR", "SHL")
UNARY = ("LRELU", "ABS", "CLZ")

_CONV_KERNEL = (64, 64 * 64)  # largest dilated height, largest area
_POOL_KERNEL = (256, 256 * 256)
_TABLE_AREA = 2048  # bytes of look-up tables at the end of SHRAM
_GLOBAL_SCALE = 1 << 8  # OFM_PRECISION: one scale for all channels
FOOTPRINT_LIMIT = 1 << 29  # bytes that one operation may take on a host while it runs
_INTERNAL = 1 << 8  # DMA region: SHRAM instead of a region number

# Cost on a host, in matrix multiply-adds (about 0.1 ns each). What a command can repeat for free on
# the NPU costs Python time here; counting it is what keeps a damaged stream from running for hours.
_PER_OPERATION = 4 * 10**6
_PER_TAP = 2 * 10**4
_PER_WEIGHT = 5 * 10**3
_PER_WEIGHT_BLOCK = 5 * 10**5
_PER_ELEMENT = 50
_ELEMENT_BYTES = 48  # of intermediate results, some of them int64; an addition was seen to take 45
UNROLLED_LIMIT = 1 << 22  # elements of a convolution's unrolled input held at once


@dataclasses.dataclass(frozen=True)
class Dma:
    """A copy of bytes."""

    position: Position
    source: Span
    destination: Span

    @property
    def work(self) -> int:
        """Cost in matrix multiply-adds."""
        return 10 * self.source.length + _PER_OPERATION

    @property
    def footprint(self) -> int:
        """Bytes that intermediate results take on a host, for one item of a batch."""
        return 2 * self.source.length + 1


@dataclasses.dataclass(frozen=True)
class Block:
    """What all operations on feature maps share."""

    position: Position
    kind: str
    ifm: FeatureMap
    ofm: FeatureMap
    activation: Activation
    rounding: int
    table: Span | None
    accumulator_bits: int
    block: tuple[int, int, int]  # height, width, depth of what is computed at once


@dataclasses.dataclass(frozen=True)
class Convolution(Block):
    """CONV or DEPTHWISE.

    Attributes:
        weights, scales: what the NPU, or its first core, reads.
        weight_shape: of the whole kernel.
        second: of an NPU with two cores the second's, which makes the odd output channels.
    """

    kernel: Kernel
    weights: Span
    scales: Span
    weight_shape: WeightShape
    second: Streams | None = None

    @property
    def streams(self) -> tuple[Streams, ...]:
        """One for each core that works."""
        if self.second is None:
            return (Streams(self.weights, self.scales, self.weight_shape),)
        first = Streams(self.weights, self.scales, core_shape(self.weight_shape, 0))
        return (first, self.second)

    @property
    def work(self) -> int:
        """Cost in matrix multiply-adds; the depthwise kernel runs ten times slower on a host."""
        shape = self.weight_shape
        taps = self.kernel.size[0] * self.kernel.size[1]
        sums = self.ofm.elements * taps * shape.ifm_depth * (10 if shape.depthwise else 1)
        parts = 1 + 4 * sums // (self.ofm.shape[2] * UNROLLED_LIMIT)
        decoding = _PER_WEIGHT * shape.stream_bound + _PER_WEIGHT_BLOCK * shape.blocks
        moved = _PER_ELEMENT * (_window_elements(self) + self.ofm.elements)
        return sums + decoding + moved + _PER_TAP * taps * parts + _PER_OPERATION

    @property
    def footprint(self) -> int:
        """Bytes that intermediate results take on a host, for one item of a batch."""
        return _ELEMENT_BYTES * (_window_elements(self) + self.ofm.elements)


@dataclasses.dataclass(frozen=True)
class Pooling(Block):
    """POOL: the mode is one of `POOL_MODES`."""

    mode: str
    kernel: Kernel
    scale: tuple[int, int] | None

    @property
    def work(self) -> int:
        """Cost in matrix multiply-adds."""
        taps = self.kernel.size[0] + self.kernel.size[1]  # rows and columns one after the other
        elements = self.ofm.elements * taps
        return 10 * elements + _PER_ELEMENT * self._moved + _PER_TAP * taps + _PER_OPERATION

    @property
    def footprint(self) -> int:
        """Bytes that intermediate results take on a host, for one item of a batch."""
        return _ELEMENT_BYTES * self._moved

    @property
    def _moved(self) -> int:
        return _window_elements(self) + self.ofm.elements * self.kernel.stride[1]


@dataclasses.dataclass(frozen=True)
class Elementwise(Block):
    """ELEMENTWISE: the mode is one of `ELEMENTWISE_MODES`."""

    mode: str
    ifm2: FeatureMap | None
    scalar: int | None
    ifm2_zero_point: int
    swapped: bool
    operand_scales: tuple[tuple[int, int], tuple[int, int]] | None
    scale_mode: int
    scale: tuple[int, int] | None

    @property
    def work(self) -> int:
        """Cost in matrix multiply-adds."""
        return _PER_ELEMENT * self.ofm.elements + _PER_OPERATION

    @property
    def footprint(self) -> int:
        """Bytes that intermediate results take on a host, for one item of a batch."""
        return _ELEMENT_BYTES * self.ofm.elements


BlockOperation = Convolution | Pooling | Elementwise  # what works on feature maps
Operation = Dma | BlockOperation


def _window_elements(operation: Convolution | Pooling) -> int:
    """Elements of the input as the kernel sees it, padded and upscaled."""
    height, width = operation.kernel.covered(operation.ofm.shape)
    return height * width * operation.ifm.shape[2]


def reads(operation: Operation) -> list[FeatureMap | Span]:
    """Everything an operation reads."""
    if isinstance(operation, Dma):
        return [operation.source]
    out: list[FeatureMap | Span] = [operation.ifm]
    if isinstance(operation, Convolution):
        for core in operation.streams:
            out += [core.weights, core.scales]
    if isinstance(operation, Elementwise) and operation.ifm2 is not None:
        out.append(operation.ifm2)
    if operation.table is not None:
        out.append(operation.table)
    return out


def extent(what: FeatureMap | Span) -> tuple[str, int, int]:
    """Its store, the first byte of it that is touched, and the one after the last."""
    if isinstance(what, Span):
        return what.store, what.start, what.start + what.length
    return (what.region.store, *what.span())


def build_dma(registers: Registers, position: Position, shram: Region) -> Dma:
    """The copy that OP_DMA_START begins."""
    length = registers.address("DMA0_LEN")

    def end(name: str) -> Span:
        bits = registers.take(f"DMA0_{name}_REGION")
        if bits & ~(_INTERNAL | 0xFF):
            raise registers.fail(f"only one-dimensional copies exist. Received: {bits:#06x}")
        region = shram if bits & _INTERNAL else registers.region(f"DMA0_{name}_REGION")
        if name == "DST" and not region.writable:
            raise registers.fail("writes to flash, which is read-only")
        return span_of(registers, f"DMA {name}", region, registers.address(f"DMA0_{name}"), length)

    return Dma(position, end("SRC"), end("DST"))


def build_convolution(
    registers: Registers, command: Command, depthwise: bool, macs: int, shram: Region
) -> Convolution:
    """The operation of OP_CONV or OP_DEPTHWISE."""
    ofm = registers.ofm()
    kernel = registers.kernel(_CONV_KERNEL)
    ifm = _window_ifm(registers, ofm, kernel, registers.size("IFM_DEPTH"))
    if depthwise and ifm.shape[2] != ofm.shape[2]:
        raise registers.fail(
            "a depthwise kernel keeps its channels. "
            f"Received: {ifm.shape[2]} in, {ofm.shape[2]} out"
        )
    if ifm.dtype.itemsize > 2:
        raise registers.fail("a convolution reads 8 or 16 bits. Received: 32-bit IFM")
    if registers.take("OFM_PRECISION") & _GLOBAL_SCALE:
        raise registers.fail("a convolution with one scale for all channels is not executed")
    whole = WeightShape(
        ofm_depth=ofm.shape[2],
        kernel=kernel.size,
        ifm_depth=1 if depthwise else ifm.shape[2],
        block_depth=registers.size("OFM_BLK_DEPTH"),
        dilation=kernel.dilation,
        part_kernel=kernel.part_kernel and not depthwise,
        depthwise=depthwise,
        ifm_bits=8 * ifm.dtype.itemsize,
        macs=macs,
    )
    # One output channel is all the first core's; what the second would read is then not set.
    both = macs > ONE_CORE and registers.take("PARALLEL_MODE") == 1 and whole.ofm_depth > 1
    shapes = [core_shape(whole, core) for core in (0, 1)] if both else [whole]
    first, *rest = (read_streams(registers, shape, core) for core, shape in enumerate(shapes))
    return Convolution(
        **_block(registers, command, "DEPTHWISE" if depthwise else "CONV", ifm, ofm, shram),
        kernel=kernel,
        weights=first.weights,
        scales=first.scales,
        weight_shape=whole,
        second=rest[0] if rest else None,
    )


def build_pooling(registers: Registers, command: Command, shram: Region) -> Pooling:
    """The operation of OP_POOL."""
    if command.param >= len(POOL_MODES):
        raise registers.fail(f"pooling modes are {POOL_MODES}. Received: mode {command.param}")
    mode = POOL_MODES[command.param]
    ofm = registers.ofm()
    kernel = registers.kernel(_POOL_KERNEL)
    ifm = _window_ifm(registers, ofm, kernel, registers.size("IFM_DEPTH"))
    if ofm.shape[2] != (1 if mode == "REDUCE_SUM" else ifm.shape[2]):
        raise registers.fail(f"{mode} pooling from {ifm.shape} cannot give {ofm.shape}")
    if mode == "REDUCE_SUM" and (kernel.size != (1, 1) or any(kernel.padding)):
        raise registers.fail(f"REDUCE_SUM runs over channels only. Received: {kernel}")
    if kernel.dilation != (1, 1):
        raise registers.fail(f"pooling has no dilation. Received: {kernel}")
    return Pooling(
        **_block(registers, command, f"POOL {mode}", ifm, ofm, shram),
        mode=mode,
        kernel=kernel,
        scale=_global_scale(registers),
    )


def build_elementwise(registers: Registers, command: Command, shram: Region) -> Elementwise:
    """The operation of OP_ELEMENTWISE."""
    if command.param >= len(ELEMENTWISE_MODES):
        raise registers.fail(
            f"elementwise modes are {ELEMENTWISE_MODES}. Received: mode {command.param}"
        )
    mode = ELEMENTWISE_MODES[command.param]
    ofm = registers.ofm()
    if registers.size("IFM_DEPTH") != ofm.shape[2]:
        raise registers.fail(
            f"IFM and OFM have the same depth. Received: {registers.size('IFM_DEPTH')} and "
            f"{ofm.shape[2]}"
        )
    ifm = registers.ifm(ofm.shape)
    ifm2, scalar, swapped, zero_point = None, None, False, 0
    if mode not in UNARY:
        ifm2, scalar, swapped, zero_point = _second_operand(registers, ofm)
    scaled = mode in ("ADD", "SUB")
    return Elementwise(
        **_block(registers, command, mode, ifm, ofm, shram),
        mode=mode,
        ifm2=ifm2,
        scalar=scalar,
        ifm2_zero_point=zero_point,
        swapped=swapped,
        operand_scales=(
            (registers.scale("OPA_SCALE"), registers.scale("OPB_SCALE")) if scaled else None
        ),
        scale_mode=registers.take("IFM_PRECISION") >> 8 & 3,
        scale=_global_scale(registers),
    )


def _second_operand(
    registers: Registers, ofm: FeatureMap
) -> tuple[FeatureMap | None, int | None, bool, int]:
    broadcast = registers.take("IFM2_BROADCAST")
    if broadcast & ~0xC7:
        raise registers.fail(f"IFM2_BROADCAST has unknown bits. Received: {broadcast:#06x}")
    swapped = bool(broadcast & 0x40)
    if broadcast & 0x80:
        unsigned = not registers.take("IFM2_PRECISION") & 1
        read = registers.take if unsigned else registers.signed
        return None, read("IFM2_SCALAR"), swapped, read("IFM2_ZERO_POINT")
    height, width, depth = (1 if broadcast >> a & 1 else n for a, n in enumerate(ofm.shape))
    ifm2 = registers.ifm2((height, width, depth))
    return ifm2, None, swapped, ifm2.zero_point


def _window_ifm(registers: Registers, ofm: FeatureMap, kernel: Kernel, depth: int) -> FeatureMap:
    height, width = registers.window(ofm, kernel)
    if kernel.upscale:
        height, width = (height + 1) // 2, (width + 1) // 2
    return registers.ifm((height, width, depth))


def _block(
    registers: Registers,
    command: Command,
    kind: str,
    ifm: FeatureMap,
    ofm: FeatureMap,
    shram: Region,
) -> dict[str, Any]:
    activation = registers.activation(ofm)
    table = None
    if activation.table is not None:
        if ofm.dtype.itemsize == 2:
            raise registers.fail("16-bit look-up tables interpolate and are not executed")
        start = shram.size - _TABLE_AREA + 256 * activation.table
        table = span_of(registers, "look-up table", shram, start, 256 * ofm.dtype.itemsize)
    formats = {0: 32, 1: 40}
    acc_format = registers.take("ACC_FORMAT")
    if acc_format not in formats:
        raise registers.fail(f"ACC_FORMAT is 0 (32 bits) or 1 (40 bits). Received: {acc_format}")
    rounding = registers.take("OFM_PRECISION") >> 14
    if rounding > 2:
        raise registers.fail(f"OFM_PRECISION rounds by mode 0, 1 or 2. Received: {rounding}")
    return {
        "position": command.position,
        "kind": kind,
        "ifm": ifm,
        "ofm": ofm,
        "activation": activation,
        "rounding": rounding,
        "table": table,
        "accumulator_bits": formats[acc_format],
        "block": registers.block(),
    }


def _global_scale(registers: Registers) -> tuple[int, int] | None:
    if registers.take("OFM_PRECISION") & _GLOBAL_SCALE:
        return registers.scale("OFM_SCALE")
    return None
