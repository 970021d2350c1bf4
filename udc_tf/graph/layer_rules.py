"""The rulebook: what each kind of Keras layer becomes in int8, or why it is refused.

Everything that must know asks here: channel groups, the plan and its prices, quantization points,
folding, lowering. One entry per kind of layer, at the end of this file. What has no entry is
refused, never guessed at: a subclass with methods of its own may compute anything.
"""

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers as kl

from udc_tf.graph import activations
from udc_tf.graph.activations import Activation
from udc_tf.graph.trace import Node
from udc_tf.graph.uses import Uses
from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.choice import Mix
from udc_tf.layers.kernels import (
    Conv2DKernel,
    Conv2DTransposeKernel,
    DenseKernel,
    DepthwiseConv2DKernel,
)


class Channels(enum.Enum):
    """What a layer does to the channels of its inputs."""

    OPENS = "makes channels of its own"
    REPEATS = "gives each input channel one or several outputs"
    PASSES = "works channel by channel"
    TIES = "joins equal channels of several inputs"
    APPENDS = "lines the channels of its inputs up"
    RESHAPES = "lays positions and channels out anew"
    READS_WHOLE = "reads all channels at once"


class Range(enum.Enum):
    """Where the 8-bit range of a layer's output comes from."""

    NEW = "its own"
    KEPT = "that of its input"
    JOINED = "one with all its inputs"


@dataclasses.dataclass(frozen=True)
class Price:
    """What the NPU stores and does for a layer without a searched kernel.

    Attributes:
        operator: TFLite's operator that runs; None if none does. What it takes in bytes is for the
            size model to say.
        weights: constants per channel, `bits` each.
        macs: multiply-accumulates per channel.
    """

    operator: str | None = None
    weights: float = 0.0
    bits: float = 8.0
    macs: float = 0.0


@dataclasses.dataclass(frozen=True)
class Rule:
    """What one kind of layer becomes.

    Attributes:
        operator: TFLite's; None if nothing is left of the layer.
        channels: what it does to channel groups.
        range: of its output.
        kernel: the kind of its kernel, which can be searched; None if it has none.
        unsearched: why its kernel can be exported but not searched; None if it can be.
        takes_batch_norm: whether a batch norm behind it folds into its kernel.
        takes_relu: whether a ReLU behind it becomes part of it.
        price: of one call, for layers without a kernel.
        refused: why a network with it cannot be exported; None if it can.
    """

    operator: str | None = None
    channels: Channels = Channels.PASSES
    range: Range = Range.NEW
    kernel: str | None = None
    unsearched: str | None = None
    takes_batch_norm: bool = False
    takes_relu: bool = False
    price: Callable[[Node], Price] = lambda node: Price()
    refused: str | None = None


def rule_of(layer: keras.Operation, rank: int | None = None) -> Rule:
    """The entry of a layer or of an operation of `keras.ops`.

    Args:
        layer: the layer.
        rank: of its output, if known: some layers count an axis from the front.

    >>> rule_of(kl.MaxPooling2D()).operator, rule_of(kl.LSTM(4)).refused
    ('MAX_POOL_2D', 'LSTM has no int8 operator here')
    """
    kind = type(layer).__name__
    if not isinstance(layer, keras.layers.Layer):
        entry = _OPERATIONS.get(kind) if _is_keras_operation(layer) else None
        return _read(entry, layer, rank) if entry is not None else _unknown(kind)
    for ancestor in type(layer).__mro__:
        entry = _LAYERS.get(ancestor)
        if entry is None:
            continue
        if changed := _changes(type(layer), ancestor):
            return _unknown(kind, f"is a {ancestor.__name__} with its own `{changed}`, which")
        return _read(entry, layer, rank)
    return _unknown(kind)


def rule_of_node(node: Node) -> Rule:
    """The entry of a call."""
    outputs = keras.tree.flatten(node.outputs)
    return rule_of(node.layer, len(outputs[0].shape) if outputs else None)


def activation_of_node(node: Node) -> Activation:
    return activations.of_layer(node.layer, len(node.output.shape))


