"""The entries of the rulebook, one per kind of layer or operation: tables at the end of this file.

`layer_rules` reads them. An entry is a `Rule`, or a function that makes one of the layer (and of
its call, if known) where it depends on how the layer is set.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import layers as kl

from udc_tf.graph import activations, shapes
from udc_tf.graph.affine import Affine
from udc_tf.graph.refused_layers import missing, refused
from udc_tf.graph.rule import Channels, Entry, Price, Range, Rule, free, one
from udc_tf.graph.trace import Node
from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.choice import Mix
from udc_tf.layers.kernels import (
    Conv1DKernel,
    Conv2DKernel,
    Conv2DTransposeKernel,
    DenseKernel,
    DepthwiseConv1DKernel,
    DepthwiseConv2DKernel,
)

# Layers with a kernel.


def _kernel(kind: str, operator: str, channels: Channels = Channels.OPENS) -> Entry:
    def entry(layer: Any, node: Node | None) -> Rule:
        if why := _unusual(layer, kind):
            return refused(why, operator)
        constraint = _constraint(layer)
        whole = constraint or getattr(layer, "groups", 1) > 1
        return Rule(
            operator,
            Channels.READS_WHOLE if whole else channels,
            kernel=kind,
            unsearched=constraint,
            price=one(operator),
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


# Activations.


def _rank(node: Node | None) -> int | None:
    return None if node is None else len(node.output.shape)


def _activation(layer: Any, node: Node | None) -> Rule:
    activation = activations.of_layer(layer, _rank(node))
    if activation.refused:
        return dataclasses.replace(
            refused(activation.refused, activation.name),
            channels=Channels.READS_WHOLE if activation.mixes_channels else Channels.PASSES,
        )
    # The NPU applies a table or a limit where the operator before it ends.
    free_of_charge = activation.operator in ("RELU", "RELU6", "LOGISTIC", "TANH", "HARD_SWISH")
    return Rule(
        activation.operator,
        Channels.READS_WHOLE if activation.mixes_channels else Channels.PASSES,
        price=free if free_of_charge or not activation.operator else one(activation.operator),
    )


def _prelu(layer: kl.PReLU, node: Node | None) -> Rule:
    return Rule("PRELU", price=lambda node: Price("PRELU", weights=1.0))


# y = factor * x + offset.


def _affine_alone(node: Node) -> Price:
    """What folds into nothing is a 1x1 depthwise convolution."""
    positions = math.prod(d or 1 for d in node.output.shape[1:-1])
    return Price("DEPTHWISE_CONV_2D", weights=1.0, macs=float(positions))


def _affine(channels: Channels = Channels.PASSES) -> Rule:
    return Rule(
        "DEPTHWISE_CONV_2D", channels, takes_relu=True, price=_affine_alone, affine=Affine.of_node
    )


def _batch_norm(layer: kl.BatchNormalization, node: Node | None) -> Rule:
    if layer.axis != -1 and (node is None or layer.axis != len(node.output.shape) - 1):
        why = f"a batch norm over axis {layer.axis} has no int8 operator here, only over the last"
        return refused(why, "BatchNormalization")
    return _affine()


def _rescaling(layer: kl.Rescaling, node: Node | None) -> Rule:
    per_channel = np.size(layer.scale) > 1 or np.size(layer.offset) > 1
    return _affine(Channels.READS_WHOLE if per_channel else Channels.PASSES)


def _normalization(layer: kl.Normalization, node: Node | None) -> Rule:
    axes = tuple(layer.axis)
    if axes not in ((), (-1,)) and (node is None or axes != (len(node.output.shape) - 1,)):
        why = f"a Normalization over the axes {axes} has no int8 operator here; take axis=-1"
        return refused(why, "Normalization")
    return _affine(Channels.READS_WHOLE if axes else Channels.PASSES)


def _arithmetic(operator: str | None) -> Entry:
    """An operation on two tensors, or on one and a number or one number per channel."""

    def entry(layer: Any, node: Node | None) -> Rule:
        if node is None or len(node.inputs) > 1:
            if operator is None:
                return missing("a quotient of tensors", "multiply, or divide by a number")
            return _elementwise(operator)
        try:
            constant = np.ravel(Affine.of_node(node).factor), np.ravel(Affine.of_node(node).offset)
        except ValueError as error:
            return refused(str(error), type(layer).__name__)
        alike = all(len(set(values.tolist())) <= 1 for values in constant)
        return _affine(Channels.PASSES if alike else Channels.READS_WHOLE)

    return entry


def _elementwise(operator: str) -> Rule:
    return Rule(operator, Channels.TIES, takes_relu=True, price=one(operator))


def _extremum(operator: str) -> Entry:
    """The larger or smaller of several tensors, which must have one scale; or of one and zero."""

    def entry(layer: Any, node: Node | None) -> Rule:
        if node is not None and len(node.inputs) < 2:
            why = f"{type(layer).__name__} with a number; take keras.ops.clip or a ReLU"
            return refused(f"there is no int8 operator for {why}", operator)
        return Rule(operator, Channels.TIES, Range.JOINED, price=one(operator))

    return entry


# Reducing, moving, joining.


def _mean_as_convolution(node: Node) -> Price:
    """Vela makes a depthwise convolution with ones of a mean: about a bit per position."""
    taps = math.prod(d or 1 for d in node.inputs[0].shape[1:-1])
    return Price("MEAN", weights=float(taps), bits=1.0)


def _reduction(operator: str) -> Entry:
    """A mean, a sum or a maximum over positions.

    The maximum is that of a window: behind and in front of some operators, Vela 5.2 gets TFLite's
    own REDUCE_MAX and REDUCE_MIN wrong.
    """

    def entry(layer: Any, node: Node | None) -> Rule:
        rank = None if node is None else len(node.inputs[0].shape)
        axes = shapes.reduced_axes(layer, rank or 4)
        kind = type(layer).__name__
        if not axes or 0 in axes:
            return refused(f"{kind} over the batch has no int8 operator", kind)
        if (rank or 4) - 1 in axes:
            why = f"{kind} over the channels is not run by the NPU; take a Dense or Conv2D layer"
            return refused(why, kind)
        if operator == "MAX_POOL_2D":
            return _keeps(operator)
        return Rule(operator, price=_mean_as_convolution)

    return entry


def _resize(layer: Any, node: Node | None) -> Rule:
    interpolation = getattr(layer, "interpolation", "nearest")  # UpSampling1D has no other
    operators = {"nearest": "RESIZE_NEAREST_NEIGHBOR", "bilinear": "RESIZE_BILINEAR"}
    if interpolation not in operators:
        why = f"the interpolation {interpolation!r} has no int8 operator here; take 'nearest'"
        return refused(why, "RESIZE_BILINEAR", Channels.PASSES, Range.KEPT)
    return _keeps(operators[interpolation])


def _permutation(layer: Any, node: Node | None) -> Rule:
    order = shapes.permutation(layer, 4 if node is None else len(node.output.shape))
    if order[0] != 0:
        return refused("an axis cannot be exchanged with the batch", "TRANSPOSE")
    moved = order[-1] != len(order) - 1
    channels = Channels.READS_WHOLE if moved else Channels.PASSES
    return Rule("TRANSPOSE", channels, Range.KEPT, price=one("TRANSPOSE"))


def _slicing(layer: Any, node: Node | None) -> Rule:
    if node is None:
        return _keeps("STRIDED_SLICE", free)
    try:
        parts = shapes.slices(node)
    except ValueError as error:
        return refused(str(error), "STRIDED_SLICE", range=Range.KEPT)
    whole = all(part[-1] == (0, node.inputs[0].shape[-1]) for part in parts)
    passes = whole and len(parts) == 1 and node.output.shape[-1] == node.inputs[0].shape[-1]
    channels = Channels.PASSES if passes else Channels.READS_WHOLE
    return Rule("STRIDED_SLICE", channels, Range.KEPT, price=free)


def _padding(layer: Any, node: Node | None) -> Rule:
    value = None if node is None else node.kwargs.get("constant_values")
    if layer.mode != "constant" or value not in (None, 0, 0.0):
        why = f"padding with {layer.mode if value is None else value} has no int8 operator here"
        return refused(f"{why}; pad with zeros", "PAD", range=Range.KEPT)
    widths = np.asarray(layer.pad_width)
    if widths.ndim != 2 or len(widths) < 2 or widths[0].any():
        return refused("padding of the batch has no int8 operator", "PAD", range=Range.KEPT)
    channels = Channels.READS_WHOLE if widths[-1].any() else Channels.PASSES
    return Rule("PAD", channels, Range.KEPT, price=free)


def _keeps(operator: str, price: Callable[[Node], Price] | None = None) -> Rule:
    return Rule(operator, range=Range.KEPT, price=price or one(operator))


_NOTHING = Rule(range=Range.KEPT)
_MOVES = Rule("RESHAPE", Channels.RESHAPES, Range.KEPT)
_MOVES_WHOLE = Rule("RESHAPE", Channels.READS_WHOLE, Range.KEPT)  # sizes are part of the operation
_JOINS = Rule("CONCATENATION", Channels.APPENDS, Range.JOINED, price=one("CONCATENATION"))

_CONVOLUTION = _kernel("Conv2D", "CONV_2D")
_CONVOLUTION_1D = _kernel("Conv1D", "CONV_2D")
_DEPTHWISE = _kernel("DepthwiseConv2D", "DEPTHWISE_CONV_2D", Channels.REPEATS)
_DEPTHWISE_1D = _kernel("DepthwiseConv1D", "DEPTHWISE_CONV_2D", Channels.REPEATS)
_TRANSPOSED = _kernel("Conv2DTranspose", "TRANSPOSE_CONV")
_DENSE = _kernel("Dense", "FULLY_CONNECTED")

LAYERS: dict[type, Entry] = {
    # Kernels.
    kl.Conv1D: _CONVOLUTION_1D,
    Conv1DKernel: _CONVOLUTION_1D,
    kl.Conv2D: _CONVOLUTION,
    Conv2DKernel: _CONVOLUTION,
    kl.DepthwiseConv1D: _DEPTHWISE_1D,
    DepthwiseConv1DKernel: _DEPTHWISE_1D,
    kl.DepthwiseConv2D: _DEPTHWISE,
    DepthwiseConv2DKernel: _DEPTHWISE,
    kl.Conv2DTranspose: _TRANSPOSED,
    Conv2DTransposeKernel: _TRANSPOSED,
    kl.Dense: _DENSE,
    DenseKernel: _DENSE,
    # Per channel.
    kl.BatchNormalization: _batch_norm,
    kl.Rescaling: _rescaling,
    kl.Normalization: _normalization,
    # Activations.
    **dict.fromkeys((kl.Activation, kl.ReLU, kl.Softmax, kl.LeakyReLU, kl.ELU), _activation),
    kl.PReLU: _prelu,
    # Elementwise.
    kl.Add: _elementwise("ADD"),
    kl.Subtract: _elementwise("SUB"),
    kl.Multiply: _elementwise("MUL"),
    kl.Average: dataclasses.replace(_elementwise("AVERAGE"), takes_relu=False),
    kl.Maximum: _extremum("MAXIMUM"),
    kl.Minimum: _extremum("MINIMUM"),
    # Pooling.
    **dict.fromkeys((kl.MaxPooling1D, kl.MaxPooling2D), _keeps("MAX_POOL_2D")),
    **dict.fromkeys((kl.AveragePooling1D, kl.AveragePooling2D), _keeps("AVERAGE_POOL_2D")),
    **dict.fromkeys((kl.GlobalMaxPooling1D, kl.GlobalMaxPooling2D), _keeps("MAX_POOL_2D")),
    kl.GlobalAveragePooling1D: Rule("MEAN", price=_mean_as_convolution),
    kl.GlobalAveragePooling2D: Rule("MEAN", price=_mean_as_convolution),
    # Moving, padding and joining.
    kl.Flatten: _MOVES,
    kl.Reshape: _MOVES,
    kl.Permute: _permutation,
    kl.RepeatVector: _resize,
    **dict.fromkeys((kl.ZeroPadding1D, kl.ZeroPadding2D), _keeps("PAD", free)),  # part of a reader
    **dict.fromkeys((kl.Cropping1D, kl.Cropping2D), _keeps("STRIDED_SLICE", free)),
    kl.UpSampling1D: _resize,
    kl.UpSampling2D: _resize,
    kl.Concatenate: _JOINS,
    # Nothing is left of these: they do something in training only.
    **dict.fromkeys((kl.Dropout, kl.SpatialDropout1D, kl.SpatialDropout2D), _NOTHING),
    **dict.fromkeys((kl.AlphaDropout, kl.GaussianNoise, kl.GaussianDropout), _NOTHING),
    **dict.fromkeys((kl.ActivityRegularization, kl.Identity), _NOTHING),
    # Of this package.
    Mix: Rule(channels=Channels.TIES, range=Range.KEPT),
    ActivationQuantizer: Rule(),
}
# Augmentation in the network; each Keras version has some of them. Not RandomCrop, which crops.
_AUGMENTATIONS = (
    *("AugMix", "CutMix", "MixUp", "RandAugment", "RandomBrightness", "RandomColorDegeneration"),
    *("RandomColorJitter", "RandomContrast", "RandomElasticTransform", "RandomErasing"),
    *("RandomFlip", "RandomGaussianBlur", "RandomGrayscale", "RandomHue", "RandomInvert"),
    *("RandomPerspective", "RandomPosterization", "RandomRotation", "RandomSaturation"),
    *("RandomSharpness", "RandomShear", "RandomTranslation", "RandomZoom"),
)
LAYERS |= {getattr(kl, name): _NOTHING for name in _AUGMENTATIONS if hasattr(kl, name)}

# `x + y` on symbolic tensors gives these operations of keras.ops rather than layers.
OPERATIONS: dict[str, Entry] = {
    "Add": _arithmetic("ADD"),
    "Subtract": _arithmetic("SUB"),
    "Multiply": _arithmetic("MUL"),
    **dict.fromkeys(("Divide", "TrueDivide", "Negative"), _arithmetic(None)),
    "Maximum": _extremum("MAXIMUM"),
    "Minimum": _extremum("MINIMUM"),
    **dict.fromkeys(activations.OPERATIONS, _activation),
    "Mean": _reduction("MEAN"),
    "Sum": _reduction("SUM"),
    "Max": _reduction("MAX_POOL_2D"),
    "Min": missing("Min", "take -keras.ops.max(-x)"),
    "Concatenate": _JOINS,
    **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims"), _MOVES_WHOLE),
    "Transpose": _permutation,
    "Split": _slicing,
    "GetItem": _slicing,
    "Pad": _padding,
}
