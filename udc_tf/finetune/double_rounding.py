"""Activations rounded as integer arithmetic rounds them: twice.

TFLM, and the NPU after it, bring an accumulator to the scale of the outputs by a multiplier below
one, `m = M * 2**-shift` with M in [0.5, 1): they round the product with M, then that divided by
2**shift, halves away from zero both times. The first rounding is to a fraction 2**-shift of an
output step. With 8-bit weights that is nothing; with few bits the shift is two or three, every
eighth value is a tie of the second rounding, and a deep network that rounds once computes something
else. So at the end of finetuning each range learns the fractions of the kernel before it, and the
unit of its accumulators: results are whole numbers of those, once biases are (`whole_biases`), and
are taken as such. A mean over all positions is rounded in the same way.
"""

import keras
import numpy as np

from udc_tf.graph.folds import Fold, Mean, folds, means
from udc_tf.layers.compact_kernels import CompactKernel
from udc_tf.quantize.rounding import first_rounding_of_mean, first_roundings


def match_double_rounding(network: keras.Model) -> int:
    """Lets the activation quantizers behind kernels and means round as the int8 network will.

    Quantizers whose range several tensors share, or behind inputs that are not rounded, go on
    rounding once.

    Returns:
        How many quantizers round twice now.
    """
    kernels = [fold for fold in folds(network) if _is_ready(fold)]
    for fold in kernels:
        source, target = fold.input_quantizer, fold.output_quantizer
        scales = (source.scale, _steps(fold), target.scale)  # float32 in the file, then doubles
        of_input, of_weights, of_output = (np.float64(np.float32(s)) for s in scales)
        units = _alive(of_input * of_weights / of_output)
        target.round_as_integers(units, first_roundings(units, 1.0))
    pools = [mean for mean in means(network) if _are_rounding(mean)]
    for mean in pools:
        source, target = (
            np.float32(q.scale) for q in (mean.input_quantizer, mean.output_quantizer)
        )
        unit = np.float64(source) / np.float64(target) / mean.positions
        fraction = first_rounding_of_mean(source, target, mean.positions)
        mean.output_quantizer.round_as_integers(unit, fraction)
    return len(kernels) + len(pools)


def _is_ready(fold: Fold) -> bool:
    return isinstance(fold.kernel, CompactKernel) and _are_rounding(fold)


def _are_rounding(between: Fold | Mean) -> bool:
    source, target = between.input_quantizer, between.output_quantizer
    if source is None or target is None or target.fractions is None:
        return False
    return source.is_rounding and target.is_rounding


def _steps(fold: Fold) -> np.ndarray:
    """The steps of the weights, batch norm included; one per channel, or one for all."""
    step = np.float64(fold.kernel.integer_kernel().step)
    return step if fold.batch_norm is None else step * np.abs(fold.gain())


def _alive(units: np.ndarray) -> np.ndarray:
    """A channel that batch norm switched off has no accumulator to speak of: any fine unit does."""
    return np.where(units > 0, units, 2.0**-30)