def kernel_kind(layer: keras.Operation) -> str | None:
    """ "Conv2D", "DepthwiseConv2D", "Conv2DTranspose" or "Dense" of a searchable layer; or None."""
    rule = rule_of(layer)
    return None if rule.unsearched else rule.kernel


def refusal(node: Node) -> str | None:
    """Why a network with this call cannot be exported; None if it can."""
    rule = rule_of_node(node)
    if rule.operator in ("ADD", "SUB", "MUL") and len(node.inputs) < 2:
        return "a number as one of its operands has no int8 operator here; take a Rescaling layer"
    return rule.refused or (activation_of_node(node).refused if rule.kernel else None)


def absorbed(node: Node, uses: Uses) -> list[Node]:
    """The calls behind this one that become part of it: a batch norm, a ReLU, both or none.

    A batch norm folds into a kernel without an activation, a ReLU into whatever takes one.
    """
    following = _absorbed_next(node, uses)
    return [] if following is None else [following, *absorbed(following, uses)]


def _absorbed_next(node: Node, uses: Uses) -> Node | None:
    rule, following = rule_of_node(node), uses.sole_consumer(node.output)
    if following is None or (rule.kernel and activation_of_node(node).name != "linear"):
        return None
    behind = rule_of_node(following)
    if isinstance(following.layer, kl.BatchNormalization):
        return following if rule.takes_batch_norm and behind.refused is None else None
    is_relu = behind.kernel is None and activation_of_node(following).fuses
    return following if rule.takes_relu and is_relu else None


def splits_activation(layer: keras.Operation) -> bool:
    """Whether a searched kernel has an activation that is an operator of its own in TFLite."""
    activation = activations.of_layer(layer)
    return kernel_kind(layer) is not None and activation.name != "linear" and not activation.fuses


# How entries are read.

_Entry = Rule | Callable[[Any, int | None], Rule]


def _read(entry: _Entry, layer: keras.Operation, rank: int | None) -> Rule:
    if getattr(layer, "data_format", "channels_last") == "channels_first":
        why = "its channels are first; build the network with data_format='channels_last'"
        return Rule(channels=Channels.READS_WHOLE, refused=why)
    return entry if isinstance(entry, Rule) else entry(layer, rank)


def _unknown(kind: str, what: str = "") -> Rule:
    refused = f"{kind} {what} has no int8 operator here".replace("  ", " ")
    return Rule(channels=Channels.READS_WHOLE, price=_one_operator, refused=refused)


_HARMLESS = ("__init__", "get_config", "from_config")  # what a subclass may change


def _changes(kind: type, ancestor: type) -> str | None:
    """A method by which a user's subclass may compute something else than `ancestor` does."""
    for between in kind.__mro__[: kind.__mro__.index(ancestor)]:
        if not between.__module__.startswith("udc_tf."):
            for name, value in vars(between).items():
                if callable(value) and name not in _HARMLESS:
                    return name
    return None


def _is_keras_operation(layer: keras.Operation) -> bool:
    return type(layer).__module__.split(".")[0] == "keras"


# Prices.


def _one_operator(node: Node) -> Price:
    return Price(rule_of_node(node).operator or type(node.layer).__name__)


def _depthwise_by_itself(node: Node) -> Price:
    """A batch norm that folds into nothing is a 1x1 depthwise convolution."""
    positions = math.prod(d or 1 for d in node.output.shape[1:-1])
    return Price("DEPTHWISE_CONV_2D", weights=1.0, macs=float(positions))


def _mean_as_convolution(node: Node) -> Price:
    """Vela makes a depthwise convolution with ones of a mean: about a bit per position."""
    taps = math.prod(d or 1 for d in node.inputs[0].shape[1:-1])
    return Price("MEAN", weights=float(taps), bits=1.0)


# Entries that depend on how a layer is set.


