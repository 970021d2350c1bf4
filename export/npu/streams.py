"""What the NPU reads for a convolution: runs of bytes, one pair of them for each core."""

from __future__ import annotations

import dataclasses

from udc_tf.export.npu.memory import Region
from udc_tf.export.npu.registers import Registers
from udc_tf.export.npu.weight_order import WeightShape

_SCALE_RECORD = 10  # bytes per channel: 40-bit bias, 32-bit scale, shift


@dataclasses.dataclass(frozen=True)
class Span:
    """A run of bytes of a store."""

    name: str
    store: str
    start: int
    length: int


@dataclasses.dataclass(frozen=True)
class Streams:
    """What one core reads for a convolution, and the kernel that it makes of it."""

    weights: Span
    scales: Span
    shape: WeightShape


def core_shape(whole: WeightShape, core: int) -> WeightShape:
    """The kernel of one of two cores, which take output channels in turn."""
    return dataclasses.replace(
        whole,
        ofm_depth=(whole.ofm_depth + 1 - core) // 2,
        block_depth=(whole.block_depth + 1 - core) // 2,
    )


def read_streams(registers: Registers, shape: WeightShape, core: int) -> Streams:
    """What the registers say that a core reads for its kernel."""
    number = str(core) if core else ""
    weights, scales = (
        span_of(
            registers,
            name,
            registers.region(f"{register}_REGION"),
            registers.address(f"{register}{number}_BASE"),
            registers.address(f"{register}{number}_LENGTH"),
        )
        for name, register in (("weights", "WEIGHT"), ("scales", "SCALE"))
    )
    needed = _SCALE_RECORD * shape.ofm_depth
    if scales.length < needed:
        raise registers.fail(
            f"{shape.ofm_depth} channels need {needed} bytes of scales. Received: {scales.length}"
        )
    return Streams(weights, dataclasses.replace(scales, length=needed), shape)


def span_of(registers: Registers, name: str, region: Region, start: int, length: int) -> Span:
    """Bytes of a region, from its start; checked to be inside."""
    if start + length > region.size:
        raise registers.fail(
            f"{name} takes bytes {start} to {start + length} of {region.name}, "
            f"which has {region.size}"
        )
    return Span(name, region.store, region.offset + start, length)
