"""What is trained for and measured: loss and metrics of each task."""

import dataclasses

import keras
import tensorflow as tf

from udc_tf.finetune.losses import Crossentropy, gives_probabilities


@dataclasses.dataclass(frozen=True)
class Task:
    """A loss, a metric, and how to speak of it."""

    name: str
    metric: str  # as Keras logs it
    label: str
    unit: str
    higher_is_better: bool

    def loss(self, model: keras.Model, label_smoothing: float = 0.0) -> keras.losses.Loss:
        if self.name == "classification":
            return Crossentropy(not gives_probabilities(model), label_smoothing)
        if self.name == "reconstruction":
            return keras.losses.MeanSquaredError()
        return keras.losses.MeanAbsoluteError()

    def metrics(self) -> list:
        if self.name == "classification":
            return ["accuracy"]
        if self.name == "reconstruction":
            return [keras.metrics.MeanSquaredError(name="mean_squared_error")]
        return [keras.metrics.MeanMetricWrapper(psnr_of_scaled, name="psnr")]

    def describe(self, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.2%}" if self.unit == "%" else f"{value:.4g} {self.unit}".strip()


_TASKS = {
    "classification": Task("classification", "accuracy", "accuracy", "%", True),
    "reconstruction": Task("reconstruction", "mean_squared_error", "mean squared error", "", False),
    "super_resolution": Task("super_resolution", "psnr", "PSNR", "dB", True),
}


def task_of(name: str) -> Task:
    return _TASKS[name]


@keras.saving.register_keras_serializable("udc_tf")
def psnr_of_scaled(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """PSNR of each image in dB, for pixels scaled by 1/128.

    >>> round(float(psnr_of_scaled(tf.zeros([1, 8, 8, 1]), tf.ones([1, 8, 8, 1]) / 128)[0]), 2)
    48.13
    """
    error = tf.reduce_mean(tf.square(y_true - y_pred), axis=[1, 2, 3])
    return 10 * tf.math.log((255 / 128) ** 2 / tf.maximum(error, 1e-10)) / tf.math.log(10.0)
