"""Output scales of products and of ReLUs at which every runtime computes the same codes.

A MUL multiplies its products of codes by a * b / output, the scales of its inputs and its output.
TFLM forms that in float64, Vela 5.2 in float32, so that the multipliers differ in their last bits,
and about one product in a million, which lies that close to a half, is off by one. A network of
gates, such as EfficientNet, has enough of them for some inference to meet one. An output scale a
few steps of float32 away, at which both are the same, leaves them no choice. For 7 in 100 products
none is in reach, where float32 rounds a * b by more than any division makes up for: they stay.

A ReLU that is an operator of its own multiplies by input / output, formed in the same two ways. It
has only 256 codes to multiply: enough that none of them comes close to a half.
"""

from collections.abc import Callable, Mapping

import numpy as np

from udc_tf.export.dense_scale import multiplier
from udc_tf.export.integer_network import IntegerNetwork, Quantization

_REACH = 1 << 12  # steps of float32, at most 1/2048 of the scale; one in 128 agrees
_STEPS = np.array(sorted(range(-_REACH, _REACH + 1), key=abs), np.float32)
_CODES = np.arange(1, 256, dtype=np.float64)
_CLOSE = 2.0**-15  # to a half; float32 moves a product below 256 by half of that at most


def settle(network: IntegerNetwork, quantizations: list[Quantization]) -> None:
    """Moves the output scales of products and ReLUs to the nearest at which TFLM and Vela agree.

    They come one after the other, so that those that read a moved scale are settled after it.
    """
    for step in network.steps:
        if step.kind not in _AGREE:
            continue
        own = quantizations[step.output]
        alike = [i for i, other in enumerate(quantizations) if other == own]
        if any(network.values[i].prescribed for i in alike) or set(step.inputs) & set(alike):
            continue  # it cannot be moved, or its inputs would move with it
        made = {
            (other.kind, tuple(quantizations[i].scale for i in other.inputs))
            for other in network.steps
            if other.kind in _AGREE and other.output in alike
        }
        near = own.scale + _STEPS * np.spacing(own.scale)
        if all(_AGREE[kind](*inputs, near[:1]).all() for kind, inputs in made):
            continue
        settled = np.sum([_AGREE[kind](*inputs, near) for kind, inputs in made], axis=0)
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


def rounds_alike(a: np.float32, output: np.ndarray) -> np.ndarray:
    """Whether both runtimes rescale every code alike, for each of the output scales.

    >>> rounds_alike(np.float32(0.3663613498), np.float32([0.22152081132, 0.2])).tolist()
    [False, True]
    """
    ratio = np.float64(a) / np.asarray(output, np.float64)
    products = _CODES * ratio[:, None]
    far = np.abs(products - np.floor(products) - 0.5) > _CLOSE
    return agree(a, np.float32(1), output) | (far | (products > 256)).all(1)


_AGREE: Mapping[str, Callable[..., np.ndarray]] = {"MUL": agree, "RELU": rounds_alike}
