"""Layers without weights that move, pool or resize: the options of their TFLite operators."""

from typing import Any

import numpy as np
from keras import layers as kl

from udc_tf.graph.trace import Node


def options_of(operator: str, node: Node) -> dict[str, Any]:
    """What a node's operator needs besides its inputs."""
    return _OPTIONS[operator](node)


def _pool(node: Node) -> dict[str, Any]:
    layer = node.layer
    if isinstance(layer, kl.GlobalMaxPooling2D):
        size = tuple(node.inputs[0].shape[1:3])
        return {"size": size, "strides": size, "padding": "VALID"}
    return {
        "size": tuple(layer.pool_size),
        "strides": tuple(layer.strides),
        "padding": layer.padding.upper(),
    }


def _mean(node: Node) -> dict[str, Any]:
    return {"axes": (1, 2), "keep": node.layer.keepdims}


def _pad(node: Node) -> dict[str, Any]:
    rows, columns = node.layer.padding
    return {"padding": ((0, 0), tuple(rows), tuple(columns), (0, 0))}


def _crop(node: Node) -> dict[str, Any]:
    (top, _), (left, _) = node.layer.cropping
    height, width, channels = node.output.shape[1:]
    return {"begin": (0, top, left, 0), "end": (1, top + height, left + width, channels)}


def _resize(node: Node) -> dict[str, Any]:
    return {"size": tuple(node.output.shape[1:3])}


def _concatenate(node: Node) -> dict[str, Any]:
    rank = len(node.output.shape)
    return {"axis": int(np.arange(rank)[node.layer.axis])}


_OPTIONS = {
    "MAX_POOL_2D": _pool,
    "AVERAGE_POOL_2D": _pool,
    "MEAN": _mean,
    "PAD": _pad,
    "STRIDED_SLICE": _crop,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "RESIZE_BILINEAR": _resize,
    "CONCATENATION": _concatenate,
}
