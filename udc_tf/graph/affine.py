"""What multiplies each channel with a factor and adds an offset: batch norm, rescaling, numbers."""

import dataclasses
from typing import Any

import keras
import numpy as np

from udc_tf.graph.trace import Node, TensorRef
from udc_tf.layers.channel_scale import ChannelScale


@dataclasses.dataclass(frozen=True)
class Affine:
    """y = factor * x + offset, with one factor and one offset per channel, in doubles."""

    factor: np.ndarray
    offset: np.ndarray

    @classmethod
    def of(cls, layer: keras.layers.Layer, channels: int) -> "Affine":
        """What a batch norm, a rescaling or a normalization does to so many channels.

        >>> Affine.of(keras.layers.Rescaling(2.0, offset=-1.0), 1).factor
        array([2.])
        """
        ones = np.ones(channels)
        if isinstance(layer, keras.layers.Rescaling):
            return cls(ones * np.asarray(layer.scale), ones * np.asarray(layer.offset))
        if isinstance(layer, keras.layers.Normalization):
            moments = (np.asarray(v) for v in (layer.mean, layer.variance))
            mean, variance = (np.ravel(v).astype(np.float64) for v in moments)
            deviation = np.maximum(np.sqrt(variance), keras.config.epsilon())
            if layer.invert:
                return cls(ones * deviation, ones * mean)
            return cls(ones / deviation, -ones * mean / deviation)
        values = {v.name: v.numpy().astype(np.float64) for v in layer.weights}
        if isinstance(layer, ChannelScale):
            return cls(values.get("gamma", ones), values.get("beta", 0 * ones))
        factor = values.get("gamma", np.ones(channels))
        factor = factor / np.sqrt(values["moving_variance"] + layer.epsilon)
        offset = values.get("beta", np.zeros(channels)) - values["moving_mean"] * factor
        return cls(factor, offset)

    @classmethod
    def of_node(cls, node: Node) -> "Affine":
        """What a call of such a layer does, or an operation of `keras.ops` with a number.

        Raises:
            ValueError: it does something else; the message says what.
        """
        channels = node.output.shape[-1] or 1  # what broadcasts, if it is open
        if isinstance(node.layer, keras.layers.Layer):
            return cls.of(node.layer, channels)
        kind, ones = type(node.layer).__name__, np.ones(channels)
        operands = [*node.args, *node.kwargs.values()]
        if kind == "Negative":
            return cls(-ones, 0 * ones)
        first, second = operands[:2]
        reversed_ = isinstance(second, TensorRef)
        number = ones * _per_channel(first if reversed_ else second, node)
        if kind == "Add":
            return cls(ones, number)
        if kind == "Subtract":
            return cls(-ones, number) if reversed_ else cls(ones, -number)
        if kind == "Multiply":
            return cls(number, 0 * ones)
        if reversed_:
            raise ValueError(
                "a number divided by a tensor has no int8 operator here; divide by a number"
            )
        if not number.all():
            raise ValueError("a tensor divided by zero has no int8 operator; take another number")
        return cls(1 / number, 0 * ones)


def _per_channel(constant: Any, node: Node) -> np.ndarray:
    """A number, or one per channel."""
    values = np.asarray(keras.ops.convert_to_numpy(constant), np.float64)
    last = values.shape[-1:] or (1,)
    if values.size not in (1, last[0]) or last[0] not in (1, node.output.shape[-1]):
        raise ValueError(
            f"a constant of shape {values.shape} has no int8 operator here; take a number, or one "
            "for each channel"
        )
    if not np.isfinite(values).all():
        raise ValueError("a constant that is not finite has no int8 operator; take a finite one")
    return np.ravel(values)
