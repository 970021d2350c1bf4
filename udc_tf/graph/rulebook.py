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

from udc_tf.graph import activations, shapes, time_rules
from udc_tf.graph.affine import Affine
from udc_tf.graph.expansions import EXPANSIONS, STOCHASTIC_DEPTH, why_not
from udc_tf.graph.numeric_rules import (
    activation_price,
    extremum,
    has_constants,
    matrix_product,
    mean_as_convolution,
    reduction,
    resizing,
)
from udc_tf.graph.refused_layers import missing, refused
from udc_tf.graph.rule import Channels, Entry, Price, Range, Rule, free, one
from udc_tf.graph.trace import Node
from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.channel_scale import ChannelScale
from udc_tf.layers.choice import Mix
from udc_tf.layers.kernels import (
    Conv1DKernel,
    Conv1DTransposeKernel,
    Conv2DKernel,
    Conv2DTransposeKernel,
    DenseKernel,
    DepthwiseConv1DKernel,
    DepthwiseConv2DKernel,
)
from udc_tf.layers.reciprocal_root import ReciprocalRoot

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
    policy = layer.dtype_policy
    if policy.variable_dtype != "float32" or getattr(policy, "quantization_mode", None):
        return f"its weights are of type {policy.name}; take dtype='float32' or a mixed policy"
    if getattr(layer, "lora_enabled", False):
        return "its LoRA weights are not read; make the network anew from the merged weights"
    if kind.endswith("Transpose") and {1} != {*np.ravel(layer.dilation_rate)}:
        return "a dilated transposed convolution has no int8 operator; leave `dilation_rate` out"
    if kind == "DepthwiseConv2D" and len({*np.ravel(layer.strides)}) > 1:
        return "TensorFlow runs no depthwise convolution with unequal strides; take equal ones"
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
    return Rule(
        activation.operator,
        Channels.READS_WHOLE if activation.mixes_channels else Channels.PASSES,
        price=lambda node: activation_price(activation, node),
    )


def _slopes(node: Node) -> Price:
    """One byte for each slope, and no scale."""
    return Price("PRELU", weights=float(math.prod(node.layer.alpha.shape[:-1])), scales=0.0)


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
        why = f"a batch norm over axis {layer.axis} has no int8 operator here; take axis=-1"
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


def _not_expanded(layer: Any, node: Node | None) -> Rule:
    """Of a layer that `trace` would have expanded if it could."""
    kind = type(layer).__name__
    why = None if node is None else why_not(layer, node.args, node.kwargs)
    several = f"one {kind} for tensors of several shapes is not known here; take one for each"
    return refused(why or several, kind)


def _arithmetic(operator: str | None) -> Entry:
    """An operation on two tensors, or on one and a number or one number per channel."""

    def entry(layer: Any, node: Node | None) -> Rule:
        if node is None or len(node.inputs) > 1:
            if why := shapes.unlike_ranks(node):
                return refused(why, type(layer).__name__)
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


def _elementwise(operator: str, takes_relu: bool = True) -> Rule:
    return Rule(operator, Channels.TIES, takes_relu=takes_relu, price=one(operator))


def _merging(operator: str, takes_relu: bool = True) -> Entry:
    """A layer that merges tensors."""

    def entry(layer: Any, node: Node | None) -> Rule:
        if node is not None and has_constants(node):
            why = f"the layer {type(layer).__name__} with a constant has no int8 operator here"
            return refused(f"{why}; take keras.ops or `x + constant`", operator)
        return _elementwise(operator, takes_relu)

    return entry


# Moving and joining.

_MOST_MOVED = 5  # axes, with the batch


def _permutation(layer: Any, node: Node | None) -> Rule:
    order = shapes.permutation(layer, 4 if node is None else len(node.output.shape))
    if order[0] != 0:
        why = "an axis cannot be exchanged with the batch; leave the batch in front"
        return refused(why, "TRANSPOSE")
    if len(order) > _MOST_MOVED:
        why = (
            f"TFLM moves up to {_MOST_MOVED} axes, not {len(order)}; take keras.ops.split or slices"
        )
        return refused(why, "TRANSPOSE")
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


def _joining(operator: str) -> Entry:
    """Tensors side by side; the channels of a stack are whole, or are one tensor each."""
    channels = Channels.APPENDS if operator == "CONCATENATION" else Channels.READS_WHOLE

    def entry(layer: Any, node: Node | None) -> Rule:
        if node is not None and has_constants(node):
            why = "a constant cannot be joined with tensors; add it to the kernel before or behind"
            return refused(why, operator)
        if layer.axis % (4 if node is None else len(node.output.shape)) == 0:
            why = "tensors cannot be joined along the batch; take another axis, such as -1"
            return refused(why, operator)
        return Rule(operator, channels, Range.JOINED, price=one("CONCATENATION"))

    return entry


def _keeps(operator: str, price: Callable[[Node], Price] | None = None) -> Rule:
    return Rule(operator, range=Range.KEPT, price=price or one(operator))


_NOTHING = Rule(range=Range.KEPT)
_MOVES = Rule("RESHAPE", Channels.RESHAPES, Range.KEPT)
_MOVES_WHOLE = Rule("RESHAPE", Channels.READS_WHOLE, Range.KEPT)  # sizes are part of the operation

