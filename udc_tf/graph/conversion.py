"""Reading the configuration of the Keras layers that have a kernel."""

from typing import Any

import keras
from keras import layers as kl

from udc_tf.layers.kernels import (
    Conv2DKernel,
    Conv2DTransposeKernel,
    DenseKernel,
    DepthwiseConv2DKernel,
)

_KINDS = {
    "Conv2D": (kl.Conv2D, Conv2DKernel),
    "DepthwiseConv2D": (kl.DepthwiseConv2D, DepthwiseConv2DKernel),
    "Conv2DTranspose": (kl.Conv2DTranspose, Conv2DTransposeKernel),
    "Dense": (kl.Dense, DenseKernel),
}
_COMMON = ("use_bias", "activation", "bias_initializer", "bias_regularizer", "dtype")
_SPATIAL = ("kernel_size", "strides", "padding", "dilation_rate")
_OWN = {
    "Conv2D": (*_SPATIAL, "filters", "groups"),
    "DepthwiseConv2D": (*_SPATIAL, "depth_multiplier"),
    "Conv2DTranspose": (*_SPATIAL, "filters"),
    "Dense": ("units",),
}


def kernel_kind(layer: keras.Operation) -> str | None:
    """ "Conv2D", "DepthwiseConv2D", "Conv2DTranspose" or "Dense"; None for all other layers."""
    for kind, classes in _KINDS.items():
        if isinstance(layer, classes):
            return kind if unsupported(layer) is None else None
    return None


def unsupported(layer: keras.Operation) -> str | None:
    """Why a layer with a kernel cannot be searched; None if it can, or has no kernel."""
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        return "its channels are not last"
    for name in ("kernel_constraint", "depthwise_constraint", "output_padding"):
        if getattr(layer, name, None) is not None:
            return f"`{name}` is not supported"
    return None


def kernel_config(layer: keras.layers.Layer, name: str) -> dict[str, Any]:
    """The arguments with which one of this package's kernel layers does what `layer` does."""
    kind = kernel_kind(layer)
    config = layer.get_config()
    wanted = {key: config[key] for key in (*_COMMON, *_OWN[kind]) if key in config}
    # Keras calls the kernel's settings of a depthwise convolution by another name.
    prefix = "depthwise" if "depthwise_initializer" in config else "kernel"
    wanted["kernel_initializer"] = config[f"{prefix}_initializer"]
    wanted["kernel_regularizer"] = config[f"{prefix}_regularizer"]
    return {**wanted, "name": safe_name(name)}


def copy_layer(
    layer: keras.layers.Layer, name: str, channels: int | None = None
) -> keras.layers.Layer:
    """A new, unbuilt layer of the same configuration, for so many output channels if given."""
    config = {**layer.get_config(), "name": safe_name(name)}
    if isinstance(layer, kl.Reshape) and channels is not None:
        config["target_shape"] = (*config["target_shape"][:-1], channels)
    return layer.__class__.from_config(config)


def safe_name(name: str) -> str:
    """Names of nested models are joined with a slash, which Keras does not take in a layer."""
    return name.replace("/", "_")


def layer_weights(layer: keras.layers.Layer) -> dict[str, Any]:
    """A layer's weights by variable name, as arrays."""
    weights = {v.name: v.numpy() for v in layer.weights}
    if "depthwise_kernel" in weights:
        weights["kernel"] = weights.pop("depthwise_kernel")
    return weights
