"""Compares the integers in a .tflite with those that the Keras layers themselves report.

Independent of how the file was made: it starts from the file's tensors and the layers'
`integer_kernel`, and knows nothing of folding.
"""

import dataclasses

import keras
import numpy as np

from udc_tf.export import tflite_file
from udc_tf.graph.layer_rules import kernel_kind

# From TFLite's layout to Keras' kernel with its output channels last.
_CHANNELS_LAST = {
    "Conv1D": (lambda held: held.transpose(1, 2, 3, 0), lambda own: own[None]),
    "DepthwiseConv1D": (lambda held: held[0], lambda own: own.reshape(1, len(own), -1)),
    "Conv2D": (lambda held: held.transpose(1, 2, 3, 0), lambda own: own),
    "Conv1DTranspose": (
        lambda held: held.transpose(1, 2, 3, 0),
        lambda own: np.moveaxis(own[None], 2, 3),
    ),
    "Conv2DTranspose": (
        lambda held: held.transpose(1, 2, 3, 0),
        lambda own: np.moveaxis(own, 2, 3),
    ),
    "Dense": (lambda held: held.reshape(held.shape[0], -1).T, lambda own: own),
    "DepthwiseConv2D": (lambda held: held[0], lambda own: own.reshape(*own.shape[:2], -1)),
}


@dataclasses.dataclass(frozen=True)
class CodeCheck:
    """One layer: which channels hold its codes, up to one sign for the channel (batch norm's).

    Attributes:
        equal: channels whose codes are the layer's, position by position.
        collapsed: channels of zeros where the layer has weights.
        different: all others; there should be none.
    """

    layer: str
    equal: int
    collapsed: int
    different: int


def compare_codes(
    model: keras.Model, content: bytes, layers: list[tuple[list[tuple[int, int]], str]]
) -> list[CodeCheck]:
    """One `CodeCheck` for each layer that has an `integer_kernel`.

    Args:
        layers: (terms, name of the layer); a term is the index of an operator in the file and the
            factor with which its weights count.
    """
    file = tflite_file.read(content)
    by_name = {layer.name: layer for layer in model.layers}
    checks = []
    for terms, name in layers:
        layer = by_name.get(name)
        if layer is None or not hasattr(layer, "integer_kernel"):
            continue
        written = [
            factor * np.asarray(file.tensors[file.operators[index].inputs[1]].data, int)
            for index, factor in terms
        ]
        to_held, to_own = _CHANNELS_LAST[kernel_kind(layer) or ""]
        held, own = to_held(sum(written)), to_own(layer.integer_kernel().codes.astype(int))
        if held.shape != own.shape:
            checks.append(CodeCheck(name, 0, 0, own.shape[-1]))
            continue
        axes = tuple(range(own.ndim - 1))
        same = (held == own).all(axis=axes) | (held == -own).all(axis=axes)
        zeroed = ~same & ~held.any(axis=axes)
        rest = int((~same & ~zeroed).sum())
        checks.append(CodeCheck(name, int(same.sum()), int(zeroed.sum()), rest))
    return checks