_CONVOLUTION = _kernel("Conv2D", "CONV_2D")
_CONVOLUTION_1D = _kernel("Conv1D", "CONV_2D")
_DEPTHWISE = _kernel("DepthwiseConv2D", "DEPTHWISE_CONV_2D", Channels.REPEATS)
_DEPTHWISE_1D = _kernel("DepthwiseConv1D", "DEPTHWISE_CONV_2D", Channels.REPEATS)
_TRANSPOSED_1D = _kernel("Conv1DTranspose", "TRANSPOSE_CONV")
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
    kl.Conv1DTranspose: _TRANSPOSED_1D,
    Conv1DTransposeKernel: _TRANSPOSED_1D,
    kl.Conv2DTranspose: _TRANSPOSED,
    Conv2DTransposeKernel: _TRANSPOSED,
    kl.Dense: _DENSE,
    DenseKernel: _DENSE,
    # Per channel.
    kl.BatchNormalization: _batch_norm,
    kl.Rescaling: _rescaling,
    kl.Normalization: _normalization,
    ChannelScale: _affine(),
    ReciprocalRoot: Rule("RSQRT", price=one("RSQRT")),
    **dict.fromkeys(EXPANSIONS, _not_expanded),
    # Activations.
    **dict.fromkeys((kl.Activation, kl.ReLU, kl.Softmax, kl.LeakyReLU, kl.ELU), _activation),
    kl.PReLU: Rule("PRELU", price=_slopes),
    # Elementwise.
    kl.Add: _merging("ADD"),
    kl.Subtract: _merging("SUB"),
    kl.Multiply: _merging("MUL"),
    kl.Average: _merging("AVERAGE", takes_relu=False),
    kl.Maximum: extremum("MAXIMUM"),
    kl.Minimum: extremum("MINIMUM"),
    # Pooling.
    **dict.fromkeys((kl.MaxPooling1D, kl.MaxPooling2D), _keeps("MAX_POOL_2D")),
    **dict.fromkeys((kl.AveragePooling1D, kl.AveragePooling2D), _keeps("AVERAGE_POOL_2D")),
    **dict.fromkeys((kl.GlobalMaxPooling1D, kl.GlobalMaxPooling2D), _keeps("MAX_POOL_2D")),
    kl.GlobalAveragePooling1D: Rule("MEAN", price=mean_as_convolution),
    kl.GlobalAveragePooling2D: Rule("MEAN", price=mean_as_convolution),
    # Moving, padding and joining.
    kl.Flatten: _MOVES,
    kl.Reshape: _MOVES,
    kl.Permute: _permutation,
    kl.RepeatVector: resizing,
    **dict.fromkeys((kl.ZeroPadding1D, kl.ZeroPadding2D), _keeps("PAD", free)),  # part of a reader
    **dict.fromkeys((kl.Cropping1D, kl.Cropping2D), _keeps("STRIDED_SLICE", free)),
    kl.UpSampling1D: resizing,
    kl.UpSampling2D: resizing,
    kl.Resizing: resizing,
    kl.Concatenate: _joining("CONCATENATION"),
    # Nothing is left of these: they do something in training only.
    **dict.fromkeys((kl.Dropout, kl.SpatialDropout1D, kl.SpatialDropout2D), _NOTHING),
    **dict.fromkeys((kl.AlphaDropout, kl.GaussianNoise, kl.GaussianDropout), _NOTHING),
    **dict.fromkeys((kl.ActivityRegularization, kl.Identity), _NOTHING),
    # Layers over time.
    **time_rules.LAYERS,
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
if STOCHASTIC_DEPTH is not None:
    LAYERS[STOCHASTIC_DEPTH] = _NOTHING

# `x + y` on symbolic tensors gives these operations of keras.ops rather than layers.
OPERATIONS: dict[str, Entry] = {
    "Add": _arithmetic("ADD"),
    "Subtract": _arithmetic("SUB"),
    "Multiply": _arithmetic("MUL"),
    **dict.fromkeys(("Divide", "TrueDivide", "Negative"), _arithmetic(None)),
    "Maximum": extremum("MAXIMUM"),
    "Minimum": extremum("MINIMUM"),
    **dict.fromkeys(activations.OPERATIONS, _activation),
    "Mean": reduction("MEAN"),
    "Sum": reduction("SUM"),
    "Max": reduction("MAX_POOL_2D"),
    "Min": missing("Min", "take -keras.ops.max(-x)"),
    "Amax": reduction("MAX_POOL_2D"),
    "Amin": missing("Amin", "take -keras.ops.max(-x)"),
    "Matmul": matrix_product,
    "Rsqrt": missing("Rsqrt", "take LayerNormalization or RMSNormalization"),
    "Concatenate": _joining("CONCATENATION"),
    "Stack": _joining("PACK"),
    **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims"), _MOVES_WHOLE),
    **dict.fromkeys(("Transpose", "Swapaxes", "Moveaxis"), _permutation),
    "MaxPool": _keeps("MAX_POOL_2D"),
    "AveragePool": _keeps("AVERAGE_POOL_2D"),
    "Resize": resizing,
    "Copy": _NOTHING,
    "Split": _slicing,
    "GetItem": _slicing,
    "Pad": _padding,
}
