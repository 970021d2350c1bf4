"""CONV and DEPTHWISE: integer sums computed exactly in floating point, then scaled per channel.

A float32 sum of integers is exact while no partial sum can reach 2^24, a float64 sum below 2^53.
The weights bound every partial sum in advance, so each operation takes the fastest type that is
exact for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from udc_tf.export.npu import memory, weight_order, weights
from udc_tf.export.npu.faults import WeightStreamError, WorkLimitError
from udc_tf.export.npu.operations import UNROLLED_LIMIT, Convolution
from udc_tf.export.npu.output_stage import Stores, check_fits, finish, shared_bytes
from udc_tf.export.npu.registers import Kernel
from udc_tf.export.npu.scaling import rescale
from udc_tf.export.npu.weight_order import WeightShape

_STREAM_LIMIT = 1 << 24
_ZEROS_PER_BIT = 32  # no stream bit can stand for more weights
_BYTES_PER_WEIGHT = 2  # no encoder needs more: stored plainly, a weight takes 9 bits
_STREAM_SLACK = 4096  # bytes, for headers and alignment


@dataclasses.dataclass(frozen=True)
class Decoded:
    """Weights and scales of one convolution, ready to use, and the bytes they came from."""

    read: tuple[bytes, ...]
    kernel: np.ndarray  # float, [ky, kx, input, output]
    bound: int  # no sum of products exceeds this
    bias: np.ndarray
    multiplier: np.ndarray
    shift: np.ndarray


class WeightCache:
    """Decoded weights by operation; valid as long as the bytes in memory are the same."""

    def __init__(self) -> None:
        self._entries: dict[int, Decoded] = {}

    def get(self, index: int, operation: Convolution, stores: Stores) -> Decoded:
        """The decoded weights of operation number `index`."""
        spans = (span for core in operation.streams for span in (core.weights, core.scales))
        read = tuple(shared_bytes(span, stores) for span in spans)
        entry = self._entries.get(index)
        if entry is None or entry.read != read:
            entry = decode(operation, read)
            self._entries[index] = entry
        return entry


def decode(operation: Convolution, read: tuple[bytes, ...]) -> Decoded:
    """Decodes what was read for `operation`: weights and scale records, core by core."""
    shape, cores = operation.weight_shape, operation.streams
    kernels = [decode_kernel(c.shape, b) for c, b in zip(cores, read[::2], strict=True)]
    records = [_scale_records(b, c.shape.ofm_depth) for c, b in zip(cores, read[1::2], strict=True)]
    kernel = _in_turn(kernels)
    limits = np.iinfo(operation.ifm.dtype)
    zero = operation.ifm.zero_point
    largest_input = max(abs(limits.min - zero), abs(limits.max - zero))
    axes = (0, 1) if shape.depthwise else (0, 1, 2)
    bound = int(np.abs(kernel, dtype=np.int64).sum(axes).max(initial=0)) * largest_input
    bias, multiplier, shift = (_in_turn(parts) for parts in zip(*records, strict=True))
    return Decoded(
        read=read,
        kernel=kernel.astype(np.float32 if bound < 1 << 24 else np.float64),
        bound=bound,
        bias=bias,
        multiplier=multiplier,
        shift=shift,
    )


def _in_turn(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Channels of the cores, the last axis, one after the other in turn."""
    if len(parts) == 1:
        return parts[0]
    whole = np.empty((*parts[0].shape[:-1], sum(p.shape[-1] for p in parts)), parts[0].dtype)
    for core, part in enumerate(parts):
        whole[..., core :: len(parts)] = part
    return whole


def decode_kernel(shape: WeightShape, stream: bytes) -> np.ndarray:
    """The weights of a stream as a kernel of [KH, KW, I, O].

    Raises:
        WeightStreamError: the stream is damaged, or is no stream of such a kernel.
        WorkLimitError: the kernel is larger than any an Ethos-U55 is used for.
    """
    _check_size(shape, len(stream))
    order = weight_order.stream_order(shape)
    return weight_order.to_kernel(weights.decode(stream, order.size), shape, order)


def _check_size(shape: WeightShape, stream_bytes: int) -> None:
    if shape.weights > 8 * _ZEROS_PER_BIT * stream_bytes:
        raise WeightStreamError(
            f"{stream_bytes} bytes cannot hold the {shape.weights} weights of {shape}"
        )
    if shape.stream_bound > _STREAM_LIMIT:
        raise WorkLimitError(
            f"a stream may hold {_STREAM_LIMIT} weights. Received: {shape.stream_bound} for {shape}"
        )
    if stream_bytes > _BYTES_PER_WEIGHT * shape.stream_bound + _STREAM_SLACK:
        raise WeightStreamError(
            f"{stream_bytes} bytes are too many for the {shape.weights} weights of {shape}"
        )


