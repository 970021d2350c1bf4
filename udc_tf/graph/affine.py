"""What a batch norm does at inference, and a rescaling: y = factor * x + offset."""

import dataclasses

import keras
import numpy as np


@dataclasses.dataclass(frozen=True)
class Affine:
    """y = factor * x + offset, with one factor and one offset per channel, in doubles."""

    factor: np.ndarray
    offset: np.ndarray

    @classmethod
    def of(cls, layer: keras.layers.Layer, channels: int) -> "Affine":
        """What a batch norm or a rescaling does to so many channels.

        >>> Affine.of(keras.layers.Rescaling(2.0, offset=-1.0), 1).factor
        array([2.])
        """
        if isinstance(layer, keras.layers.Rescaling):
            ones = np.ones(channels)
            return cls(ones * np.asarray(layer.scale), ones * np.asarray(layer.offset))
        values = {v.name: v.numpy().astype(np.float64) for v in layer.weights}
        factor = values.get("gamma", np.ones(channels))
        factor = factor / np.sqrt(values["moving_variance"] + layer.epsilon)
        offset = values.get("beta", np.zeros(channels)) - values["moving_mean"] * factor
        return cls(factor, offset)
