"""From the Keras graph to int8 operators: what folds, what fuses, which operator each layer is.

Batch norm folds into the convolution before it and a ReLU into the operator before it. A batch norm
on its own becomes a 1x1 depthwise convolution. A dense layer that batch norm follows becomes a 1x1
convolution, because only convolutions have a scale a channel.
"""

import math

import keras
import numpy as np
from keras import layers as kl

from udc_tf.export import folding
from udc_tf.export.errors import ConversionError
from udc_tf.export.integer_network import IntegerNetwork, Kernel, Step, Value
from udc_tf.graph import conversion
from udc_tf.graph.trace import Graph, Node, TensorRef, trace
from udc_tf.layers.activation_quantizer import FIXED_RANGES, ActivationQuantizer
from udc_tf.layers.choice import Mix

_NOTHING = (
    kl.Dropout,
    kl.SpatialDropout2D,
    kl.GaussianNoise,
    kl.GaussianDropout,
    kl.Identity,
    kl.ActivityRegularization,
    Mix,
)
_ELEMENTWISE = {"Add": "ADD", "Subtract": "SUB", "Multiply": "MUL"}
_ACTIVATION_OPS = ("Relu", "Relu6", "Sigmoid", "Tanh", "Silu", "HardSwish", "Softmax", "LeakyRelu")
_FUSED = {"relu": "RELU", "relu6": "RELU6"}
_OPERATORS = {
    "relu": "RELU",
    "relu6": "RELU6",
    "sigmoid": "LOGISTIC",
    "tanh": "TANH",
    "softmax": "SOFTMAX",
    "leaky_relu": "LEAKY_RELU",
    "hard_silu": "HARD_SWISH",
    "hard_swish": "HARD_SWISH",
}
_CONVOLUTIONS = {
    "Conv2D": "CONV_2D",
    "DepthwiseConv2D": "DEPTHWISE_CONV_2D",
    "Conv2DTranspose": "TRANSPOSE_CONV",
}


def lower(model: keras.Model) -> IntegerNetwork:
    """The int8 operators of a functional or sequential model.

    Raises:
        ConversionError: a layer has no int8 operator here; the message names it.

    Example:

    >>> x = keras.Input((8, 8, 3))
    >>> y = kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(4, 3, use_bias=False, name="conv")(x)))
    >>> [(step.kind, step.activation) for step in lower(keras.Model(x, y)).steps]
    [('CONV_2D', 'RELU')]
    """
    return _Lowering(trace(model)).network