def _scale_records(data: bytes, channels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bias (40 bits, signed), multiplier (32 bits) and shift (6 bits) of each channel."""
    records = np.frombuffer(data, np.uint8, 10 * channels).reshape(channels, 10).astype(np.int64)
    places = np.int64(1) << (8 * np.arange(5))
    bias = records[:, :5] @ places
    bias = np.where(bias >> 39, bias - (1 << 40), bias)
    multiplier = records[:, 5:9] @ places[:4]
    return bias, multiplier, records[:, 9] & 63


def execute(operation: Convolution, decoded: Decoded, stores: Stores) -> None:
    """Runs one convolution on the whole batch."""
    dtype = decoded.kernel.dtype
    source = memory.read(stores[operation.ifm.region.store], operation.ifm).astype(dtype)
    source -= operation.ifm.zero_point
    source = prepare_window(source, operation.kernel, operation.ofm.shape, 0)
    sums = _depthwise if operation.weight_shape.depthwise else _dense
    values = sums(source, decoded.kernel, operation.kernel, operation.ofm.shape)
    if decoded.bound >= 1 << operation.accumulator_bits - 1:
        check_fits(values, operation.accumulator_bits, "the accumulator")
    values = values.astype(np.int64)
    values += decoded.bias
    values = rescale(values, decoded.multiplier, decoded.shift, operation.rounding)
    finish(operation, values, stores)


def prepare_window(
    source: np.ndarray, kernel: Kernel, ofm_shape: tuple[int, int, int], fill: int
) -> np.ndarray:
    """Upscales and pads [batch, y, x, channel] so that a window moves over it without edges."""
    top, left, bottom, right = kernel.padding
    height, width = kernel.covered(ofm_shape)
    inner_height, inner_width = height - top - bottom, width - left - right
    if kernel.upscale == 1:
        source = source.repeat(2, 1).repeat(2, 2)[:, :inner_height, :inner_width]
    if not kernel.upscale > 1 and not any(kernel.padding):
        return source
    out = np.full((source.shape[0], height, width, source.shape[3]), fill, source.dtype)
    inner = out[:, top : top + inner_height, left : left + inner_width]
    if kernel.upscale == 2:
        inner[:, ::2, ::2] = source
    else:
        inner[...] = source
    return out


def _taps(source: np.ndarray, kernel: Kernel, rows: int, columns: int) -> list[list[np.ndarray]]:
    """The input under each kernel element: [ky][kx] of [batch, rows, columns, channel]."""
    step_y, step_x = kernel.stride
    return [
        [
            source[:, y : y + (rows - 1) * step_y + 1 : step_y][
                :, :, x : x + (columns - 1) * step_x + 1 : step_x
            ]
            for x in range(0, kernel.reach[1], kernel.dilation[1])
        ]
        for y in range(0, kernel.reach[0], kernel.dilation[0])
    ]


def _dense(
    source: np.ndarray, weights_: np.ndarray, kernel: Kernel, ofm_shape: tuple[int, int, int]
) -> np.ndarray:
    rows, columns, depth = ofm_shape
    batch, channels = source.shape[0], source.shape[3]
    matrix = weights_.reshape(-1, depth)
    out = np.empty((batch, rows, columns, depth), source.dtype)
    # Unroll a part of the output at a time: the unrolled input is kernel-size times the input.
    pixel = batch * matrix.shape[0]
    wide = max(1, min(columns, UNROLLED_LIMIT // pixel))
    high = max(1, min(rows, UNROLLED_LIMIT // (pixel * wide)))
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            part = source[:, top * kernel.stride[0] :, left * kernel.stride[1] :]
            size = min(high, rows - top), min(wide, columns - left)
            flat = _unrolled(part, kernel, size, channels).reshape(-1, matrix.shape[0])
            result = (flat @ matrix).reshape(batch, *size, depth)
            out[:, top : top + size[0], left : left + size[1]] = result
    return out


def _unrolled(
    source: np.ndarray, kernel: Kernel, size: tuple[int, int], channels: int
) -> np.ndarray:
    """The input under the kernel for each output pixel: [batch, y, x, kernel element, channel]."""
    taps = [tap for line in _taps(source, kernel, *size) for tap in line]
    if len(taps) == 1:
        return np.ascontiguousarray(taps[0])
    out = np.empty((source.shape[0], *size, len(taps), channels), source.dtype)
    for i, tap in enumerate(taps):
        out[:, :, :, i] = tap
    return out


def _depthwise(
    source: np.ndarray, weights_: np.ndarray, kernel: Kernel, ofm_shape: tuple[int, int, int]
) -> np.ndarray:
    rows, columns, depth = ofm_shape
    out = np.zeros((source.shape[0], rows, columns, depth), source.dtype)
    product = np.empty_like(out)
    for y, line in enumerate(_taps(source, kernel, rows, columns)):
        for x, tap in enumerate(line):
            np.multiply(tap, weights_[y, x, 0], out=product)
            out += product
    return out
