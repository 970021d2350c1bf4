"""Batch-norm statistics of one configuration.

The samples of a search leave a mixture of statistics behind; before a single configuration is
judged they are measured again.
"""

from collections.abc import Callable, Iterable

import keras


def batch_norm_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    found = []
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            found.append(layer)
        elif isinstance(layer, keras.Model):
            found.extend(batch_norm_layers(layer))
    return found


def recalibrate(
    layers: list[keras.layers.BatchNormalization],
    run: Callable[[object], object],
    batches: Iterable[object],
) -> int:
    """Sets the moving statistics to their mean over `batches`; `run` must call with training=True.

    Returns how many batches there were.
    """
    momenta = [layer.momentum for layer in layers]
    count = 0
    try:
        for batch in batches if layers else ():
            for layer in layers:
                # Read at every eager call: this makes the moving average a plain mean.
                layer.momentum = count / (count + 1)
            run(batch)
            count += 1
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    return count
