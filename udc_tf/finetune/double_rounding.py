"""Activations rounded as integer arithmetic rounds them: twice.

TFLM, and the NPU after it, bring an accumulator to the scale of the outputs by a multiplier below
one, `m = M * 2**-shift` with M in [0.5, 1): they round the product with M, then that divided by
2**shift, halves away from zero both times. The first rounding is to a fraction 2**-shift of an
output step. With 8-bit weights that is nothing; with few bits the shift is two or three, every
eighth value is a tie of the second rounding, and a deep network that rounds once computes something
else. So at the end of finetuning each range learns the fractions of the kernel before it, and the
unit of its accumulators: results are whole numbers of those, once biases are (`whole_biases`), and
are taken as such. A mean over all positions is rounded in the same way, and so is what scales
channels on its own: a batch norm in front of its kernel is a convolution with one weight of 8 bits
per channel. So is a sum over channels, and a product of two tensors.
"""

import keras
import numpy as np

from udc_tf.graph.folds import (
    ChannelSum,
    Fold,
    Mean,
    Product,
    Scaling,
    channel_sums,
    folds,
    means,
    products,
    scalings,
)
from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.compact_kernels import CompactKernel
from udc_tf.quantize.rounding import first_rounding_of_mean, first_roundings

_LARGEST_CODE = 127  # the weight of a channel that is only scaled


def match_double_rounding(network: keras.Model) -> int:
    """Lets the quantizers behind kernels, means, sums and products round as the int8 network will.

    Quantizers whose range several tensors share, or behind inputs that are not rounded or were
    averaged since, go on rounding once.

    Returns:
        How many quantizers round twice now.
    """
    count = 0
    for fold in folds(network):
        around = _rounding(fold)
        if around is None or not isinstance(fold.kernel, CompactKernel):
            continue
        _match(*around, _steps(fold, fold.kernel))
        count += 1
    for scaling in scalings(network):
        around = _rounding(scaling)
        if around is None:
            continue
        _match(*around, np.abs(scaling.factors()) / _LARGEST_CODE)
        count += 1
    for mean in means(network):
        around = _rounding(mean)
        if around is None:
            continue
        from_scale, to_scale = (np.float32(q.scale) for q in around)
        unit = np.float64(from_scale) / np.float64(to_scale) / mean.positions
        fraction = first_rounding_of_mean(from_scale, to_scale, mean.positions)
        mean.output_quantizer.round_as_integers(unit, fraction)
        count += 1
    accumulated: list[Product | ChannelSum] = [*products(network), *channel_sums(network)]
    for between in accumulated:
        around = _rounding(between)
        if around is not None and between.step:
            _match(*around, between.step)
            count += 1
    return count


def _match(
    source: ActivationQuantizer, target: ActivationQuantizer, steps: float | np.ndarray
) -> None:
    """Lets `target` round accumulators of what `source` rounds times weights of these steps."""
    scales = (source.scale, steps, target.scale)
    # float32 in the file, then doubles
    of_input, of_weights, of_output = (np.asarray(s, np.float32).astype(float) for s in scales)
    units = _alive(of_input * of_weights / of_output)
    target.round_as_integers(units, first_roundings(units, 1.0))


def _rounding(
    between: Fold | Mean | Scaling | Product | ChannelSum,
) -> tuple[ActivationQuantizer, ActivationQuantizer] | None:
    """The quantizers of inputs and outputs, if both round and the second can do so twice."""
    source, target = between.input_quantizer, between.output_quantizer
    if source is None or target is None or target.fractions is None or not between.whole_inputs:
        return None
    return (source, target) if source.is_rounding and target.is_rounding else None


def _steps(fold: Fold, kernel: CompactKernel) -> float | np.ndarray:
    """The steps of the weights, batch norm included; one per channel, or one for all."""
    step = np.float64(kernel.integer_kernel().step)
    return step if fold.batch_norm is None else step * np.abs(fold.gain())


def _alive(units: np.ndarray) -> np.ndarray:
    """A channel that batch norm switched off has no accumulator to speak of: any fine unit does."""
    return np.where(units > 0, units, 2.0**-30)
