"""Biases that an int8 network can hold exactly.

An integer network counts a bias in units of its accumulator, input scale times weight step. With
few-bit weights that unit is coarse, for +-1 weights up to half a step of the outputs, and a bias
that the file must round moves a whole channel. So the rounding is done here, where `evaluate` sees
it, and not in the file. A channel that has no weights left is its bias alone, which batch norm may
magnify a thousand times: it gets a gain at which a unit is fine.
"""

from typing import Any

import keras
import numpy as np

from udc_tf.graph.affine import Affine
from udc_tf.graph.folds import Fold, folds
from udc_tf.layers.compact_kernels import CompactKernel

_EXACT = 2**20  # beyond that float32 does not tell neighbouring units apart
_UNITS_OF_CONSTANT = 2**14  # as many as a channel without weights is worth


def make_biases_whole(network: keras.Model) -> int:
    """Moves each bias to the nearest whole number of accumulator units.

    Where a batch norm follows, it is the folded bias that is moved, by way of the moving mean.
    Layers whose inputs are not rounded yet stay as they are.

    Returns:
        How many channels were moved.
    """
    return sum(_move(fold) for fold in folds(network))


def _move(fold: Fold) -> int:
    kernel, quantizer = fold.kernel, fold.input_quantizer
    if not isinstance(kernel, CompactKernel) or quantizer is None or not quantizer.is_rounding:
        return 0
    bn: Any = fold.batch_norm  # Keras' own hints have its statistics as None
    unit = np.float64(np.float32(quantizer.scale)) * kernel.integer_kernel().step
    bias = _bias(kernel)
    if bn is None:
        if kernel.bias is None or unit <= 0:
            return 0
        rest = _rest(bias, unit)
        kernel.bias.assign(bias - rest)
        return int(np.count_nonzero(rest))
    _refine_constants(kernel, bn, unit)
    mean = bn.moving_mean.numpy().astype(np.float64)
    gain = fold.gain()
    offset = np.zeros_like(mean) if bn.beta is None else bn.beta.numpy().astype(np.float64)
    alive = gain != 0
    # What the accumulator has to hold besides the products: offset / gain + bias - mean.
    held = np.divide(offset, gain, out=np.zeros_like(mean), where=alive) + bias - mean
    rest = np.where(alive, _rest(held, unit), 0.0)
    bn.moving_mean.assign(mean + rest)
    return int(np.count_nonzero(rest))


def _refine_constants(kernel: CompactKernel, bn: Any, unit: float) -> None:
    """Lowers the gain of channels without weights until a unit is a small part of their value."""
    before = Affine.of(bn, bn.moving_mean.shape[0])
    gain, values = before.factor, before.factor * _bias(kernel) + before.offset
    least = np.abs(gain).max() / _EXACT  # beside the other channels'
    fine = np.maximum(np.abs(values) / (_UNITS_OF_CONSTANT * unit), least)
    coarse = _has_no_weights(kernel, len(gain)) & (np.abs(gain) > fine)
    if not coarse.any():
        return
    variance, mean = bn.moving_variance.numpy(), bn.moving_mean.numpy()
    times = np.abs(gain[coarse]) / fine[coarse]
    variance[coarse] = (variance[coarse] + bn.epsilon) * times**2 - bn.epsilon
    bn.moving_variance.assign(variance)
    after = Affine.of(bn, len(gain))
    missing = values - after.factor * _bias(kernel) - after.offset
    mean[coarse] -= missing[coarse] / after.factor[coarse]
    bn.moving_mean.assign(mean)


def _has_no_weights(kernel: CompactKernel, channels: int) -> np.ndarray:
    codes = kernel.integer_kernel().codes
    if kernel.in_axis is not None:  # else depthwise, whose last two axes are the channels
        codes = np.moveaxis(codes, kernel.out_axis, -1)
    return np.abs(codes.reshape(-1, channels)).max(axis=0) == 0


def _bias(kernel: CompactKernel) -> np.ndarray | float:
    return 0.0 if kernel.bias is None else kernel.bias.numpy().astype(np.float64)


def _rest(values: np.ndarray, unit: float) -> np.ndarray:
    """What is left over beside whole units."""
    rest = values - np.round(values / unit) * unit
    return np.where(np.abs(values) < _EXACT * unit, rest, 0.0)
