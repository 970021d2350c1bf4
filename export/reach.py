"""How far values can reach at most, out of the ranges of what they are computed from.

For the steps in between where an activation or an average is written as several operators: training
gives ranges to the Keras model's tensors only, and those of the steps in between follow from them.
"""

import itertools
import math
from collections.abc import Callable, Mapping

from udc_tf.export.integer_network import IntegerNetwork, Step

Bounds = tuple[float, float]
_LEVELS = 255  # of 8 bits: what lies nearer to zero than one of them is zero
Reach = Callable[[Step, list[Bounds]], list[float]]


def bounds(network: IntegerNetwork, known: Mapping[int, Bounds]) -> dict[int, Bounds]:
    """The known bounds of values, and those that follow from them.

    Args:
        known: by the index of the value.
    """
    found = dict(known)
    for step in network.steps:
        if step.output in found or not all(index in found for index in step.inputs):
            continue
        if network.values[step.output].follows is not None:
            found[step.output] = found[step.inputs[0]]
        elif step.kind in _REACH and not _has_taps(step):
            corners = _REACH[step.kind](step, [found[index] for index in step.inputs])
            if step.activation != "NONE":
                corners = [max(corner, 0.0) for corner in corners]
            found[step.output] = min(corners), max(corners)
    return found


def _has_taps(step: Step) -> bool:
    return step.kernel is not None and math.prod(step.kernel.codes.shape[1:3]) > 1


def _products(step: Step, inputs: list[Bounds]) -> list[float]:
    first, second = inputs
    if step.inputs[0] == step.inputs[1]:
        return [0.0, *(edge * edge for edge in first)]
    return [a * b for a, b in itertools.product(first, second)]


def _affine(step: Step, inputs: list[Bounds]) -> list[float]:
    factor = step.weights.real()[0, 0, 0]
    ends = [factor * edge + step.weights.bias for edge in inputs[0]]
    return [float(extreme) for end in ends for extreme in (end.min(), end.max())]


def _of_both_ends(function: Callable[[Step, float], float]) -> Reach:
    """Of a function that only grows."""
    return lambda step, inputs: [function(step, edge) for edge in inputs[0]]


_REACH: dict[str, Reach] = {
    "ADD": lambda step, inputs: [sum(edges) for edges in zip(*inputs, strict=True)],
    "SUB": lambda step, inputs: [inputs[0][0] - inputs[1][1], inputs[0][1] - inputs[1][0]],
    "MUL": _products,
    "ABS": lambda step, inputs: [0.0, *(abs(edge) for edge in inputs[0])],
    "DEPTHWISE_CONV_2D": _affine,
    "RSQRT": lambda step, inputs: [
        1 / math.sqrt(max(edge, inputs[0][1] / _LEVELS, step.options["least"]))
        for edge in inputs[0]
    ],
    "MEAN": _of_both_ends(lambda step, edge: edge),
    "ELU": _of_both_ends(lambda step, edge: edge if edge > 0 else math.expm1(edge)),
    "LEAKY_RELU": _of_both_ends(
        lambda step, edge: edge if edge > 0 else step.options["alpha"] * edge
    ),
}
