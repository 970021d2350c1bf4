"""Means, sums and maxima over channels, which TFLite's operators have but the NPU has not."""

import math

import numpy as np

from udc_tf.export.emitter import Emitter
from udc_tf.export.integer_network import WEIGHT_MAX, Kernel
from udc_tf.graph import shapes
from udc_tf.graph.trace import Node

_SEQUENCE = 3


def reduces_channels(node: Node) -> bool:
    """Whether a reduction goes over the last axis."""
    rank = len(node.inputs[0].shape)
    return rank - 1 in shapes.reduced_axes(node.layer, rank)


def over_channels(emitter: Emitter, node: Node, value: int, operator: str) -> int:
    """What is left of positions and channels, all axes kept."""
    rank, laid_out = len(node.inputs[0].shape), emitter.shape(value)
    axes = [axis + (rank == _SEQUENCE) for axis in shapes.reduced_axes(node.layer, rank)]
    positions = [axis for axis in axes if axis != len(laid_out) - 1]
    if operator == "MAX_POOL_2D":
        return _largest(emitter, node, value, positions)
    size = laid_out[-1] * math.prod(laid_out[axis] for axis in positions)
    if positions:
        if rank == _SEQUENCE:
            positions = [1, 2]  # a height of 1 goes along
        kept = tuple(1 if axis in positions else n for axis, n in enumerate(laid_out))
        options = {"axes": tuple(positions), "keep": True}
        value = emitter.emit("MEAN", node, (value,), kept, options=options, suffix="_positions")
    factor = (size if operator == "SUM" else 1) / laid_out[-1]
    ones = Kernel(
        node.name,
        np.full((1, 1, 1, laid_out[-1]), WEIGHT_MAX, np.int8),
        axis=0,
        scales=np.asarray([factor / WEIGHT_MAX]),
        bias=np.zeros(1),
    )
    shape = (*emitter.shape(value)[:-1], 1)
    return emitter.pointwise(node, value, ones, shape, "CONV_2D", suffix="_channels")


def _largest(emitter: Emitter, node: Node, value: int, positions: list[int]) -> int:
    """Two windows, one over positions and one over channels laid out as positions."""
    if positions:
        shape = emitter.shape(value)
        size = tuple(shape[axis] if axis in positions else 1 for axis in (1, 2))
        kept = (1, shape[1] // size[0], shape[2] // size[1], shape[3])
        value = _window(emitter, node, value, size, kept, "_positions")
    *outer, channels = emitter.shape(value)
    rows = math.prod(outer)
    value = emitter.reshape(node, value, (1, rows, channels, 1), "_rows")
    value = _window(emitter, node, value, (1, channels), (1, rows, 1, 1), "_channels")
    return emitter.reshape(node, value, (*outer, 1), "_kept")


def _window(
    emitter: Emitter,
    node: Node,
    value: int,
    size: tuple[int, ...],
    shape: tuple[int, ...],
    suffix: str,
) -> int:
    options = {"size": size, "strides": size, "padding": "VALID"}
    return emitter.emit(
        "MAX_POOL_2D", node, (value,), shape, follows=value, options=options, suffix=suffix
    )
