"""Loss and metrics are built before the first step.

Keras builds them while it traces that step; but a function that has made variables is traced anew,
so that a large network would be gone through twice.
"""

from typing import Any

import keras
import tensorflow as tf
from keras import tree


def build_metrics(model: keras.Model, network: keras.Model, batch: Any) -> None:
    """Calls loss and metrics of a compiled model once, on zeros.

    Args:
        model: what is trained.
        network: a functional model, whose outputs are compared with the labels.
        batch: the `element_spec` of the training data. If shapes are not known, nothing is done:
            Keras builds everything itself.

    >>> inputs = keras.Input((4,))
    >>> model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    >>> model.compile(loss="mse", metrics=["mae"])
    >>> build_metrics(model, model, (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 2])))
    >>> [variable.name for variable in model.metrics_variables]
    ['total', 'count', 'total', 'count']
    """
    outputs = getattr(network, "output", None)
    specs = tree.flatten((batch, outputs))
    if outputs is None or not all(_is_known(spec) for spec in specs):
        return
    count = specs[0].shape[0] or 1
    zeros = tree.map_structure(lambda spec: _zeros(spec, count), batch)
    predictions = tree.map_structure(lambda spec: _zeros(spec, count), outputs)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(zeros)

    def once() -> None:
        model.compute_loss(x, y, predictions, sample_weight, training=False)
        model.compute_metrics(x, y, predictions, sample_weight)

    model.distribute_strategy.run(once)
    model.reset_metrics()


def _is_known(spec: Any) -> bool:
    if not isinstance(spec, (tf.TensorSpec, keras.KerasTensor)) or spec.shape is None:
        return False
    shape = tuple(spec.shape) if getattr(spec.shape, "rank", 0) is not None else ()
    return len(shape) > 0 and None not in shape[1:]


def _zeros(spec: Any, count: int) -> tf.Tensor:
    dtype = spec.dtype if isinstance(spec, tf.TensorSpec) else tf.as_dtype(spec.dtype)
    return tf.zeros([count, *spec.shape[1:]], dtype)
