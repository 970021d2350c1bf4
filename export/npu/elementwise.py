"""ELEMENTWISE: arithmetic of two feature maps, of one and a scalar, or of one alone."""

from __future__ import annotations

import numpy as np

from udc_tf.export.npu import memory
from udc_tf.export.npu.faults import CommandError
from udc_tf.export.npu.operations import UNARY, Elementwise
from udc_tf.export.npu.output_stage import Stores, check_fits, finish
from udc_tf.export.npu.scaling import (
    ROUND_NATURAL,
    ROUND_TFL,
    ROUND_TRUNCATE,
    check_product,
    rescale,
)

# Bits by which TFLite shifts the operands of an addition left before it scales them.
_INPUT_SHIFT = {1: 20, 2: 15}


def execute(operation: Elementwise, stores: Stores) -> None:
    """Runs one elementwise operation on the whole batch."""
    ifm = operation.ifm
    one = memory.read(stores[ifm.region.store], ifm).astype(np.int64) - ifm.zero_point
    if operation.mode in UNARY:
        finish(operation, _unary(operation, one), stores)
        return
    if operation.ifm2 is None:
        two = np.full((1, 1, 1, 1), (operation.scalar or 0) - operation.ifm2_zero_point, np.int64)
    else:
        two = memory.read(stores[operation.ifm2.region.store], operation.ifm2).astype(np.int64)
        two -= operation.ifm2.zero_point
    if operation.swapped:
        one, two = two, one
    if operation.mode in ("ADD", "SUB"):
        values = _sum(operation, one, two)
    elif operation.mode == "MUL":
        values = _product(operation, one, two)
    elif operation.mode in ("SHR", "SHL"):
        values = _shift(operation, one, two)
    else:
        combine = np.minimum if operation.mode == "MIN" else np.maximum
        values = _output_scaled(operation, combine(one, two))
    finish(operation, values, stores)


def _output_scaled(operation: Elementwise, values: np.ndarray) -> np.ndarray:
    if operation.scale is None:
        return values
    return rescale(values, *operation.scale, operation.rounding)


def _unary(operation: Elementwise, values: np.ndarray) -> np.ndarray:
    if operation.mode == "ABS":
        return _output_scaled(operation, np.abs(values))
    if operation.mode == "LRELU":
        # The scale is the slope: it applies to negative values only.
        return np.where(values < 0, _output_scaled(operation, values), values)
    # CLZ: zeros in front of the highest bit of 32; a negative number has none.
    bits = np.where(values > 0, np.floor(np.log2(np.maximum(values, 1))).astype(np.int64) + 1, 0)
    return np.where(values < 0, 0, 32 - bits)


def _sum(operation: Elementwise, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    if operation.operand_scales is None:
        raise CommandError("an addition has scales for its operands")
    scale_a, scale_b = operation.operand_scales
    if operation.ifm.dtype.itemsize == 4:
        pass  # 32-bit operands are added as they are
    elif operation.scale_mode == 0:
        check_product(one, np.int64(scale_a[0]))
        check_product(two, np.int64(scale_b[0]))
        one, two = one * scale_a[0], two * scale_b[0]
    else:
        # One operand is rescaled to the other, which is only shifted.
        shift = _INPUT_SHIFT[operation.ifm.dtype.itemsize]
        if operation.scale_mode == 1:
            one, two = rescale(one, *scale_a, ROUND_TFL, shift), two << (shift - 1)
        elif operation.scale_mode == 2:
            one, two = one << (shift - 1), rescale(two, *scale_a, ROUND_TFL, shift)
        else:
            raise CommandError("IFM_PRECISION has scale mode 3; 0, 1 and 2 exist")
    values = one + two if operation.mode == "ADD" else one - two
    return _output_scaled(operation, values)


def _product(operation: Elementwise, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    check_product(one, two)
    values = one * two
    if operation.scale is None:
        return values
    if operation.ifm.dtype.itemsize == 4:
        # A 32-bit product is only shifted; its multiplier is not used.
        return rescale(values, 1, operation.scale[1], operation.rounding)
    return rescale(values, *operation.scale, operation.rounding)


def _shift(operation: Elementwise, one: np.ndarray, two: np.ndarray) -> np.ndarray:
    # A softmax of many near-equal classes shifts right by 32 or more. TFLM aborts on such inputs,
    # so above 31 there is nothing to compare with: the result is the arithmetic one.
    most = 31 if operation.mode == "SHL" else 62
    if two.min(initial=0) < 0 or two.max(initial=0) > most:
        raise CommandError(
            f"{operation.mode} by 0 to {most} bits. Received: {int(two.min())} to {int(two.max())}"
        )
    if operation.mode == "SHL":
        values = one << two
        check_fits(values, 32, "a left shift")
        return values
    mode = ROUND_TRUNCATE if operation.rounding == ROUND_TRUNCATE else ROUND_NATURAL
    return rescale(one, 1, two, mode)
