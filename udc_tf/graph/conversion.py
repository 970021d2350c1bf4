"""Reading the configuration of the Keras layers that have a kernel."""

from typing import Any

import keras
import numpy as np
from keras import layers as kl

from udc_tf.graph.layer_rules import kernel_kind

_COMMON = ("use_bias", "activation", "bias_initializer", "bias_regularizer", "dtype")
_SPATIAL = ("kernel_size", "strides", "padding", "dilation_rate")
_OWN = {
    "Conv1D": (*_SPATIAL, "filters", "groups"),
    "DepthwiseConv1D": (*_SPATIAL, "depth_multiplier"),
    "Conv2D": (*_SPATIAL, "filters", "groups"),
    "DepthwiseConv2D": (*_SPATIAL, "depth_multiplier"),
    "Conv1DTranspose": (*_SPATIAL, "filters"),
    "Conv2DTranspose": (*_SPATIAL, "filters"),
    "Dense": ("units",),
}


def kernel_config(layer: keras.layers.Layer, name: str) -> dict[str, Any]:
    """The arguments with which one of this package's kernel layers does what `layer` does."""
    kind = kernel_kind(layer)
    if kind is None:
        raise ValueError(f"A layer with a kernel is needed. Received: {layer}")
    config = layer.get_config()
    wanted = {key: config[key] for key in (*_COMMON, *_OWN[kind]) if key in config}
    # Keras calls the kernel's settings of a depthwise convolution by another name.
    prefix = "depthwise" if "depthwise_initializer" in config else "kernel"
    wanted["kernel_initializer"] = config[f"{prefix}_initializer"]
    wanted["kernel_regularizer"] = config[f"{prefix}_regularizer"]
    return {**wanted, "name": safe_name(name)}


def copy_layer(
    layer: keras.layers.Layer,
    name: str,
    channels: int | None = None,
    dtype: str | None = None,
    of: int | None = None,
) -> keras.layers.Layer:
    """A new, unbuilt layer of the same configuration, with other channels or types if given.

    Args:
        channels: that it has.
        dtype: of what it computes.
        of: how many channels `layer` has.
    """
    config = {**layer.get_config(), "name": safe_name(name)}
    if isinstance(layer, kl.Dropout) and channels and of:  # spatial ones are, too
        config["rate"] = dropout_rate(config["rate"], channels, of)
    if dtype is not None and "dtype" in config:
        config["dtype"] = dtype
    if isinstance(layer, kl.Normalization):
        # What it was adapted to becomes constants: a copy of the weights would not be noticed.
        moments = (np.asarray(v) for v in (layer.mean, layer.variance))
        config["mean"], config["variance"] = (np.ravel(v) for v in moments)
        if not layer.axis:
            config["mean"], config["variance"] = config["mean"][0], config["variance"][0]
    if isinstance(layer, kl.Reshape) and channels is not None:
        config["target_shape"] = (*config["target_shape"][:-1], channels)
    return layer.__class__.from_config(config)


def dropout_rate(rate: float, channels: int, of: int) -> float:
    """The rate at which as many channels get through as of the original's, if there are so many.

    Dropout is chosen for a width: what keeps a wide layer from learning by heart leaves a narrow
    one too little to learn with.

    >>> [round(dropout_rate(0.4, channels, of=64), 2) for channels in (64, 48, 13)]
    [0.4, 0.2, 0.0]
    """
    return rate if channels >= of else max(0.0, 1 - (1 - rate) * of / channels)


def safe_name(name: str) -> str:
    """Names of nested models are joined with a slash, which Keras does not take in a layer."""
    return name.replace("/", "_")


def layer_weights(layer: keras.layers.Layer) -> dict[str, Any]:
    """A layer's weights by variable name, as arrays."""
    weights = {v.name: v.numpy() for v in layer.weights}
    if "depthwise_kernel" in weights:
        weights["kernel"] = weights.pop("depthwise_kernel")
    return weights


def keep_output_names(model: keras.Model, converted: keras.Model) -> None:
    """Losses and metrics of several outputs go by the names that the original has for them.

    Keras takes those of the last layers, which may be quantizers in a converted model.
    """
    names = getattr(model, "output_names", None)  # only functional models have them
    if names is not None:
        converted.output_names = list(names)
