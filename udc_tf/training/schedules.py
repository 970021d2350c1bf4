"""Values that change over a run, as functions of how much of it is done."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf


def exponential(first: float, last: float, progress: tf.Tensor) -> tf.Tensor:
    """first * (last/first)^progress.

    >>> float(exponential(1.0, 0.01, tf.constant(0.5)))  # doctest: +ELLIPSIS
    0.1...
    """
    return first * tf.pow(tf.constant(last / first), progress)


def linear(first: float, last: float, progress: tf.Tensor) -> tf.Tensor:
    """first + (last - first) * progress."""
    return first + (last - first) * progress


def cosine(first: float, last: float, progress: tf.Tensor) -> tf.Tensor:
    """Half a cosine from first to last: slow at both ends.

    >>> [round(float(cosine(0.0, 1.0, tf.constant(p))), 3) for p in (0.0, 0.25, 0.5, 1.0)]
    [0.0, 0.146, 0.5, 1.0]
    """
    return first + (last - first) * (1.0 - tf.cos(np.pi * progress)) / 2.0


@keras.saving.register_keras_serializable("udc_tf")
class CosineOverRun(keras.optimizers.schedules.LearningRateSchedule):
    """Cosine from `initial` to `final` over a run, whose length `SearchModel.fit` fills in.

    Until then, and without `steps`, it stays at `initial`.

    With `warmup`, the share of the run for which the search warms up, the cosine is run through
    once for the warm-up and once for the rest, as in the paper.

    Example:

    >>> schedule = CosineOverRun(0.1, 0.0, steps=100)
    >>> float(schedule(0)), float(schedule(100))  # doctest: +ELLIPSIS
    (0.1..., 0.0)
    """

    def __init__(
        self,
        initial: float = 0.1,
        final: float = 1e-4,
        warmup: float = 0.0,
        steps: int | None = None,
    ):
        if not initial > 0 or not 0 <= final <= initial:
            raise ValueError(f"Need 0 <= final <= initial. Received: {initial=}, {final=}")
        self.initial, self.final, self.warmup, self.steps = initial, final, warmup, steps

    def __call__(self, step: int | tf.Tensor) -> tf.Tensor:
        if self.steps is None:
            return tf.constant(self.initial)
        first = round(self.warmup * self.steps)
        step = tf.cast(step, tf.float32)
        rest = tf.maximum(0.0, step - first) / max(1, self.steps - first)
        progress = tf.where(step < first, step / max(1, first), rest)
        cosine = 0.5 * (1 + tf.cos(np.pi * tf.minimum(progress, 1.0)))
        return self.final + (self.initial - self.final) * cosine

    @classmethod
    def unfinished(cls, optimizer: keras.optimizers.Optimizer) -> dict[str, Any] | None:
        """The configuration of an optimizer's schedule, if it is of this kind and has no length."""
        given: Any = getattr(optimizer, "inner_optimizer", optimizer)  # of one that scales losses
        rate = given.get_config().get("learning_rate")
        if not isinstance(rate, dict) or rate.get("class_name") != cls.__name__:
            return None
        return rate["config"] if rate["config"]["steps"] is None else None

    def get_config(self) -> dict[str, Any]:
        return {
            "initial": self.initial,
            "final": self.final,
            "warmup": self.warmup,
            "steps": self.steps,
        }