def _kernel(kind: str, operator: str, channels: Channels = Channels.OPENS) -> _Entry:
    def entry(layer: Any, rank: int | None) -> Rule:
        if why := _unusual(layer, kind):
            return Rule(channels=Channels.READS_WHOLE, price=_one_operator, refused=why)
        constraint = _constraint(layer)
        whole = constraint or getattr(layer, "groups", 1) > 1
        return Rule(
            operator,
            Channels.READS_WHOLE if whole else channels,
            kernel=kind,
            unsearched=constraint,
            price=_one_operator,
            takes_batch_norm=True,
            takes_relu=True,
        )

    return entry


def _unusual(layer: Any, kind: str) -> str | None:
    """What a layer with a kernel has that an int8 operator has not."""
    if getattr(layer, "output_padding", None) is not None:
        return "`output_padding` is not supported; leave it out"
    if kind == "Conv2DTranspose" and {1} != {*np.ravel(layer.dilation_rate)}:
        return "a transposed convolution with dilation has no int8 operator"
    return None


def _constraint(layer: Any) -> str | None:
    """A constraint is a matter of training, and that of a search knows none."""
    for name in ("kernel_constraint", "depthwise_constraint"):
        if getattr(layer, name, None) is not None:
            return f"`{name}` is not kept in a search"
    return None


def _activation(layer: Any, rank: int | None) -> Rule:
    activation = activations.of_layer(layer, rank)
    # The NPU applies it where the operator before it ends, but for a softmax, which is many.
    free = activation.name != "softmax"
    return Rule(
        activation.operator,
        Channels.READS_WHOLE if activation.mixes_channels else Channels.PASSES,
        price=(lambda node: Price()) if free else _one_operator,
        refused=activation.refused,
    )


def _slow_activation(layer: Any, rank: int | None) -> Rule:
    return dataclasses.replace(_activation(layer, rank), price=_one_operator)


def _batch_norm(layer: kl.BatchNormalization, rank: int | None) -> Rule:
    if layer.axis != -1 and (rank is None or layer.axis != rank - 1):
        why = f"a batch norm over axis {layer.axis} has no int8 operator here, only over the last"
        return Rule(channels=Channels.READS_WHOLE, price=_one_operator, refused=why)
    return Rule("DEPTHWISE_CONV_2D", takes_relu=True, price=_depthwise_by_itself)


def _rescaling(layer: kl.Rescaling, rank: int | None) -> Rule:
    per_channel = np.size(layer.scale) > 1 or np.size(layer.offset) > 1
    channels = Channels.READS_WHOLE if per_channel else Channels.PASSES
    return Rule("DEPTHWISE_CONV_2D", channels, takes_relu=True)


def _resize(layer: kl.UpSampling2D, rank: int | None) -> Rule:
    operators = {"nearest": "RESIZE_NEAREST_NEIGHBOR", "bilinear": "RESIZE_BILINEAR"}
    operator = operators.get(layer.interpolation)
    why = f"the interpolation {layer.interpolation!r} has no int8 operator here; take 'nearest'"
    return Rule(operator, range=Range.KEPT, price=_one_operator, refused=None if operator else why)


_NOTHING = Rule(range=Range.KEPT)
_MOVES = Rule("RESHAPE", Channels.RESHAPES, Range.KEPT)
_JOINS = Rule("CONCATENATION", Channels.APPENDS, Range.JOINED, price=_one_operator)


def _keeps(operator: str, price: Callable[[Node], Price] = _one_operator) -> Rule:
    return Rule(operator, range=Range.KEPT, price=price)


def _elementwise(operator: str) -> Rule:
    return Rule(operator, Channels.TIES, takes_relu=True, price=_one_operator)


def _refused(kind: str, channels: Channels = Channels.PASSES, range: Range = Range.NEW) -> Rule:
    why = f"{kind} has no int8 operator here"
    return Rule(None, channels, range, price=_one_operator, refused=why)


_CONVOLUTION = _kernel("Conv2D", "CONV_2D")
_DEPTHWISE = _kernel("DepthwiseConv2D", "DEPTHWISE_CONV_2D", Channels.REPEATS)
_TRANSPOSED = _kernel("Conv2DTranspose", "TRANSPOSE_CONV")
_DENSE = _kernel("Dense", "FULLY_CONNECTED")

