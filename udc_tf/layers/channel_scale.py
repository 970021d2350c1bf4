"""A factor and an offset per channel that are trained."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from udc_tf.layers.kernels import Shape


@keras.saving.register_keras_serializable("udc_tf")
class ChannelScale(keras.layers.Layer):
    """gamma * x + beta: what a normalization does behind its mean and its variance.

    Args:
        scale: whether there is a gamma.
        center: whether there is a beta.
        gamma_regularizer, beta_regularizer, gamma_constraint, beta_constraint: as in Keras.

    >>> tuple(ChannelScale()(keras.Input((8, 4))).shape)
    (None, 8, 4)
    """

    def __init__(
        self,
        scale: bool = True,
        center: bool = True,
        gamma_regularizer: Any = None,
        beta_regularizer: Any = None,
        gamma_constraint: Any = None,
        beta_constraint: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.scale, self.center = scale, center
        self.gamma_regularizer = keras.regularizers.get(gamma_regularizer)
        self.beta_regularizer = keras.regularizers.get(beta_regularizer)
        self.gamma_constraint = keras.constraints.get(gamma_constraint)
        self.beta_constraint = keras.constraints.get(beta_constraint)

    def build(self, input_shape: Shape) -> None:
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self.add_weight(
                name="gamma",
                shape=(input_shape[-1],),
                initializer="ones",
                regularizer=self.gamma_regularizer,
                constraint=self.gamma_constraint,
            )
        if self.center:
            self.beta = self.add_weight(
                name="beta",
                shape=(input_shape[-1],),
                initializer="zeros",
                regularizer=self.beta_regularizer,
                constraint=self.beta_constraint,
            )

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        outputs = inputs
        if self.gamma is not None:
            outputs = outputs * ops.cast(self.gamma, outputs.dtype)
        if self.beta is not None:
            outputs = outputs + ops.cast(self.beta, outputs.dtype)
        return outputs

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "scale": self.scale,
            "center": self.center,
            "gamma_regularizer": keras.regularizers.serialize(self.gamma_regularizer),
            "beta_regularizer": keras.regularizers.serialize(self.beta_regularizer),
            "gamma_constraint": keras.constraints.serialize(self.gamma_constraint),
            "beta_constraint": keras.constraints.serialize(self.beta_constraint),
        }
