"""The weight scale of a dense layer, chosen so that every runtime forms the same multiplier of it.

With one scale for all its weights, a FULLY_CONNECTED multiplies its sums by input * weights /
output. Vela 5.2 multiplies the first two in float32, as TFLM did in August 2026; TFLM of October
2026 does so in float64. The multipliers then differ in their last bits, and about one output in a
million, whose sum lies that close to a half, is off by one. A scale a few steps of float32 away,
for which both products give the same multiplier, leaves them no choice. Convolutions multiply in
float64 everywhere.
"""

import dataclasses

import numpy as np

from udc_tf.export.integer_network import Kernel

_REACH = 1 << 12  # steps of float32, at most 1/2048 of the scale; half of all layers need under 50
_MULTIPLIER_BITS = 31


def settle(kernel: Kernel, input_scale: np.float32, output_scale: np.float32) -> Kernel:
    """`kernel` with the nearest scale at which both products agree; its codes stay.

    Where none is in reach, as for one layer in some hundreds, the scale stays as well.
    """
    (scale,) = np.asarray(kernel.scales, np.float32)
    steps = np.array(sorted(range(-_REACH, _REACH + 1), key=abs), np.float32)
    near = scale + steps * np.spacing(scale)
    in_float32 = (np.float32(input_scale) * near).astype(np.float64)
    in_float64 = float(input_scale) * near.astype(np.float64)
    same = multiplier(in_float32 / output_scale) == multiplier(in_float64 / output_scale)
    # The first that agrees; if none does argmax is 0, and that is the scale itself.
    return dataclasses.replace(kernel, scales=near[[np.argmax(same)]].astype(np.float64))


def multiplier(real: np.ndarray) -> np.ndarray:
    """`real` rounded to the 31 bits that runtimes keep of it.

    >>> float(multiplier(np.float64(0.75 + 2**-40)))
    0.75
    """
    fraction, exponent = np.frexp(real)
    rounded = np.floor(np.ldexp(fraction, _MULTIPLIER_BITS) + 0.5)
    return np.ldexp(rounded, exponent - _MULTIPLIER_BITS)
