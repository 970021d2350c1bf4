"""Output scales of products at which every runtime forms the same multiplier.

A MUL multiplies its products of codes by a * b / output, the scales of its inputs and its output.
TFLM forms that in float64, Vela 5.2 in float32, so that the multipliers differ in their last bits,
and about one product in a million, which lies that close to a half, is off by one. A network of
gates, such as EfficientNet, has enough of them for some inference to meet one. An output scale a
few steps of float32 away, at which both are the same, leaves them no choice. For 7 in 100 products
none is in reach, where float32 rounds a * b by more than any division makes up for: they stay.
"""

import numpy as np

from udc_tf.export.dense_scale import multiplier
from udc_tf.export.integer_network import IntegerNetwork, Quantization

_REACH = 1 << 12  # steps of float32, at most 1/2048 of the scale; one in 128 agrees
_STEPS = np.array(sorted(range(-_REACH, _REACH + 1), key=abs), np.float32)


def settle(network: IntegerNetwork, quantizations: list[Quantization]) -> None:
    """Moves the output scales of products to the nearest at which TFLM and Vela agree.

    Products come one after the other, so that those that read a moved scale are settled after it.
    """
    for step in network.steps:
        if step.kind != "MUL":
            continue
        own = quantizations[step.output]
        alike = [i for i, other in enumerate(quantizations) if other == own]
        if any(network.values[i].prescribed for i in alike) or set(step.inputs) & set(alike):
            continue  # it cannot be moved, or its inputs would move with it
        factors = {
            tuple(quantizations[i].scale for i in other.inputs)
            for other in network.steps
            if other.kind == "MUL" and other.output in alike
        }
        near = own.scale + _STEPS * np.spacing(own.scale)
        settled = sum(agree(a, b, near).astype(int) for a, b in factors)
        # The first of those at which most agree; that is the scale itself where nothing is gained.
        found = Quantization(np.float32(near[np.argmax(settled)]), own.zero_point)
        for index in alike:
            quantizations[index] = found


def agree(a: np.float32, b: np.float32, output: np.ndarray) -> np.ndarray:
    """Whether both runtimes have the same multiplier, for each of the output scales.

    >>> agree(np.float32(0.5), np.float32(0.25), np.float32([0.125, 0.1])).tolist()
    [True, False]
    """
    in_float32 = np.float32(a) * np.float32(b) / np.asarray(output, np.float32)
    in_float64 = np.float64(a) * np.float64(b) / np.asarray(output, np.float64)
    return multiplier(in_float32.astype(np.float64)) == multiplier(in_float64)
