"""The task's loss and gradients for all samples of a step, a few samples at a time.

Samples do not meet before their gradients are added: each has its own slice of the batch. So they
may as well come one after the other, and what lives at once, kernels and activations, is what one
pass needs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import tensorflow as tf
from keras import tree

from udc_tf.search.samples import traced_once
from udc_tf.training import divergence, training_data

if TYPE_CHECKING:
    from udc_tf.search.model import SearchModel

_AVERAGES = (None, "sum_over_batch_size", "mean")


class TaskGradients(NamedTuple):
    """What the task says of one step; gradients are those of the scaled loss."""

    loss: tf.Tensor
    outputs: Any
    of_samples: tf.Tensor  # [samples, decisions, options]
    of_ranges: list[tf.Tensor]
    of_weights: list[tf.Tensor]


def task_in_passes(search: "SearchModel", z: tf.Tensor, data: Any) -> TaskGradients:
    """The task's loss on a batch, and its gradients, in passes of `samples_per_pass`.

    Args:
        search: the model.
        z: the step's samples, [samples, decisions, options].
        data: a batch, as for `train_step`.
    """
    samples = z.shape[0]
    together = search.settings.samples_per_pass or samples
    if together == samples:
        return _one_pass(search, search.predict_by_samples, z, data)
    predict = traced_once(search.predict_by_samples, search.network)
    size = tf.shape(tree.flatten(data)[0])[0]
    filled = tf.maximum(size, samples)
    done: list[TaskGradients] = []
    for first in range(0, samples, together):
        rows = tf.range(filled * first // samples, filled * (first + together) // samples)
        # Waits for the pass before: else all would begin at once, and nothing be saved.
        with tf.control_dependencies(_tensors(done[-1:])):
            part = training_data.each(functools.partial(tf.gather, indices=rows % size), data)
            share = tf.cast(tf.size(rows), tf.float32) / tf.cast(filled, tf.float32)
            given = _one_pass(search, predict, z[first : first + together], part, share)
            done[:] = [*done[:-1], _added(done[-1], given)] if done else [given]
    outputs = tree.map_structure(lambda t: t[:size], done[0].outputs)
    return done[0]._replace(outputs=outputs)


def check_loss(loss: Any, samples_per_pass: int | None) -> None:
    """Raises if losses of parts of a batch do not add up to that of the whole."""
    if samples_per_pass is None:
        return
    for part in tree.flatten(loss):
        reduction = getattr(part, "reduction", None)
        if isinstance(part, keras.losses.Loss) and reduction not in _AVERAGES:
            raise ValueError(
                "With `samples_per_pass`, losses must be averaged over the examples, as Keras does "
                f"by default. Received: {part.name} with reduction={reduction!r}"
            )


def _one_pass(
    search: "SearchModel",
    predict: Callable[[Any, tf.Tensor], Any],
    z: tf.Tensor,
    data: Any,
    share: tf.Tensor | float = 1.0,
) -> TaskGradients:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    ranges = [v.value for v in search.ranges]
    weights = [v.value for v in search.trainable_variables]
    with tf.GradientTape() as tape:
        for tensor in (z, *ranges):
            tape.watch(tensor)
        outputs = predict(x, z)
        loss = search.compute_loss(
            x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True
        )
        loss = divergence.checked_finite(loss * share, x)
        scaled = search.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, [z, *ranges, *weights], unconnected_gradients="zero")
    of_weights = gradients[1 + len(ranges) :]
    return TaskGradients(loss, outputs, gradients[0], gradients[1 : 1 + len(ranges)], of_weights)


def _added(one: TaskGradients, other: TaskGradients) -> TaskGradients:
    def sums(a: Sequence[tf.Tensor], b: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [tf.add(*map(tf.convert_to_tensor, pair)) for pair in zip(a, b, strict=True)]

    return TaskGradients(
        one.loss + other.loss,
        tree.map_structure(lambda *t: tf.concat(t, axis=0), one.outputs, other.outputs),
        tf.concat([one.of_samples, other.of_samples], axis=0),
        sums(one.of_ranges, other.of_ranges),
        sums(one.of_weights, other.of_weights),
    )


def _tensors(passes: Sequence[TaskGradients]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(g) for p in passes for g in (p.of_samples, *p.of_weights)]
