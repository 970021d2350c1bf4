"""Training that has left the finite numbers ends at once, and says so in a sentence."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

_DATA = "The training data contain NaN or infinite values."
_LOSS = "The loss is not finite: check the labels, or take a smaller learning rate."


class DivergedError(RuntimeError):
    """The loss of a training step was not finite. What was kept of the epochs before stays."""


def checked_finite(loss: tf.Tensor, x: Any) -> tf.Tensor:
    """The loss of inputs `x`; running it fails if either is not finite.

    XLA leaves such checks out: see `EndsWhenNotFinite`.
    """
    inputs = map(tf.convert_to_tensor, tree.flatten(x))
    checks = [tf.debugging.check_numerics(t, _DATA) for t in inputs if t.dtype.is_floating]
    with tf.control_dependencies(checks):
        check = tf.debugging.check_numerics(tf.stop_gradient(loss), _LOSS)
    with tf.control_dependencies([check]):
        return tf.identity(loss)


class EndsWhenNotFinite(keras.callbacks.Callback):
    """Ends a training after an epoch in which the loss was not finite.

    Steps of ours have said so before, unless XLA compiled them.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not np.isfinite((logs or {}).get("loss", 0.0)):
            raise DivergedError(_LOSS)


@contextlib.contextmanager
def told_briefly() -> Iterator[None]:
    """Around training steps: one sentence in place of TensorFlow's account of a failed check.

    Raises:
        DivergedError: a `checked_finite` failed.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        for sentence in (_DATA, _LOSS):
            if sentence in str(error):
                raise DivergedError(sentence) from error
        raise


def not_finite(model: keras.Model) -> str | None:
    """The first variable with values that are not finite; None if there is none.

    >>> layers = [keras.Input((2,)), keras.layers.Dense(1, name="head")]
    >>> model = keras.Sequential(layers, name="tiny")
    >>> not_finite(model)
    >>> _ = model.layers[0].bias.assign([np.inf])
    >>> not_finite(model)
    'tiny/head/bias'
    """
    for variable in model.variables:
        values = keras.ops.convert_to_numpy(variable)
        if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
            return variable.path
    return None
