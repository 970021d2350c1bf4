"""Puts the weights of a decoded stream where their kernel needs them.

The NPU consumes weights in the order its MAC array walks a convolution: blocks of output channels,
blocks of input channels, pieces of the kernel, then micro-blocks of channels. `stream_order` is
that walk, as the place of each stream position in an [output, ky, kx, input] kernel.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

_IFM_MICRO_DEPTH = 8
_CACHED_LIMIT = 1 << 18  # positions: longer orders are made anew, or 64 would take gigabytes
_PADDING = -1  # a stream position that fills up a block and belongs to no weight


@dataclasses.dataclass(frozen=True)
class WeightShape:
    """What decides the order of a stream.

    Attributes:
        ofm_depth: output channels of this stream.
        kernel: undilated kernel height and width.
        ifm_depth: input channels; 1 for a depthwise kernel.
        block_depth: OFM_BLK_DEPTH.
        dilation: dilation of y and x.
        ifm_bits: 8 or 16.
        macs: the accelerator's MACs per cycle.
    """

    ofm_depth: int
    kernel: tuple[int, int]
    ifm_depth: int
    block_depth: int
    dilation: tuple[int, int]
    part_kernel: bool
    depthwise: bool
    ifm_bits: int
    macs: int

    @property
    def ofm_micro_depth(self) -> int:
        """Output channels of a micro-block."""
        return 4 if self.macs == 32 else 8

    @property
    def element_multiple(self) -> int:
        """Kernel elements are padded to a multiple of this."""
        if self.depthwise:
            return 4
        if self.part_kernel:
            return 4 if self.ifm_bits == 8 else 2
        return 1

    @property
    def weights(self) -> int:
        """Weights of the kernel, without padding."""
        return self.ofm_depth * self.kernel[0] * self.kernel[1] * self.ifm_depth

    @property
    def ifm_block_depth(self) -> int:
        """Input channels of a block."""
        if self.depthwise:
            return 1
        return 16 if self.part_kernel or self.ifm_bits == 16 else 32

    @property
    def blocks(self) -> int:
        """Blocks the walk visits."""
        pieces = [-(-k // (8 // d)) for k, d in zip(self.kernel, self.dilation, strict=True)]
        ofm_blocks = -(-self.ofm_depth // self.block_depth)
        return ofm_blocks * -(-self.ifm_depth // self.ifm_block_depth) * pieces[0] * pieces[1]

    @property
    def stream_bound(self) -> int:
        """At least as many as the stream's positions, padding included."""
        height, width = (min(k, 8 // d) for k, d in zip(self.kernel, self.dilation, strict=True))
        elements = _round_up(height * width, self.element_multiple)
        outputs = _round_up(min(self.block_depth, self.ofm_depth), self.ofm_micro_depth)
        return self.blocks * elements * outputs * self.ifm_block_depth


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def stream_order(shape: WeightShape) -> np.ndarray:
    """For each stream position the index into the flat [O, KH, KW, I] kernel, -1 for padding.

    Example:
        >>> shape = WeightShape(8, (1, 1), 8, 8, (1, 1), True, False, 8, 128)
        >>> order = stream_order(shape)  # the one element is padded to four
        >>> order[:64].tolist() == list(range(64)), order.size
        (True, 256)
    """
    if shape.stream_bound > _CACHED_LIMIT:
        return _stream_order.__wrapped__(shape)
    return _stream_order(shape)


@functools.lru_cache(maxsize=64)
def _stream_order(shape: WeightShape) -> np.ndarray:
    height, width = shape.kernel
    ifm_block = shape.ifm_block_depth
    parts = []
    for ofm_start in range(0, shape.ofm_depth, shape.block_depth):
        ofm_depth = min(shape.block_depth, shape.ofm_depth - ofm_start)
        for ifm_start in range(0, shape.ifm_depth, ifm_block):
            ifm_depth = min(ifm_block, shape.ifm_depth - ifm_start)
            if not shape.part_kernel:
                ifm_depth = ifm_block
            for y_start in range(0, height, 8 // shape.dilation[0]):
                y_count = min(8 // shape.dilation[0], height - y_start)
                for x_start in range(0, width, 8 // shape.dilation[1]):
                    x_count = min(8 // shape.dilation[1], width - x_start)
                    parts.append(
                        _block_order(
                            shape,
                            (ofm_start, ofm_depth),
                            (ifm_start, ifm_depth),
                            (y_start, y_count),
                            (x_start, x_count),
                        )
                    )
    order = np.concatenate(parts)
    order.setflags(write=False)
    return order


def _block_order(
    shape: WeightShape,
    ofm: tuple[int, int],
    ifm: tuple[int, int],
    y: tuple[int, int],
    x: tuple[int, int],
) -> np.ndarray:
    """The walk inside one block: (start, count) of output channels, input channels, rows, columns.

    Axes of the grid, outermost first: IFM micro-block (part-kernel), OFM micro-block, kernel
    element, IFM micro-block (depth-first), OFM channel, IFM channel.
    """
    height, width = shape.kernel
    micro_ofm = shape.ofm_micro_depth
    micro_ifm = 1 if shape.depthwise else _IFM_MICRO_DEPTH
    ofm_micros = _round_up(ofm[1], micro_ofm) // micro_ofm
    ifm_micros = _round_up(ifm[1], micro_ifm) // micro_ifm
    elements = np.arange(_round_up(y[1] * x[1], shape.element_multiple))

    def axis(values: np.ndarray | int, position: int) -> np.ndarray:
        dims = [1] * 6
        dims[position] = -1
        return np.reshape(values, dims)

    ifm_position = 0 if shape.part_kernel else 3
    out = ofm[0] + axis(np.arange(ofm_micros) * micro_ofm, 1) + axis(np.arange(micro_ofm), 4)
    into = (
        ifm[0]
        + axis(np.arange(ifm_micros) * micro_ifm, ifm_position)
        + axis(np.arange(micro_ifm), 5)
    )
    row = axis(y[0] + elements // x[1], 2)
    column = axis(x[0] + elements % x[1], 2)
    index = ((out * height + row) * width + column) * shape.ifm_depth + into
    valid = (out < ofm[0] + ofm[1]) & (into < min(ifm[0] + ifm[1], shape.ifm_depth))
    valid = valid & axis(elements < y[1] * x[1], 2)
    return np.where(valid, index, _PADDING).ravel().astype(np.int32)


def to_kernel(stream: np.ndarray, shape: WeightShape, order: np.ndarray) -> np.ndarray:
    """Reorders a decoded stream into a kernel of [KH, KW, I, O], the layout matrices want."""
    kernel = np.zeros(shape.weights, np.int16)
    valid = order >= 0
    kernel[order[valid]] = stream[valid]
    grid = kernel.reshape(shape.ofm_depth, *shape.kernel, shape.ifm_depth)
    return np.ascontiguousarray(grid.transpose(1, 2, 3, 0))
