"""Functions of tensors that become part of a graph once, whatever shapes they are called with.

What every layer does with its weights is traced once per layer otherwise; in a network of fifty
layers most of the time to a first step goes there.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def traced_for_any_shape(
    function: Callable[..., Any], dtypes: Sequence[tf.DType]
) -> Callable[..., Any]:
    """`function`, whose result, if it is one tensor, has the shape of the first argument.

    Args:
        function: of tensors; it asks no shape that is not known before it runs.
        dtypes: of the arguments.

    >>> halved = traced_for_any_shape(lambda x: x / 2, [tf.float32])
    >>> halved(tf.constant([1.0])).numpy().tolist(), halved(tf.ones([1, 1])).numpy().tolist()
    ([0.5], [[0.5]])
    """
    signature = [tf.TensorSpec(None, dtype) for dtype in dtypes]
    traced: Any = tf.function(function, input_signature=signature, autograph=False)

    def call(*tensors: tf.Tensor) -> Any:
        if tf.executing_eagerly():
            return function(*tensors)
        result = traced(*tensors)
        if tf.is_tensor(result):
            result.set_shape(tensors[0].shape)
        return result

    return call
