"""The values and operators of an int8 network, written down one after the other.

Sequences are laid out as images of height 1, [1, 1, length, channels]: convolutions and pooling
have two spatial axes in TFLite, and nothing else minds.
"""

import math
from collections.abc import Iterable
from typing import Any

from udc_tf.export import folding
from udc_tf.export.integer_network import Kernel, Step, Value
from udc_tf.graph.activations import LINEAR, Activation
from udc_tf.graph.affine import Affine
from udc_tf.graph.trace import Node

_SEQUENCE, _IMAGE = 3, 4  # axes
# Vela 5.2 reads from the start of what is sliced for a transposed convolution or for a depthwise
# one with a multiplier; for 32 and 64 MACs puts the look-up table behind a transposition beyond the
# end of SHRAM; and writes an enlarged image to the wrong place of what it becomes a part of.
_MULTIPLIED = "DEPTHWISE_CONV_2D with a multiplier"
_TOO_CLOSE = {
    "RESIZE_BILINEAR": ("CONCATENATION", "PAD"),
    "STRIDED_SLICE": ("TRANSPOSE_CONV", _MULTIPLIED),
    "TRANSPOSE": ("LOGISTIC", "TANH", "LEAKY_RELU", "ELU", "HARD_SWISH", "PRELU", "SOFTMAX"),
}


def laid_out(shape: tuple[int, ...]) -> tuple[int, ...]:
    """How a tensor of the Keras model lies in the int8 network.

    >>> laid_out((1, 20, 6)), laid_out((1, 8, 8, 3)), laid_out((1, 10))
    ((1, 1, 20, 6), (1, 8, 8, 3), (1, 10))
    """
    return (shape[0], 1, *shape[1:]) if len(shape) == _SEQUENCE else tuple(shape)


class Emitter:
    """Collects values and steps; each call appends what it says and gives the new value."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.steps: list[Step] = []

    def value(self, name: str, shape: Iterable[int], follows: int | None = None) -> int:
        self.values.append(Value(name, tuple(shape), follows=follows))
        return len(self.values) - 1

    def shape(self, value: int) -> tuple[int, ...]:
        return self.values[value].shape

    def emit(
        self,
        kind: str,
        node: Node,
        inputs: Iterable[int],
        shape: Iterable[int],
        *,
        follows: int | None = None,
        suffix: str = "",
        fused: Activation = LINEAR,
        **fields: Any,
    ) -> int:
        """An operator.

        Args:
            follows: the input whose scale its output has.
            suffix: of its name, behind the layer's.
            fused: a ReLU that becomes part of it.
        """
        multiplied = fields.get("options", {}).get("multiplier", 1) > 1
        reader = _MULTIPLIED if multiplied else kind
        inputs = [self._kept_apart(node, value, reader, suffix) for value in inputs]
        output = self.value(f"{node.name}{suffix}", shape, follows)
        fields |= {"activation": fused.operator or "NONE"}
        if fused.limited and fused.range is not None:
            fields |= {"limits": fused.range}
            self.prescribe(output, fused.range)
        self.steps.append(Step(kind, node.name, tuple(inputs), output, **fields))
        return output

    def _kept_apart(self, node: Node, value: int, reader: str, suffix: str) -> int:
        """A copy of a value, where Vela would join its maker with its reader and get it wrong."""
        makers = {step.output: step.kind for step in self.steps}
        if reader not in _TOO_CLOSE.get(makers.get(value, ""), ()):
            return value
        once = {"size": (1, 1), "strides": (1, 1), "padding": "VALID"}
        shape = self.shape(value)
        copy = self.value(f"{node.name}{suffix}_copy", shape, follows=value)
        self.steps.append(Step("MAX_POOL_2D", node.name, (value,), copy, options=once))
        return copy

    def prescribe(self, value: int, limits: tuple[float, float]) -> None:
        """Gives a value its range for good."""
        root = self.root(value)
        root.trained, root.prescribed = limits, True

    def made_by(self, value: int) -> Step:
        """The step before all that only gives a value another shape."""
        step = next(s for s in reversed(self.steps) if s.output == value)
        return self.made_by(step.inputs[0]) if step.kind == "RESHAPE" else step

    def root(self, value: int) -> Value:
        """The value whose scale this one has."""
        while (follows := self.values[value].follows) is not None:
            value = follows
        return self.values[value]

    def reshape(self, node: Node, value: int, shape: tuple[int, ...], suffix: str = "") -> int:
        if self.shape(value) == tuple(shape):
            return value
        return self.emit("RESHAPE", node, (value,), shape, follows=value, suffix=suffix)

    def pointwise(
        self,
        node: Node,
        value: int,
        kernel: Kernel,
        shape: tuple[int, ...],
        kind: str,
        fused: Activation = LINEAR,
        suffix: str = "",
    ) -> int:
        """A 1x1 convolution over the last axis, whatever the rank."""
        is_image = len(shape) == _IMAGE
        positions = math.prod(shape[1:-1])
        image = shape if is_image else (1, 1, positions, shape[-1])
        if not is_image:
            flat = (1, 1, positions, self.shape(value)[-1])
            value = self.reshape(node, value, flat, f"{suffix}_image")
        if kind == "CONV_2D":
            codes = kernel.codes.reshape(kernel.codes.shape[0], 1, 1, -1)
            kernel = Kernel(**{**vars(kernel), "codes": codes})
        options = {"strides": (1, 1), "dilation": (1, 1), "padding": "VALID", "multiplier": 1}
        value = self.emit(
            kind, node, (value,), image, kernel=kernel, fused=fused, options=options, suffix=suffix
        )
        return value if is_image else self.reshape(node, value, shape, f"{suffix}_flat")

    def affine(
        self, node: Node, value: int, affine: Affine, fused: Activation = LINEAR, suffix: str = ""
    ) -> int:
        """A factor and an offset per channel, as a depthwise convolution."""
        kernel = folding.affine_kernel(node.name, affine)
        shape = self.shape(value)
        return self.pointwise(node, value, kernel, shape, "DEPTHWISE_CONV_2D", fused, suffix)
