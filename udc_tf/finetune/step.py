"""One training step of finetuning."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from udc_tf.finetune.losses import Crossentropy, gives_probabilities
from udc_tf.finetune.stages import Stages
from udc_tf.layers.inventory import kernel_layers
from udc_tf.training.batch_norm import batch_norm_layers, one_pass
from udc_tf.training.divergence import checked_finite
from udc_tf.training.loss_scaling import unscaled
from udc_tf.training.one_vector import OneVector
from udc_tf.training.training_data import fits_shape
from udc_tf.training.workers import TrainsInLockstep


def distillation_loss(student: tf.Tensor, teacher: tf.Tensor, temperature: float) -> tf.Tensor:
    """Mean KL divergence of tempered distributions, times the square of the temperature.

    >>> logits = tf.constant([[1.0, 2.0, 4.0]])
    >>> float(distillation_loss(logits, logits, 4.0))
    0.0
    """
    target = tf.nn.log_softmax(teacher / temperature)
    given = tf.nn.log_softmax(student / temperature)
    divergence = tf.reduce_sum(tf.exp(target) * (target - given), axis=-1)
    return temperature**2 * tf.reduce_mean(divergence)


def check_teacher(teacher: keras.Model, student: keras.Model) -> None:
    """Raises unless the teacher takes the student's inputs and gives outputs of the same shapes."""
    for what in ("inputs", "outputs"):
        given, wanted = (
            [tuple(t.shape[1:]) for t in getattr(m, what, None) or ()] for m in (teacher, student)
        )
        if not given:
            return  # subclassed: only a call could tell
        if len(given) != len(wanted) or not all(map(fits_shape, given, wanted)):
            raise ValueError(
                f"A teacher must have {what} of the network's shapes, {wanted}. Received: a "
                f"teacher with {given}"
            )


class Finetuner(TrainsInLockstep, keras.Model):
    """Trains `network`: weights with one optimizer, weight ranges with another.

    The network itself stays an ordinary functional model, without a training step of its own.
    """

    def __init__(self, network: keras.Model, stages: Stages, teacher: keras.Model | None = None):
        super().__init__(name=f"finetuning_{network.name}")
        self.network = network
        self.output_names = getattr(network, "output_names", None)  # for losses and metrics by name
        self.stages = stages
        # In closures, so that the teacher's weights do not become this model's.
        self._teacher = None if teacher is None else (lambda x: teacher(x, training=False))
        self._teacher_logits = _to_logits(network if teacher is None else teacher)
        self._student_logits = _to_logits(network)
        self.range_optimizer: Any = None  # made by `compile`, as what the other one trains
        self._ranges: Any = None
        self._optimized: tuple[keras.Variable, ...] = ()
        self.built = True

    # What callbacks such as ModelCheckpoint keep is the network, which loads by itself.
    def save(self, filepath: str | os.PathLike, overwrite: bool = True, **kwargs: Any) -> None:
        self.network.save(filepath, overwrite=overwrite, **kwargs)

    def save_weights(
        self, filepath: str | os.PathLike, overwrite: bool = True, **kwargs: Any
    ) -> None:
        self.network.save_weights(filepath, overwrite=overwrite, **kwargs)

    def load_weights(self, filepath: str | os.PathLike, **kwargs: Any) -> None:
        self.network.load_weights(filepath, **kwargs)

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
        *,
        range_optimizer: Any = "adam",
    ) -> None:
        """As `keras.Model.compile`, with an optimizer for the weights' ranges."""
        super().compile(
            optimizer,
            loss,
            loss_weights,
            metrics,
            weighted_metrics,
            run_eagerly,
            steps_per_execution,
            jit_compile,
            auto_scale_loss,
        )
        self.range_optimizer = keras.optimizers.get(range_optimizer)
        with self.distribute_strategy.scope():
            # All of them, also in stage 3, where some are frozen.
            self._optimized = tuple(self.weights_to_train())
            self.optimizer.build(self._optimized)
            self._ranges = OneVector(self.ranges_to_train())
            self.range_optimizer.build([self._ranges.vector])

    def ranges_to_train(self) -> list[keras.Variable]:
        return [layer.log_range for layer in kernel_layers(self.network)]

    def weights_to_train(self) -> list[keras.Variable]:
        left_out = {id(v) for v in self.ranges_to_train()}
        if not self.stages.train_batch_norm:
            left_out |= {
                id(v) for bn in batch_norm_layers(self.network) for v in (bn.gamma, bn.beta)
            }
        return [v for v in self.network.trainable_variables if id(v) not in left_out]

    @property
    def trainable_weights(self) -> Sequence[keras.Variable]:
        # What Keras gives the optimizer's averages to, when a training ends.
        return self._optimized if self.compiled else super().trainable_weights

    def take_averages(self) -> None:
        """Sets the weights to their averages, if the optimizer keeps any (`use_ema`)."""
        self.optimizer.finalize_variable_values(self.trainable_weights)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return self.network(inputs, training=training)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        weights, ranges = self.weights_to_train(), self.ranges_to_train()
        # Keras divides a loss by the number of replicas, since their gradients are summed.
        replicas = self.distribute_strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            with one_pass():
                predictions = self(x, training=True)
            loss = self.compute_loss(x, y, predictions, sample_weight, training=True)
            if self._teacher is not None:
                share = self.stages.distillation
                loss = (1 - share) * loss + share * self._distillation(
                    self._teacher(x), predictions
                ) / replicas
            loss = checked_finite(loss, x)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [*weights, *ranges])
        of_weights, of_ranges = gradients[: len(weights)], gradients[len(weights) :]
        of_ranges = unscaled(self.optimizer, of_ranges)
        if self.stages.l2:
            kernels = {id(layer.theta) for layer in kernel_layers(self.network)}
            l2 = self.optimizer.scale_loss(self.stages.l2 / replicas)
            of_weights = [
                g + l2 * tf.convert_to_tensor(v) if id(v) in kernels else g
                for g, v in zip(of_weights, weights, strict=True)
            ]
        self.optimizer.apply(of_weights, weights)
        self._ranges.apply(self.range_optimizer, of_ranges)
        self._track_loss(loss * replicas, tf.shape(keras.tree.flatten(x)[0])[0])
        return self.compute_metrics(x, y, predictions, sample_weight)

    def _track_loss(self, loss: tf.Tensor, count: tf.Tensor) -> None:
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=tf.cast(count, tf.float32))

    def _distillation(self, target: Any, predictions: Any) -> tf.Tensor:
        target, predictions = keras.tree.map_structure(
            lambda t: tf.cast(t, tf.float32), (target, predictions)
        )
        target = keras.tree.map_structure(tf.stop_gradient, target)
        if isinstance(self.loss, Crossentropy):
            return distillation_loss(
                self._student_logits(predictions),
                self._teacher_logits(target),
                self.stages.temperature,
            )
        pairs = zip(keras.tree.flatten(predictions), keras.tree.flatten(target), strict=True)
        return tf.add_n([tf.reduce_mean(tf.square(given - wanted)) for given, wanted in pairs])


def _to_logits(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    if gives_probabilities(model):
        return lambda p: tf.math.log(tf.clip_by_value(p, 1e-7, 1.0))
    return lambda x: x
