"""Small variables that an optimizer moves as one."""

import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf


class OneVector:
    """Variables side by side in a vector, for optimizers that treat each number by itself.

    What an optimizer does to fifty scalars takes a thousand operations one by one, and twenty so.

    Args:
        variables: of float32; replicas must have them alike.

    >>> a, b = keras.Variable(1.0), keras.Variable([2.0, 3.0])
    >>> OneVector([a, b]).apply(keras.optimizers.SGD(0.5), [tf.constant(2.0), None])
    >>> float(a.value), b.numpy().tolist()
    (0.0, [2.0, 3.0])
    """

    def __init__(self, variables: Sequence[keras.Variable]):
        self.variables = tuple(variables)
        self._sizes = [math.prod(v.shape) for v in self.variables]
        zeros = np.zeros(sum(self._sizes), "float32")
        self.vector = keras.Variable(
            zeros, name="one_vector", autocast=False, aggregation="only_first_replica"
        )

    def apply(
        self, optimizer: keras.optimizers.Optimizer, gradients: Sequence[tf.Tensor | None]
    ) -> None:
        """One step of the optimizer; None stands for a gradient of zero."""
        values = [tf.convert_to_tensor(v) for v in self.variables]
        given = [
            tf.zeros_like(v) if g is None else g for v, g in zip(values, gradients, strict=True)
        ]
        self.vector.assign(_side_by_side(values))
        optimizer.apply([_side_by_side(given)], [self.vector])
        parts = tf.split(self.vector.value, self._sizes)
        for variable, part in zip(self.variables, parts, strict=True):
            variable.assign(tf.reshape(part, variable.shape))


def _side_by_side(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0)
