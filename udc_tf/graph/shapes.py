"""Axes and slices as the layers and operations that move or reduce positions state them."""

import itertools
from typing import Any, cast

import keras
import numpy as np

from udc_tf.graph.trace import Node

Bounds = tuple[tuple[int, int], ...]  # begin and end of each axis


def reduced_axes(layer: Any, rank: int) -> tuple[int, ...]:
    """The axes over which a reduction goes, counted from the front.

    >>> reduced_axes(keras.layers.GlobalAveragePooling1D(), 3)
    (1,)
    """
    axis = getattr(layer, "axis", tuple(range(1, rank - 1)))  # global pooling names none
    if axis is None:
        return tuple(range(rank))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    return tuple(sorted(a % rank for a in axes))


def unlike_ranks(node: Node | None) -> str | None:
    """Why an operation cannot join tensors of several ranks; None if it has not to.

    It would lay the batch of the smaller beside an inner axis of the larger. Layers that merge put
    axes behind the batch instead.
    """
    if node is None or isinstance(node.layer, keras.layers.Layer):
        return None
    known = [ref.shape for ref in node.inputs]
    if len({len(shape) for shape in known}) <= 1:
        return None
    return f"tensors of the shapes {known} have not one number of axes; give them one by Reshape"


def permutation(layer: Any, rank: int) -> tuple[int, ...]:
    """The order in which a `Permute` layer or a transposition takes the axes of its input.

    >>> permutation(keras.layers.Permute((2, 1)), 3)
    (0, 2, 1)
    """
    if isinstance(layer, keras.layers.Permute):
        return (0, *layer.dims)
    if hasattr(layer, "axis1"):
        order = list(range(rank))
        one, other = layer.axis1 % rank, layer.axis2 % rank
        order[one], order[other] = other, one
        return tuple(order)
    if hasattr(layer, "destination"):
        numbered = np.empty([n + 1 for n in range(rank)])  # each axis is known by its size
        moved = np.moveaxis(numbered, layer.source, layer.destination)
        return tuple(size - 1 for size in moved.shape)
    if layer.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(a % rank for a in layer.axes)


def slices(node: Node) -> list[Bounds]:
    """What each output of a slicing, splitting or cropping call takes of its input.

    The batch is (0, 1). An axis that indexing with a number drops has length 1 here.

    Raises:
        ValueError: the batch is cut, or other than whole pieces are taken.
    """
    layer, shape = node.layer, (1, *node.inputs[0].shape[1:])
    whole = cast(Bounds, tuple((0, size) for size in shape))  # what is cut has a known size
    if isinstance(layer, (keras.layers.Cropping1D, keras.layers.Cropping2D)):
        cropping = layer.cropping
        pairs = [cropping] if isinstance(layer, keras.layers.Cropping1D) else cropping
        cut = [(a, n - b) for (a, b), n in zip(pairs, shape[1:], strict=False)]
        return [(whole[0], *cut, whole[-1])]
    if hasattr(layer, "indices_or_sections"):
        return _split(layer, whole)
    return [_index(node, whole)]


def _split(layer: Any, whole: Bounds) -> list[Bounds]:
    axis, at = layer.axis % len(whole), layer.indices_or_sections
    if axis == 0:
        raise ValueError("the batch cannot be split; name another axis")
    size = whole[axis][1]
    cuts = range(size // at, size, size // at) if isinstance(at, int) else [int(i) for i in at]
    edges = itertools.pairwise([0, *cuts, size])
    return [(*whole[:axis], edge, *whole[axis + 1 :]) for edge in edges]


def _index(node: Node, whole: Bounds) -> Bounds:
    key = node.args[1] if len(node.args) > 1 else node.kwargs["key"]
    keys = list(key) if isinstance(key, (tuple, list)) else [key]
    known = all(k is None or k is Ellipsis or isinstance(k, (int, slice)) for k in keys)
    if not known or (keys and keys[0] not in (slice(None), Ellipsis)):
        raise ValueError(
            "such an index has no int8 operator here; take slices and numbers behind the batch"
        )
    used = sum(k is not None and k is not Ellipsis for k in keys)
    if Ellipsis in keys:
        at = keys.index(Ellipsis)
        keys[at : at + 1] = [slice(None)] * (len(whole) - used)
    keys = [k for k in keys if k is not None]
    bounds = list(whole)
    for axis, k in enumerate(keys):
        size = whole[axis][1]
        if axis == 0:
            continue
        if isinstance(k, int):
            bounds[axis] = (k % size, k % size + 1)
            continue
        begin, end, step = k.indices(size)
        if step != 1 or end <= begin:
            raise ValueError("a slice with steps has no int8 operator here; take every element")
        bounds[axis] = (begin, end)
    return tuple(bounds)