class _Lowering:
    def __init__(self, graph: Graph):
        self._graph = graph
        self._values: list[Value] = []
        self._steps: list[Step] = []
        self._value_of: dict[int, int] = {}  # tensor of the graph -> value
        self._done: set[int] = set()  # nodes that went into the operator before them
        self._outputs = {ref.id for ref in keras.tree.flatten(graph.outputs)}
        self._consumers: dict[int, list[Node]] = {}
        for node in graph.nodes:
            for ref in node.inputs:
                self._consumers.setdefault(ref.id, []).append(node)
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
        )

    # Values and steps.

    def _value(self, name: str, shape, follows: int | None = None) -> int:
        self._values.append(Value(name, tuple(shape), follows=follows))
        return len(self._values) - 1

    def _emit(self, kind, node, inputs, shape, *, follows=None, suffix="", **fields) -> int:
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
        return (1, *ref.shape[1:])

    def _sole_consumer(self, ref: TensorRef) -> Node | None:
        users = self._consumers.get(ref.id, [])
        return users[0] if len(users) == 1 and ref.id not in self._outputs else None

    # One node.

    def _visit(self, node: Node) -> None:
        layer, kind = node.layer, type(node.layer).__name__
        if isinstance(layer, ActivationQuantizer):
            result = self._quantizer(node)
        elif isinstance(layer, _NOTHING):
            result = self._inputs(node)[0]
        elif conversion.kernel_kind(layer) is not None:
            self._kernel(node)
            return
        elif isinstance(layer, (kl.BatchNormalization, kl.Rescaling)):
            self._affine(node)
            return
        elif isinstance(layer, (kl.Add, kl.Subtract, kl.Multiply)) or kind in _ELEMENTWISE:
            self._elementwise(node, kind)
            return
        elif activation_of(layer) is not None:
            value = self._inputs(node)[0]
            result = self._activate(node, value, activation_of(layer))
        else:
            result = self._structural(node)
        self._value_of[node.output.id] = result

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
        while self._values[value].follows is not None:
            value = self._values[value].follows
        return self._values[value]

    def _tail(self, node: Node, activated: bool) -> tuple[str, TensorRef]:
        """The ReLU that fuses into `node` (or "NONE"), and the tensor that comes out then."""
        following = self._sole_consumer(node.output)
        if not activated and following is not None:
            name = activation_of(following.layer)
            if name in _FUSED and conversion.kernel_kind(following.layer) is None:
                self._done.add(id(following))
                return _FUSED[name], following.output
        return "NONE", node.output

    def _kernel(self, node: Node) -> None:
        layer, kind = node.layer, conversion.kernel_kind(node.layer)
        activation = activation_of(layer)
        if activation == "unknown":
            raise _unsupported(node, "its activation")
        affine, last = None, node
        following = self._sole_consumer(node.output)
        if activation is None and following is not None and _folds(following):
            self._done.add(id(following))
            affine, last = folding.Affine.of(following.layer, node.output.shape[-1]), following
        fused, final = _FUSED.get(activation, "NONE"), last.output
        if activation is None:
            fused, final = self._tail(last, activated=False)
        value = self._apply_kernel(node, kind, affine, fused)
        if activation is not None and activation not in _FUSED:
            value = self._activate(node, value, activation, suffix="_activation")
        self._value_of[final.id] = value

    def _apply_kernel(self, node, kind, affine, fused) -> int:
        layer, (value,) = node.layer, self._inputs(node)
        shape = self._shape(node.output, node.name)
        if kind == "Dense":
            return self._dense(node, value, affine, fused, shape)
        if getattr(layer, "data_format", "channels_last") != "channels_last":
            raise _unsupported(node, "data_format='channels_first'")
        kernel = folding.fold(layer, node.name, kind, affine, per_tensor=False)
        options = {
            "strides": _pair(layer.strides),
            "dilation": _pair(layer.dilation_rate),
            "padding": layer.padding.upper(),
        }
        if kind == "DepthwiseConv2D":
            options["multiplier"] = layer.depth_multiplier
        if kind == "Conv2DTranspose" and (
            options["dilation"] != (1, 1) or getattr(layer, "output_padding", None) is not None
        ):
            raise _unsupported(node, "dilation or output padding of a transposed convolution")
        return self._emit(
            _CONVOLUTIONS[kind],
            node,
            (value,),
            shape,
            kernel=kernel,
            activation=fused,
            options=options,
        )

    def _dense(self, node, value, affine, fused, shape) -> int:
        flat = len(shape) == 2
        kernel = folding.fold(node.layer, node.name, "Dense", affine, per_tensor=affine is None)
        if flat and affine is None:
            return self._emit(
                "FULLY_CONNECTED", node, (value,), shape, kernel=kernel, activation=fused
            )
        return self._pointwise(node, value, kernel, fused, shape, "CONV_2D")

    def _affine(self, node: Node) -> None:
        shape = self._shape(node.output, node.name)
        axis = getattr(node.layer, "axis", -1)
        if axis not in (-1, len(shape) - 1):
            raise _unsupported(node, f"axis={axis}")
        kernel = folding.affine_kernel(node.name, folding.Affine.of(node.layer, shape[-1]))
        fused, final = self._tail(node, activated=False)
        value = self._inputs(node)[0]
        self._value_of[final.id] = self._pointwise(
            node, value, kernel, fused, shape, "DEPTHWISE_CONV_2D"
        )

    def _pointwise(self, node, value, kernel: Kernel, fused, shape, kind) -> int:
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

    def _reshape(self, node, value: int, shape, suffix: str = "") -> int:
        if self._values[value].shape == tuple(shape):
            return value
        return self._emit("RESHAPE", node, (value,), shape, follows=value, suffix=suffix)

    def _elementwise(self, node: Node, kind: str) -> None:
        inputs = self._inputs(node)
        if len(inputs) < 2:
            raise _unsupported(node, "a number as one of its operands")
        fused, final = self._tail(node, activated=False)
        value = inputs[0]
        for n, other in enumerate(inputs[1:], 2):
            shapes = self._values[value].shape, self._values[other].shape
            last = n == len(inputs)
            value = self._emit(
                _ELEMENTWISE[kind],
                node,
                (value, other),
                np.broadcast_shapes(*shapes),
                suffix="" if last else f"_{n}",
                activation=fused if last else "NONE",
            )
        self._value_of[final.id] = value

    def _activate(self, node: Node, value: int, name: str, suffix: str = "") -> int:
        shape = self._values[value].shape
        if name == "silu":
            gate = self._activate(node, value, "sigmoid", suffix=f"{suffix}_gate")
            return self._emit("MUL", node, (value, gate), shape, suffix=suffix)
        if name not in _OPERATORS:
            raise _unsupported(node, f"the activation {name!r}")
        options = {}
        if name == "leaky_relu":
            options["alpha"] = float(getattr(node.layer, "negative_slope", 0.2))
        output = self._emit(_OPERATORS[name], node, (value,), shape, options=options, suffix=suffix)
        if name in FIXED_RANGES:
            self._values[output].trained = FIXED_RANGES[name]
            self._values[output].prescribed = True
        return output

    def _structural(self, node: Node) -> int:
        from udc_tf.export import structure

        kind, options = structure.operator_of(node)
        if kind is None:
            raise _unsupported(node, "this layer")
        inputs, shape = self._inputs(node), self._shape(node.output, node.name)
        if kind == "RESHAPE":
            return self._reshape(node, inputs[0], shape)
        # Concatenation's inputs take its output's scale; a mean has a scale of its own.
        follows = None if kind in ("MEAN", "CONCATENATION") else inputs[0]
        if kind == "MAX_POOL_2D" and len(shape) == 2:
            image = (1, 1, 1, shape[-1])
            pooled = self._emit(
                kind, node, inputs, image, follows=follows, options=options, suffix="_image"
            )
            return self._reshape(node, pooled, shape)
        return self._emit(kind, node, inputs, shape, follows=follows, options=options)


