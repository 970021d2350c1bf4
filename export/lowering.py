"""From the Keras graph to int8 operators, by the rulebook of layers.

Batch norm folds into the convolution before it and a ReLU into the operator before it. What scales
channels on its own becomes a 1x1 depthwise convolution. A dense layer that batch norm follows
becomes a 1x1 convolution, because only convolutions have a scale a channel.
"""

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import layers as kl

from udc_tf.export import composites, folding, reducing, structure
from udc_tf.export.curves import Curve, beyond
from udc_tf.export.emitter import Emitter, laid_out
from udc_tf.export.errors import ConversionError
from udc_tf.export.integer_network import Constant, IntegerNetwork
from udc_tf.graph import shapes
from udc_tf.graph.activations import LINEAR, Activation
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
from udc_tf.graph.numeric_rules import number_beside
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
        self._emitter = Emitter()
        self._value_of: dict[int, int] = {}  # tensor of the graph -> value
        self._done: set[int] = set()  # nodes that went into the operator before them
        self._uses = Uses.of(graph)
        inputs = self._enter(graph)
        for node in graph.nodes:
            if id(node) not in self._done:
                self._visit(node)
        self.network = IntegerNetwork(
            name=graph.name,
            values=self._emitter.values,
            steps=self._emitter.steps,
            inputs=inputs,
            outputs=tuple(self._leave(graph)),
            graph=graph,
            value_of=self._value_of,
        )

    def _enter(self, graph: Graph) -> tuple[int, ...]:
        """The inputs as they are given, and laid out."""
        entered = []
        for ref, name in zip(keras.tree.flatten(graph.inputs), graph.input_names, strict=True):
            value = self._emitter.value(name, _outer_shape(ref, name))
            entered.append(value)
            if not _only_moved(graph, ref):
                source = Node(name, None, (), {}, ref)
                value = self._emitter.reshape(source, value, self._shape(ref, name), "_image")
            self._value_of[ref.id] = value
        return tuple(entered)

    def _leave(self, graph: Graph) -> Iterator[int]:
        """The outputs in the shapes that the Keras model gives them."""
        left: dict[int, int] = {}
        for ref in keras.tree.flatten(graph.outputs):
            value = self._value_of[ref.id]
            if value not in left:
                name = self._emitter.values[value].name
                target = Node(name, None, (), {}, ref)
                shape = _outer_shape(ref, name)
                left[value] = self._emitter.reshape(target, value, shape, "_output")
            yield left[value]

    def _inputs(self, node: Node) -> list[int]:
        return [self._value_of[ref.id] for ref in node.inputs]

    def _shape(self, ref: TensorRef, name: str) -> tuple[int, ...]:
        return laid_out(_outer_shape(ref, name))

    # One node.

    def _visit(self, node: Node) -> None:
        why = refusal(node)
        if why is not None:
            raise ConversionError(f"`{node.name}` cannot be exported: {why}. {_received(node)}")
        rule = rule_of_node(node)
        if rule.kernel is not None:
            self._kernel(node, rule)
        elif rule.affine is not None:
            _, fused, final = self._absorb(node)
            self._value_of[final.id] = self._emitter.affine(
                node, self._inputs(node)[0], rule.affine(node), fused
            )
        elif rule.channels is Channels.TIES and rule.operator is not None:
            self._elementwise(node, rule.operator)
        elif rule.operator == "STRIDED_SLICE":
            self._slice(node)
        else:
            self._value_of[node.output.id] = self._alone(node, rule)

    def _alone(self, node: Node, rule: Rule) -> int:
        """A call into which nothing else goes."""
        value = self._inputs(node)[0]
        if isinstance(node.layer, ActivationQuantizer):
            return self._quantizer(node)
        if rule.operator is None:
            return value
        if isinstance(node.layer, kl.PReLU):
            slopes = Constant.of(node.layer.alpha.numpy())
            shape = self._emitter.shape(value)
            return self._emitter.emit("PRELU", node, (value,), shape, options={"slopes": slopes})
        if rule.operator in ("MAXIMUM_NUMBER", "MINIMUM_NUMBER"):
            largest = rule.operator.startswith("MAXIMUM")
            return beyond(Curve(self._emitter, node), value, number_beside(node), largest)
        activation = activation_of_node(node)
        if activation.operator is not None:
            return composites.apply(self._emitter, node, value, activation)
        return self._structural(node, rule.operator)

    def _quantizer(self, node: Node) -> int:
        value, layer = self._inputs(node)[0], node.layer
        low, high = float(layer.minimum.numpy()), float(layer.maximum.numpy())
        seen = layer.fixed_range is not None or float(layer.seen.numpy()) > 0.5
        if not seen or not high > low:
            root = self._emitter.root(value)
            root.measured_with, root.limit = node.name, layer.limit or math.inf
            return value  # it never saw data
        target = self._emitter.values[value]
        # The value whose scale this one has: a dense layer with batch norm is a convolution and a
        # reshape, and the range is the convolution's.
        root = self._emitter.root(value)
        if root.trained in (None, (low, high)):
            if not root.prescribed:
                root.trained = (low, high)
                root.rounds_twice = layer.rounds_twice
            return value
        if target.trained == (low, high):
            return value
        output = self._emitter.emit("QUANTIZE", node, (value,), target.shape)
        self._emitter.values[output].trained = (low, high)
        return output

    def _absorb(self, node: Node) -> tuple[Affine | None, Activation, TensorRef]:
        """What goes into a call: its batch norm, its ReLU, and what then comes out."""
        affine, fused, final = None, LINEAR, node.output
        for following in absorbed(node, self._uses):
            self._done.add(id(following))
            final = following.output
            if isinstance(following.layer, kl.BatchNormalization):
                affine = Affine.of(following.layer, node.output.shape[-1] or 1)
            else:
                fused = activation_of_node(following)
        return affine, fused, final

    def _kernel(self, node: Node, rule: Rule) -> None:
        activation = activation_of_node(node)
        affine, fused, final = self._absorb(node)
        if activation.fuses:
            fused = activation
        value = self._apply_kernel(node, rule, affine, fused)
        if activation.operator is not None and not activation.fuses:
            value = composites.apply(self._emitter, node, value, activation, suffix="_activation")
        self._value_of[final.id] = value

    def _apply_kernel(
        self, node: Node, rule: Rule, affine: Affine | None, fused: Activation
    ) -> int:
        layer, kind, (value,) = node.layer, rule.kernel or "", self._inputs(node)
        shape = self._shape(node.output, node.name)
        if kind == "Dense":
            return self._dense(node, value, affine, fused, shape)
        kernel = folding.fold(layer, node.name, kind, affine, per_tensor=False)
        padding, strides = layer.padding, layer.strides
        if padding == "causal":
            value, padding = self._pad_before(node, value), "valid"
        options = {
            "strides": structure.of_image(strides),
            "dilation": structure.of_image(layer.dilation_rate),
            "padding": padding.upper(),
        }
        if rule.operator == "DEPTHWISE_CONV_2D":
            options["multiplier"] = layer.depth_multiplier
            # Over a height of 1 any stride is one; TFLite's depthwise on the NPU has but one.
            options["strides"] = structure.of_image(strides, height=strides[-1])
        return self._emitter.emit(
            rule.operator or "", node, (value,), shape, kernel=kernel, fused=fused, options=options
        )

    def _pad_before(self, node: Node, value: int) -> int:
        layer, shape = node.layer, self._emitter.shape(value)
        before = (layer.kernel_size[0] - 1) * layer.dilation_rate[0]
        if not before:
            return value
        return self._emitter.emit(
            "PAD",
            node,
            (value,),
            (*shape[:2], shape[2] + before, shape[3]),
            follows=value,
            options={"padding": ((0, 0), (0, 0), (before, 0), (0, 0))},
            suffix="_padded",
        )

    def _dense(
        self,
        node: Node,
        value: int,
        affine: Affine | None,
        fused: Activation,
        shape: tuple[int, ...],
    ) -> int:
        flat = len(shape) == 2
        kernel = folding.fold(node.layer, node.name, "Dense", affine, per_tensor=affine is None)
        if flat and affine is None:
            return self._emitter.emit(
                "FULLY_CONNECTED", node, (value,), shape, kernel=kernel, fused=fused
            )
        return self._emitter.pointwise(node, value, kernel, shape, "CONV_2D", fused)

    def _elementwise(self, node: Node, operator: str) -> None:
        emitter = self._emitter
        inputs = [self._of_rank(ref, node) for ref in node.inputs]
        _, fused, final = self._absorb(node)
        average = operator == "AVERAGE"
        value = inputs[0]
        for n, other in enumerate(inputs[1:], 2):
            shape = np.broadcast_shapes(emitter.shape(value), emitter.shape(other))
            last = n == len(inputs)
            value = emitter.emit(
                "ADD" if average else operator,
                node,
                (value, other),
                shape,
                suffix="" if last and not average else f"_{n}",
                fused=fused if last else LINEAR,
            )
        if average:
            value = composites.scaled(emitter, node, value, 1 / len(inputs))
        self._value_of[final.id] = value

    def _of_rank(self, ref: TensorRef, node: Node) -> int:
        """A tensor with as many axes as the output: merging puts some behind the batch."""
        shape, rank = _outer_shape(ref, node.name), len(node.output.shape)
        value, missing = self._value_of[ref.id], rank - len(shape)
        image = laid_out((1, *[1] * missing, *shape[1:]))
        return self._emitter.reshape(node, value, image, "_image") if missing else value

    def _slice(self, node: Node) -> None:
        (value,) = self._inputs(node)
        outputs = keras.tree.flatten(node.outputs)
        for n, (ref, bounds) in enumerate(zip(outputs, shapes.slices(node), strict=True)):
            begin, end = zip(*structure.bounds_of_image(bounds), strict=True)
            cut = self._emitter.emit(
                "STRIDED_SLICE",
                node,
                (value,),
                tuple(e - b for b, e in zip(begin, end, strict=True)),
                follows=value,
                options={"begin": begin, "end": end},
                suffix=f"_{n}" if len(outputs) > 1 else "",
            )
            self._value_of[ref.id] = self._emitter.reshape(
                node, cut, self._shape(ref, node.name), "_flat"
            )

    def _structural(self, node: Node, operator: str) -> int:
        emitter, shape = self._emitter, self._shape(node.output, node.name)
        inputs = self._inputs(node)
        if operator == "RESHAPE":
            return emitter.reshape(node, inputs[0], shape)
        if operator in ("MEAN", "SUM", "MAX_POOL_2D") and reducing.reduces_channels(node):
            value = reducing.over_channels(emitter, node, inputs[0], operator)
            return emitter.reshape(node, value, shape)
        if operator == "PACK":
            axis = structure.options_of(operator, node)["axis"]
            each = (*shape[:axis], 1, *shape[axis + 1 :])
            inputs = [emitter.reshape(node, x, each, f"_{n}") for n, x in enumerate(inputs)]
            operator = "CONCATENATION"
        total = operator == "SUM"
        operator = "MEAN" if total else operator
        options = structure.options_of(operator, node)
        if operator.startswith("RESIZE") and len(emitter.shape(inputs[0])) == 2:  # RepeatVector
            inputs = [emitter.reshape(node, inputs[0], (1, 1, 1, shape[-1]), "_image")]
        kept = self._kept_shape(node, operator, inputs[0], options, shape)
        if operator == "MEAN" and options["axes"] == (1, 2) and len(shape) == 2:
            options, kept = {**options, "keep": False}, shape
        follows = inputs[0] if rule_of_node(node).range is Range.KEPT else None
        plain = kept == shape and not total
        value = emitter.emit(
            operator,
            node,
            inputs,
            kept,
            follows=follows,
            options=options,
            suffix="" if plain else "_image",
        )
        if total:
            over = [emitter.shape(inputs[0])[axis] for axis in options["axes"]]
            value = composites.scaled(emitter, node, value, float(np.prod(over)))
        return emitter.reshape(node, value, shape)

    def _kept_shape(
        self,
        node: Node,
        operator: str,
        value: int,
        options: dict[str, Any],
        shape: tuple[int, ...],
    ) -> tuple[int, ...]:
        """What an operator gives that leaves out no axis."""
        if "axes" in options:
            sizes = enumerate(self._emitter.shape(value))
            return tuple(1 if axis in options["axes"] else size for axis, size in sizes)
        if operator == "MAX_POOL_2D" and not hasattr(node.layer, "pool_size"):
            windows = zip(self._emitter.shape(value)[1:3], options["size"], strict=True)
            return (1, *(size // window for size, window in windows), shape[-1])
        return shape


def _only_moved(graph: Graph, ref: TensorRef) -> bool:
    """Whether all that takes a tensor gives it another shape, so that its own does not matter."""

    def moves(node: Node) -> bool:
        operator = rule_of_node(node).operator
        return operator == "RESHAPE" or (operator is None and _only_moved(graph, node.output))

    return all(moves(node) for node in graph.consumers(ref))


def _outer_shape(ref: TensorRef, name: str) -> tuple[int, ...]:
    if None in ref.shape[1:] or ref.shape[:1] not in ((None,), (1,)):
        raise ConversionError(
            f"All sizes but the batch must be known, and the batch must be open or 1, at "
            f"`{name}`. Received: {ref.shape}"
        )
    return (1, *(size or 0 for size in ref.shape[1:]))


def _received(node: Node) -> str:
    return f"Received: {type(node.layer).__name__} with outputs {node.outputs}"
