"""Activations rounded as integer arithmetic rounds them: twice.

TFLM, and the NPU after it, bring an accumulator to the scale of the outputs by a multiplier below
one, `m = M * 2**-shift` with M in [0.5, 1): they round the product with M, then that divided by
2**shift, halves away from zero both times. The first rounding is to a fraction 2**-shift of an
output step. With 8-bit weights that is nothing; with few bits the shift is two or three, every
eighth value is a tie of the second rounding, and a deep network that rounds once computes something
else. So at the end of finetuning each range learns the fractions of the kernel before it.
"""

import keras
import numpy as np

from udc_tf.folds import Fold, folds
from udc_tf.layers.compact import CompactKernel
from udc_tf.quantizers import first_roundings


def match_double_rounding(network: keras.Model) -> int:
    """Lets the activation quantizers behind kernels round as the int8 network will.

    Quantizers whose range several tensors share, or whose kernel's inputs are not rounded, go on
    rounding once.

    Returns:
        How many quantizers round twice now.
    """
    ready = [fold for fold in folds(network) if _is_ready(fold)]
    for fold in ready:
        fold.output_quantizer.fractions.assign(_fractions(fold))
    return len(ready)


def _is_ready(fold: Fold) -> bool:
    source, target = fold.input_quantizer, fold.output_quantizer
    if not isinstance(fold.kernel, CompactKernel) or source is None or target is None:
        return False
    return target.fractions is not None and source.is_rounding and target.is_rounding


def _fractions(fold: Fold) -> np.ndarray:
    scales = np.float64(fold.kernel.integer_kernel().step)
    if fold.batch_norm is not None:
        scales = scales * np.abs(fold.gain())
    source, target = fold.input_quantizer.scale, fold.output_quantizer.scale
    units = np.float32(source) * np.float32(scales)  # of the accumulators, as the file has them
    return np.broadcast_to(
        first_roundings(units, target), tuple(fold.output_quantizer.fractions.shape)
    )