def activation_of(layer: keras.Operation) -> str | None:
    """The name of the activation a layer applies; None for none, "unknown" for one of its own."""
    if isinstance(layer, kl.ReLU):
        if layer.threshold or layer.max_value not in (None, 6):
            return "unknown"
        if layer.negative_slope:
            return "leaky_relu" if layer.max_value is None else "unknown"
        return "relu" if layer.max_value is None else "relu6"
    if isinstance(layer, kl.LeakyReLU):
        return "leaky_relu"
    if isinstance(layer, kl.Softmax):
        return "softmax"
    kind = type(layer).__name__
    if kind in _ACTIVATION_OPS and not isinstance(layer, keras.layers.Layer):
        return {"LeakyRelu": "leaky_relu", "HardSwish": "hard_silu"}.get(kind, kind.lower())
    activation = getattr(layer, "activation", None)
    if activation is None:
        return None
    name = getattr(activation, "__name__", "unknown")
    if name == "linear":
        return None
    return name if name in (*_OPERATORS, "silu") else "unknown"


def _folds(node: Node) -> bool:
    """Whether a batch norm is over the last axis, and so folds into the layer before it."""
    rank = len(node.output.shape)
    return isinstance(node.layer, kl.BatchNormalization) and node.layer.axis in (-1, rank - 1)


def _pair(value) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _unsupported(node: Node, what: str) -> ConversionError:
    return ConversionError(
        f"There is no int8 operator for {what} of `{node.name}`. Received: "
        f"{type(node.layer).__name__} with outputs {node.outputs}"
    )
