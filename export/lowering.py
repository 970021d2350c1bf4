"""From the Keras graph to int8 operators, by the rulebook of layers.

Batch norm folds into the convolution before it and a ReLU into the operator before it. A batch norm
on its own becomes a 1x1 depthwise convolution. A dense layer that batch norm follows becomes a 1x1
convolution, because only convolutions have a scale a channel.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import layers as kl

from udc_tf.export import folding, structure
from udc_tf.export.errors import ConversionError
from udc_tf.export.integer_network import IntegerNetwork, Kernel, Step, Value
from udc_tf.graph import activations
from udc_tf.graph.activations import Activation
from udc_tf.graph.affine import Affine
from udc_tf.graph.layer_rules import (
    Channels,
    Range,
    Rule,
    absorbed,
    activation_of_node,
    refusal,
    rule_of_node,
)
from udc_tf.graph.trace import Graph, Node, TensorRef, trace
from udc_tf.graph.uses import Uses
from udc_tf.layers.activation_quantizer import ActivationQuantizer


def lower(model: keras.Model, copy: bool = True) -> IntegerNetwork:
    """The int8 operators of a functional or sequential model.

    Args:
        model: the network.
        copy: as for `trace`.

    Raises:
        ConversionError: a layer has no int8 operator here; the message names it.

    Example:

    >>> x = keras.Input((8, 8, 3))
    >>> y = kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(4, 3, use_bias=False, name="conv")(x)))
    >>> [(step.kind, step.activation) for step in lower(keras.Model(x, y)).steps]
    [('CONV_2D', 'RELU')]
    """
    return _Lowering(trace(model, copy)).network


class _Lowering:
    def __init__(self, graph: Graph):
        self._graph = graph
        self._values: list[Value] = []
        self._steps: list[Step] = []
        self._value_of: dict[int, int] = {}  # tensor of the graph -> value
        self._done: set[int] = set()  # nodes that went into the operator before them
        self._uses = Uses.of(graph)
        inputs = keras.tree.flatten(graph.inputs)
        for ref, name in zip(inputs, graph.input_names, strict=True):
            self._value_of[ref.id] = self._value(name, self._shape(ref, name))
        for node in graph.nodes:
            if id(node) not in self._done:
                self._visit(node)
        self.network = IntegerNetwork(
            name=graph.name,
            values=self._values,
            steps=self._steps,
            inputs=tuple(self._value_of[ref.id] for ref in inputs),
            outputs=tuple(self._value_of[r.id] for r in keras.tree.flatten(graph.outputs)),
            graph=graph,
            value_of=self._value_of,
        )

    # Values and steps.

    def _value(self, name: str, shape: Sequence[int], follows: int | None = None) -> int:
        self._values.append(Value(name, tuple(shape), follows=follows))
        return len(self._values) - 1

    def _emit(
        self,
        kind: str,
        node: Node,
        inputs: Sequence[int],
        shape: Sequence[int],
        *,
        follows: int | None = None,
        suffix: str = "",
        **fields: Any,
    ) -> int:
        """Appends an operator; `follows` is the input whose scale its output has."""
        output = self._value(f"{node.name}{suffix}", shape, follows)
        self._steps.append(Step(kind, node.name, tuple(inputs), output, **fields))
        return output

    def _inputs(self, node: Node) -> list[int]:
        return [self._value_of[ref.id] for ref in node.inputs]

    def _shape(self, ref: TensorRef, name: str) -> tuple[int, ...]:
        if None in ref.shape[1:] or ref.shape[:1] not in ((None,), (1,)):
            raise ConversionError(
                f"All sizes but the batch must be known, and the batch must be open or 1, at "
                f"`{name}`. Received: {ref.shape}"
            )
        return (1, *(size or 0 for size in ref.shape[1:]))  # none is None

    # One node.

    def _visit(self, node: Node) -> None:
        why = refusal(node)
        if why is not None:
            raise ConversionError(f"`{node.name}` cannot be exported: {why}. {_received(node)}")
        layer, rule = node.layer, rule_of_node(node)
        if rule.kernel is not None:
            self._kernel(node, rule)
        elif isinstance(layer, (kl.BatchNormalization, kl.Rescaling)):
            self._affine(node)
        elif rule.channels is Channels.TIES and rule.operator is not None:
            self._elementwise(node, rule.operator)
        else:
            self._value_of[node.output.id] = self._alone(node, rule)

    def _alone(self, node: Node, rule: Rule) -> int:
        """A call into which nothing else goes."""
        value = self._inputs(node)[0]
        if isinstance(node.layer, ActivationQuantizer):
            return self._quantizer(node)
        if rule.operator is None:
            return value
        activation = activation_of_node(node)
        if activation.operator is not None:
            return self._activate(node, value, activation)
        return self._structural(node, rule.operator)

    def _quantizer(self, node: Node) -> int:
        value, layer = self._inputs(node)[0], node.layer
        low, high = float(layer.minimum.numpy()), float(layer.maximum.numpy())
        seen = layer.fixed_range is not None or float(layer.seen.numpy()) > 0.5
        if not seen or not high > low:
            return value  # it never saw data
        target = self._values[value]
        # The value whose scale this one has: a dense layer with batch norm is a convolution and a
        # reshape, and the range is the convolution's.
        root = self._root(value)
        if root.trained in (None, (low, high)):
            if not root.prescribed:
                root.trained = (low, high)
                root.rounds_twice = layer.rounds_twice
            return value
        if target.trained == (low, high):
            return value
        output = self._emit("QUANTIZE", node, (value,), target.shape)
        self._values[output].trained = (low, high)
        return output

    def _root(self, value: int) -> Value:
        while (followed := self._values[value].follows) is not None:
            value = followed
        return self._values[value]

    def _absorb(self, node: Node) -> tuple[Affine | None, str, TensorRef]:
        """What goes into a call: its batch norm, its ReLU (or "NONE"), and what then comes out."""
        affine, fused, final = None, "NONE", node.output
        for following in absorbed(node, self._uses):
            self._done.add(id(following))
            final = following.output
            if isinstance(following.layer, kl.BatchNormalization):
                affine = Affine.of(following.layer, node.output.shape[-1] or 0)
            else:
                fused = activation_of_node(following).operator or "NONE"
        return affine, fused, final

    def _kernel(self, node: Node, rule: Rule) -> None:
        activation = activation_of_node(node)
        affine, fused, final = self._absorb(node)
        if activation.fuses:
            fused = activation.operator or "NONE"
        value = self._apply_kernel(node, rule, affine, fused)
        if activation.operator is not None and not activation.fuses:
            value = self._activate(node, value, activation, suffix="_activation")
        self._value_of[final.id] = value

    def _apply_kernel(self, node: Node, rule: Rule, affine: Affine | None, fused: str) -> int:
        layer, kind, (value,) = node.layer, rule.kernel or "", self._inputs(node)
        shape = self._shape(node.output, node.name)
        if kind == "Dense":
            return self._dense(node, value, affine, fused, shape)
        kernel = folding.fold(layer, node.name, kind, affine, per_tensor=False)
        options = {
            "strides": _pair(layer.strides),
            "dilation": _pair(layer.dilation_rate),
            "padding": layer.padding.upper(),
        }
        if kind == "DepthwiseConv2D":
            options["multiplier"] = layer.depth_multiplier
        return self._emit(
            rule.operator or "",
            node,
            (value,),
            shape,
            kernel=kernel,
            activation=fused,
            options=options,
        )

    def _dense(
        self, node: Node, value: int, affine: Affine | None, fused: str, shape: tuple[int, ...]
    ) -> int:
        flat = len(shape) == 2
        kernel = folding.fold(node.layer, node.name, "Dense", affine, per_tensor=affine is None)
        if flat and affine is None:
            return self._emit(
                "FULLY_CONNECTED", node, (value,), shape, kernel=kernel, activation=fused
            )
        return self._pointwise(node, value, kernel, fused, shape, "CONV_2D")

    def _affine(self, node: Node) -> None:
        shape = self._shape(node.output, node.name)
        kernel = folding.affine_kernel(node.name, Affine.of(node.layer, shape[-1]))
        _, fused, final = self._absorb(node)
        value = self._inputs(node)[0]
        self._value_of[final.id] = self._pointwise(
            node, value, kernel, fused, shape, "DEPTHWISE_CONV_2D"
        )

    def _pointwise(
        self, node: Node, value: int, kernel: Kernel, fused: str, shape: tuple[int, ...], kind: str
    ) -> int:
        """A 1x1 convolution over the last axis, whatever the rank."""
        positions = math.prod(shape[1:-1])
        source = self._values[value].shape
        image = shape if len(shape) == 4 else (1, 1, positions, shape[-1])
        if len(shape) != 4:
            value = self._reshape(node, value, (1, 1, positions, source[-1]), "_image")
        if kind == "CONV_2D":
            codes = kernel.codes.reshape(kernel.codes.shape[0], 1, 1, -1)
            kernel = Kernel(**{**vars(kernel), "codes": codes})
        options = {"strides": (1, 1), "dilation": (1, 1), "padding": "VALID", "multiplier": 1}
        value = self._emit(
            kind, node, (value,), image, kernel=kernel, activation=fused, options=options
        )
        return value if len(shape) == 4 else self._reshape(node, value, shape, "_flat")

    def _reshape(self, node: Node, value: int, shape: Sequence[int], suffix: str = "") -> int:
        if self._values[value].shape == tuple(shape):
            return value
        return self._emit("RESHAPE", node, (value,), shape, follows=value, suffix=suffix)

    def _elementwise(self, node: Node, operator: str) -> None:
        inputs = self._inputs(node)
        _, fused, final = self._absorb(node)
        value = inputs[0]
        for n, other in enumerate(inputs[1:], 2):
            shapes = self._values[value].shape, self._values[other].shape
            last = n == len(inputs)
            value = self._emit(
                operator,
                node,
                (value, other),
                np.broadcast_shapes(*shapes),
                suffix="" if last else f"_{n}",
                activation=fused if last else "NONE",
            )
        self._value_of[final.id] = value

    def _activate(self, node: Node, value: int, activation: Activation, suffix: str = "") -> int:
        shape = self._values[value].shape
        if activation.operator == "SILU":
            sigmoid = activations.of_function(keras.activations.sigmoid)
            gate = self._activate(node, value, sigmoid, suffix=f"{suffix}_gate")
            return self._emit("MUL", node, (value, gate), shape, suffix=suffix)
        # TFLM cuts a RELU6 off in its input's units and does not scale it to others.
        follows = value if activation.operator == "RELU6" else None
        output = self._emit(
            activation.operator or "",
            node,
            (value,),
            shape,
            follows=follows,
            options=dict(activation.options),
            suffix=suffix,
        )
        if activation.range is not None:
            self._values[output].trained = activation.range
            self._values[output].prescribed = True
        return output

    def _structural(self, node: Node, operator: str) -> int:
        inputs, shape = self._inputs(node), self._shape(node.output, node.name)
        if operator == "RESHAPE":
            return self._reshape(node, inputs[0], shape)
        options = structure.options_of(operator, node)
        follows = inputs[0] if rule_of_node(node).range is Range.KEPT else None
        if operator == "MAX_POOL_2D" and len(shape) == 2:
            image = (1, 1, 1, shape[-1])
            pooled = self._emit(
                operator, node, inputs, image, follows=follows, options=options, suffix="_image"
            )
            return self._reshape(node, pooled, shape)
        return self._emit(operator, node, inputs, shape, follows=follows, options=options)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    height, width = (value, value) if isinstance(value, int) else value
    return height, width


def _received(node: Node) -> str:
    return f"Received: {type(node.layer).__name__} with outputs {node.outputs}"
