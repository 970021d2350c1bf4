"""Entries of the rulebook for what computes with whole tensors: extrema, reductions, products.

The tables of `rulebook` have them.
"""

import math
from typing import Any

import keras
import numpy as np

from udc_tf.graph import shapes
from udc_tf.graph.activations import LINES, Activation
from udc_tf.graph.refused_layers import refused
from udc_tf.graph.rule import Channels, Entry, Price, Range, Rule, one
from udc_tf.graph.trace import Node, TensorRef


def has_constants(node: Node) -> bool:
    """Whether a call is given arrays besides tensors."""
    given = keras.tree.flatten((node.args, node.kwargs))
    return any(isinstance(x, np.ndarray) or keras.ops.is_tensor(x) for x in given)


def activation_price(activation: Activation, node: Node) -> Price:
    """What an activation costs that does not fuse."""
    # The NPU applies a table or a limit where the operator before it ends.
    if activation.operator in (None, "RELU", "RELU6", "LOGISTIC", "TANH", "HARD_SWISH"):
        return Price()
    return composed_price(activation.operator, node)


_OF_SOFTMAX = 4.5  # bytes for each value, of constants that are as large as the tensor
_OF_MATRIX_PRODUCT = 250.0  # bytes for each column of the result: Vela sums them one by one


def _positions(node: Node) -> int:
    return math.prod(size or 1 for size in node.output.shape[1:-1])


def composed_price(operator: str, node: Node) -> Price:
    """What several operators cost that are written for one."""
    if operator == "SOFTMAX":
        return Price(operator, commands=_OF_SOFTMAX * _positions(node))
    lines = float(LINES.get(operator, 0))
    return Price(operator, weights=lines, macs=lines * _positions(node), scales=lines)


def extremum(operator: str) -> Entry:
    """The larger or smaller of tensors, which must have one scale, or of one and a number."""

    def entry(layer: Any, node: Node | None) -> Rule:
        if node is None or (len(node.inputs) > 1 and not has_constants(node)):
            if why := shapes.unlike_ranks(node):
                return refused(why, operator)
            return Rule(operator, Channels.TIES, Range.JOINED, price=one(operator))
        try:
            number_beside(node)
        except ValueError as error:
            return refused(str(error), operator)
        return Rule(f"{operator}_NUMBER", price=lambda node: composed_price("LIMIT", node))

    return entry


def number_beside(node: Node) -> float:
    """The number that a call is given beside its only tensor.

    Raises:
        ValueError: it is given something else.
    """
    given = keras.tree.flatten((node.args, node.kwargs))
    others = [x for x in given if not isinstance(x, TensorRef)]
    if len(others) != 1 or len(given) != 2 or np.size(others[0]) != 1:
        raise ValueError(
            f"{type(node.layer).__name__} is for tensors, or for a tensor and a number; a constant "
            "for each element has no int8 operator here"
        )
    number = float(np.ravel(keras.ops.convert_to_numpy(others[0]))[0])
    if not math.isfinite(number):
        raise ValueError("a number that is not finite has no int8 operator; leave it out")
    return number


def mean_as_convolution(node: Node) -> Price:
    """Vela makes a depthwise convolution with ones of a mean: about a bit per position."""
    taps = math.prod(d or 1 for d in node.inputs[0].shape[1:-1])
    return Price("MEAN", weights=float(taps), bits=1.0)


def reduction(operator: str) -> Entry:
    """A mean, a sum or a maximum over positions, channels or both.

    The maximum is that of a window: behind and in front of some operators, Vela 5.2 gets TFLite's
    own REDUCE_MAX and REDUCE_MIN wrong. A mean or sum of channels is a convolution to one.
    """
    kept = Range.KEPT if operator == "MAX_POOL_2D" else Range.NEW

    def entry(layer: Any, node: Node | None) -> Rule:
        rank = 4 if node is None else len(node.inputs[0].shape)
        axes, kind = shapes.reduced_axes(layer, rank), type(layer).__name__
        if not axes or 0 in axes:
            return refused(f"{kind} over the batch has no int8 operator; name other axes", kind)
        if getattr(layer, "initial", None) is not None:
            return refused(f"{kind} with `initial` has no int8 operator; leave it out", kind)
        if rank - 1 in axes:
            return Rule(operator, Channels.READS_WHOLE, kept, price=one(operator))
        price = one(operator) if kept is Range.KEPT else mean_as_convolution
        return Rule(operator, range=kept, price=price)

    return entry


def matrix_product(layer: Any, node: Node | None) -> Rule:
    """The product of two tensors of several matrices, or one, for each example."""
    if node is not None:
        known = [x.shape for x in node.inputs]
        alike = (
            len(known) == 2 and len(known[0]) == len(known[1]) and known[0][:-2] == known[1][:-2]
        )
        if not alike or len(known[0]) not in (3, 4):
            why = f"a matrix product of the shapes {known} has no int8 operator here"
            return refused(f"{why}; take two tensors of 3 or 4 axes with equal batches", "Matmul")
    price = Price("BATCH_MATMUL", commands=_OF_MATRIX_PRODUCT)
    return Rule("BATCH_MATMUL", Channels.READS_WHOLE, price=lambda node: price)


def resizing(layer: Any, node: Node | None) -> Rule:
    interpolation = getattr(layer, "interpolation", "nearest")  # UpSampling1D has no other
    operators = {"nearest": "RESIZE_NEAREST_NEIGHBOR", "bilinear": "RESIZE_BILINEAR"}
    why = None
    if interpolation not in operators:
        why = f"the interpolation {interpolation!r} has no int8 operator here; take 'nearest'"
    for setting in ("antialias", "crop_to_aspect_ratio", "pad_to_aspect_ratio"):
        if getattr(layer, setting, False):
            why = f"a resize with `{setting}` has no int8 operator here; leave it out"
    if node is not None and interpolation == "nearest" and len(node.inputs[0].shape) > 2:
        sizes = zip(node.inputs[0].shape[1:-1], node.output.shape[1:-1], strict=True)
        if any((after or 1) % (before or 1) for before, after in sizes):
            why = "a resize to other than a multiple has no int8 operator here; take a multiple"
    if why is not None:
        return refused(why, "RESIZE_BILINEAR", Channels.PASSES, Range.KEPT)
    operator = operators[interpolation]
    if interpolation == "bilinear":  # four depthwise convolutions of 2x2, one for each corner
        price = Price(operator, weights=4 * 2.0, scales=4.0)
        return Rule(operator, range=Range.KEPT, price=lambda node: price)
    return Rule(operator, range=Range.KEPT, price=one(operator))
