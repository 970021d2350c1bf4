"""Layers without weights that move, pool, reduce or resize: the options of their TFLite operators.

Options are for tensors as `emitter.laid_out` lays them out: a sequence is an image of height 1.
"""

from typing import Any

import numpy as np
from keras import layers as kl

from udc_tf.graph import shapes
from udc_tf.graph.trace import Node, TensorRef

_IMAGE = 4  # axes of an image


def options_of(operator: str, node: Node) -> dict[str, Any]:
    """What a node's operator needs besides its inputs."""
    return _OPTIONS[operator](node)


def of_image(sizes: int | tuple[int, ...], height: int = 1) -> tuple[int, int]:
    """Height and width out of one number per spatial axis, or one for two axes.

    >>> of_image((3,)), of_image((3, 5))
    ((1, 3), (3, 5))
    """
    if isinstance(sizes, int):
        return sizes, sizes
    first, last = sizes if len(sizes) > 1 else (height, *sizes)
    return first, last


def axes_of_image(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Axes of a tensor, as they are where it is laid out; of a sequence, its height goes along."""
    if rank != _IMAGE - 1:
        return axes
    moved = tuple(axis + 1 for axis in axes)
    return (1, *moved) if moved == (2,) else moved


def bounds_of_image(bounds: shapes.Bounds) -> shapes.Bounds:
    return (bounds[0], (0, 1), *bounds[1:]) if len(bounds) == _IMAGE - 1 else bounds


def _positions(ref: TensorRef) -> tuple[int, ...]:
    return tuple(size or 0 for size in ref.shape[1:-1])  # all are known here


def _pool(node: Node) -> dict[str, Any]:
    layer = node.layer
    if not hasattr(layer, "pool_size"):
        shape = node.inputs[0].shape
        axes = shapes.reduced_axes(layer, len(shape))
        sizes = tuple((shape[a] or 1) if a in axes else 1 for a in range(1, len(shape) - 1))
        size = of_image(sizes)
        return {"size": size, "strides": size, "padding": "VALID"}
    spatial = len(node.inputs[0].shape) - 2
    window = _each(layer.pool_size, spatial)
    return {
        "size": of_image(window),
        "strides": of_image(window if layer.strides is None else _each(layer.strides, spatial)),
        "padding": layer.padding.upper(),
    }


def _each(sizes: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """Operations of keras.ops may be given one number for all axes."""
    return (sizes,) * axes if isinstance(sizes, int) else tuple(sizes)


def _reduce(node: Node) -> dict[str, Any]:
    rank = len(node.inputs[0].shape)
    return {"axes": axes_of_image(shapes.reduced_axes(node.layer, rank), rank), "keep": True}


def _pad(node: Node) -> dict[str, Any]:
    layer = node.layer
    if isinstance(layer, (kl.ZeroPadding1D, kl.ZeroPadding2D)):
        around = [layer.padding] if isinstance(layer, kl.ZeroPadding1D) else layer.padding
        pairs = ((0, 0), *map(tuple, around), (0, 0))
    else:
        pairs = tuple(map(tuple, layer.pad_width))
    return {"padding": (pairs[0], (0, 0), *pairs[1:]) if len(pairs) == _IMAGE - 1 else pairs}


def _resize(node: Node) -> dict[str, Any]:
    return {"size": of_image(_positions(node.output))}


def _concatenate(node: Node) -> dict[str, Any]:
    rank = len(node.output.shape)
    (axis,) = axes_of_image((int(np.arange(rank)[node.layer.axis]),), rank)[-1:]
    return {"axis": axis}


def _transpose(node: Node) -> dict[str, Any]:
    rank = len(node.output.shape)
    order = shapes.permutation(node.layer, rank)
    return {"order": (0, 1, *(a + 1 for a in order[1:])) if rank == _IMAGE - 1 else order}


_OPTIONS = {
    "MAX_POOL_2D": _pool,
    "AVERAGE_POOL_2D": _pool,
    "MEAN": _reduce,
    "PAD": _pad,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "RESIZE_BILINEAR": _resize,
    "CONCATENATION": _concatenate,
    "PACK": _concatenate,
    "BATCH_MATMUL": lambda node: {},
    "RSQRT": lambda node: {"least": node.layer.epsilon},
    "TRANSPOSE": _transpose,
}
