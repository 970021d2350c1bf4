"""The loss of a classifier, whatever its labels and its last layer look like."""

from typing import Any

import keras
import tensorflow as tf

from udc_tf.graph import activations
from udc_tf.layers.activation_quantizer import ActivationQuantizer


def gives_probabilities(model: keras.Model) -> bool:
    """Whether the model ends in a softmax (the quantizer after it not counted)."""
    layers = [x for x in model.layers if not isinstance(x, ActivationQuantizer)]
    if isinstance(layers[-1], keras.Model):
        return gives_probabilities(layers[-1])
    return activations.of_layer(layers[-1]).name == "softmax"


@keras.saving.register_keras_serializable("udc_tf")
class Crossentropy(keras.losses.Loss):
    """Cross-entropy with smoothed labels, for class numbers and for one-hot rows alike."""

    def __init__(
        self,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        name: str = "crossentropy",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.from_logits, self.label_smoothing = from_logits, label_smoothing

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        one_hot = len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] == y_pred.shape[-1]
        if not one_hot:
            if len(y_true.shape) == len(y_pred.shape):
                y_true = keras.ops.squeeze(y_true, -1)
            if not self.label_smoothing:
                return keras.losses.sparse_categorical_crossentropy(
                    y_true, y_pred, from_logits=self.from_logits
                )
            y_true = keras.ops.one_hot(keras.ops.cast(y_true, "int32"), y_pred.shape[-1])
        return keras.losses.categorical_crossentropy(
            y_true, y_pred, from_logits=self.from_logits, label_smoothing=self.label_smoothing
        )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "from_logits": self.from_logits,
            "label_smoothing": self.label_smoothing,
        }
