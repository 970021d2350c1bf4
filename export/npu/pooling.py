"""POOL: maximum, average and sum over channels. A 1x1 average serves Vela as copy and rescale."""

from __future__ import annotations

import numpy as np

from udc_tf.export.npu import memory
from udc_tf.export.npu.convolution import prepare_window
from udc_tf.export.npu.operations import Pooling
from udc_tf.export.npu.output_stage import Stores, check_fits, finish
from udc_tf.export.npu.registers import Kernel
from udc_tf.export.npu.scaling import average_scale, rescale


def execute(operation: Pooling, stores: Stores) -> None:
    """Runs one pooling on the whole batch."""
    ifm = operation.ifm
    source = memory.read(stores[ifm.region.store], ifm).astype(np.int64) - ifm.zero_point
    if operation.mode == "REDUCE_SUM":
        values = source.sum(3, keepdims=True)
    elif operation.mode == "MAX":
        lowest = np.iinfo(ifm.dtype).min - ifm.zero_point  # padding never wins
        window = prepare_window(source, operation.kernel, operation.ofm.shape, lowest)
        values = _reduce(window, operation.kernel, operation.ofm.shape, np.maximum)
    else:
        window = prepare_window(source, operation.kernel, operation.ofm.shape, 0)
        values = _reduce(window, operation.kernel, operation.ofm.shape, np.add)
    check_fits(values, operation.accumulator_bits, "the accumulator")
    finish(operation, _scaled(operation, values), stores)


def _scaled(operation: Pooling, values: np.ndarray) -> np.ndarray:
    if operation.mode != "AVERAGE" or not any(operation.kernel.padding):
        if operation.scale is None:
            return values
        return rescale(values, *operation.scale, operation.rounding)
    # A padded average takes no scale: it divides by the positions that are not padding.
    inside = np.ones((1, *operation.ifm.shape[:2], 1), np.int64)
    window = prepare_window(inside, operation.kernel, operation.ofm.shape, 0)
    count = _reduce(window, operation.kernel, operation.ofm.shape, np.add)
    multiplier, shift = average_scale(np.maximum(count, 1))
    return rescale(values, multiplier, shift, operation.rounding)


def _reduce(
    window: np.ndarray, kernel: Kernel, ofm_shape: tuple[int, int, int], combine: np.ufunc
) -> np.ndarray:
    """Combines the elements under the kernel: rows first, then columns."""
    for axis in (0, 1):
        reach = (ofm_shape[axis] - 1) * kernel.stride[axis] + 1
        step = kernel.stride[axis]
        rows = np.moveaxis(window, axis + 1, 0)
        total = rows[0:reach:step].copy()
        for offset in range(1, kernel.size[axis]):
            combine(total, rows[offset : offset + reach : step], out=total)
        window = np.moveaxis(total, 0, axis + 1)
    return window
