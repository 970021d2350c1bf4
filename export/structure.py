"""Layers without weights that move, pool or resize: their TFLite operator and its options."""

from typing import Any

import numpy as np
from keras import layers as kl

from udc_tf.graph.trace import Node


def operator_of(node: Node) -> tuple[str | None, dict[str, Any]]:
    """TFLite's operator for a node and what it needs besides its inputs; None: there is none."""
    layer = node.layer
    if getattr(layer, "data_format", "channels_last") == "channels_first":
        return None, {}
    for classes, translate in _TRANSLATIONS:
        if isinstance(layer, classes):
            return translate(node)
    if type(layer).__name__ in ("Reshape", "Squeeze", "ExpandDims"):
        return "RESHAPE", {}
    return None, {}


def _reshape(node: Node):
    return "RESHAPE", {}


def _pool(node: Node):
    layer = node.layer
    kind = "MAX_POOL_2D" if isinstance(layer, kl.MaxPooling2D) else "AVERAGE_POOL_2D"
    return kind, {
        "size": tuple(layer.pool_size),
        "strides": tuple(layer.strides),
        "padding": layer.padding.upper(),
    }


def _global_maximum(node: Node):
    size = tuple(node.inputs[0].shape[1:3])
    return "MAX_POOL_2D", {"size": size, "strides": size, "padding": "VALID"}


def _global_average(node: Node):
    return "MEAN", {"axes": (1, 2), "keep": node.layer.keepdims}


def _pad(node: Node):
    rows, columns = node.layer.padding
    return "PAD", {"padding": ((0, 0), tuple(rows), tuple(columns), (0, 0))}


def _crop(node: Node):
    (top, _), (left, _) = node.layer.cropping
    height, width, channels = node.output.shape[1:]
    return "STRIDED_SLICE", {
        "begin": (0, top, left, 0),
        "end": (1, top + height, left + width, channels),
    }


def _resize(node: Node):
    size = tuple(node.output.shape[1:3])
    if node.layer.interpolation == "nearest":
        return "RESIZE_NEAREST_NEIGHBOR", {"size": size}
    if node.layer.interpolation == "bilinear":
        return "RESIZE_BILINEAR", {"size": size}
    return None, {}


def _concatenate(node: Node):
    rank = len(node.output.shape)
    return "CONCATENATION", {"axis": int(np.arange(rank)[node.layer.axis])}


_TRANSLATIONS = (
    ((kl.MaxPooling2D, kl.AveragePooling2D), _pool),
    (kl.GlobalMaxPooling2D, _global_maximum),
    (kl.GlobalAveragePooling2D, _global_average),
    ((kl.Flatten, kl.Reshape), _reshape),
    (kl.ZeroPadding2D, _pad),
    (kl.Cropping2D, _crop),
    (kl.UpSampling2D, _resize),
    (kl.Concatenate, _concatenate),
)