_LAYERS: dict[type, _Entry] = {
    # Kernels.
    kl.Conv2D: _CONVOLUTION,
    Conv2DKernel: _CONVOLUTION,
    kl.DepthwiseConv2D: _DEPTHWISE,
    DepthwiseConv2DKernel: _DEPTHWISE,
    kl.Conv2DTranspose: _TRANSPOSED,
    Conv2DTransposeKernel: _TRANSPOSED,
    kl.Dense: _DENSE,
    DenseKernel: _DENSE,
    # Per channel.
    kl.BatchNormalization: _batch_norm,
    kl.Rescaling: _rescaling,
    # Activations.
    kl.Activation: _activation,
    kl.ReLU: _activation,
    kl.Softmax: _activation,
    kl.LeakyReLU: _slow_activation,
    kl.ELU: _refused("ELU"),
    kl.PReLU: _refused("PReLU"),
    # Elementwise.
    kl.Add: _elementwise("ADD"),
    kl.Subtract: _elementwise("SUB"),
    kl.Multiply: _elementwise("MUL"),
    kl.Average: _refused("Average", Channels.TIES),
    kl.Maximum: _refused("Maximum", Channels.TIES),
    kl.Minimum: _refused("Minimum", Channels.TIES),
    # Pooling.
    kl.MaxPooling2D: _keeps("MAX_POOL_2D"),
    kl.AveragePooling2D: _keeps("AVERAGE_POOL_2D"),
    kl.GlobalMaxPooling2D: _keeps("MAX_POOL_2D"),
    kl.GlobalAveragePooling2D: Rule("MEAN", price=_mean_as_convolution),
    # Moving, padding and joining.
    kl.Flatten: _MOVES,
    kl.Reshape: _MOVES,
    kl.Permute: _refused("Permute", Channels.READS_WHOLE, Range.KEPT),
    kl.ZeroPadding2D: _keeps("PAD", price=lambda node: Price()),  # part of what reads it
    kl.Cropping2D: _keeps("STRIDED_SLICE", price=lambda node: Price()),
    kl.UpSampling2D: _resize,
    kl.Concatenate: _JOINS,
    # Nothing is left of these.
    kl.Dropout: _NOTHING,
    kl.SpatialDropout2D: _NOTHING,
    kl.GaussianNoise: _NOTHING,
    kl.GaussianDropout: _NOTHING,
    kl.ActivityRegularization: _NOTHING,
    kl.Identity: _NOTHING,
    # Of this package.
    Mix: Rule(channels=Channels.TIES, range=Range.KEPT),
    ActivationQuantizer: Rule(),
}
# `x + y` on symbolic tensors gives these operations of keras.ops rather than layers.
_OPERATIONS: dict[str, _Entry] = {
    "Add": _elementwise("ADD"),
    "Subtract": _elementwise("SUB"),
    "Multiply": _elementwise("MUL"),
    "Maximum": _refused("Maximum", Channels.TIES),
    "Minimum": _refused("Minimum", Channels.TIES),
    "Relu": _activation,
    "Relu6": _activation,
    "Sigmoid": _activation,
    "Tanh": _activation,
    "Silu": _activation,
    "HardSilu": _activation,
    "HardSwish": _activation,
    "Softmax": _activation,
    "LeakyRelu": _slow_activation,
    "HardSigmoid": _refused("HardSigmoid"),
    "Abs": _refused("Abs"),
    "Concatenate": _JOINS,
    "Reshape": _MOVES,
    "Squeeze": dataclasses.replace(_MOVES, channels=Channels.READS_WHOLE),
    "ExpandDims": dataclasses.replace(_MOVES, channels=Channels.READS_WHOLE),
    "Transpose": _refused("Transpose", Channels.READS_WHOLE, Range.KEPT),
    "MaxPool": _refused("MaxPool", Channels.READS_WHOLE, Range.KEPT),
    "AveragePool": _refused("AveragePool", Channels.READS_WHOLE, Range.KEPT),
    "Pad": _refused("Pad", Channels.READS_WHOLE, Range.KEPT),
}
