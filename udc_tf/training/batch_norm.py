"""Batch-norm statistics of one configuration.

The samples of a search leave a mixture of statistics behind; before a single configuration is
judged they are measured again.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import keras
import numpy as np
import tensorflow as tf


def batch_norm_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    found = []
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            found.append(layer)
        elif isinstance(layer, keras.Model):
            found.extend(batch_norm_layers(layer))
    return found


def measure_statistics(
    layers: list[keras.layers.BatchNormalization],
    run: Callable[[object], object],
    batches: Iterable[object],
) -> int:
    """Sets the moving statistics to their mean over `batches`; `run` must call with training=True.

    Returns how many batches there were.
    """
    momenta = [layer.momentum for layer in layers]
    # A moving average with the momentum i/(i+1) is the plain mean of what was seen. In a variable,
    # so that `run` may be a graph.
    momentum = tf.Variable(0.0, trainable=False, name="share_of_the_past")
    count = 0
    try:
        for layer in layers:
            layer.momentum = momentum
        for batch in batches if layers else ():
            momentum.assign(count / (count + 1))
            run(batch)
            count += 1
    finally:
        for layer, value in zip(layers, momenta, strict=True):
            layer.momentum = value
    return count


@contextlib.contextmanager
def unchanged(model: keras.Model) -> Iterator[None]:
    """Puts back, at the end, all that calls in training mode change: statistics and random states.

    Replicas of a distributed model have values of their own, and get them back.
    """
    variables = model.non_trainable_variables
    strategy = model.distribute_strategy

    def put_back(values: list[np.ndarray]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    kept = strategy.run(lambda: [tf.identity(v.value) for v in variables])
    try:
        yield
    finally:
        strategy.run(put_back, args=(kept,))
