"""Draws that depend on a seed and a layer's name alone, whatever the process drew before."""

import zlib

import keras
import tensorflow as tf


def seed_for(seed: int, name: str) -> int:
    """A seed of a layer's own.

    >>> seed_for(0, "conv") == seed_for(0, "conv") != seed_for(1, "conv")
    True
    """
    return zlib.crc32(f"{seed}/{name}".encode()) % 2**31


def drawn(
    initializer: keras.initializers.Initializer, shape: tuple[int, ...], seed: int
) -> tf.Tensor:
    """What an initializer gives; unless it has a seed of its own, for this one.

    Keras gives an initializer without a seed one of the process' own when it is made.

    >>> values = [drawn(keras.initializers.HeNormal(), (2,), seed=3) for _ in range(2)]
    >>> bool(keras.ops.all(values[0] == values[1]))
    True
    """
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    if "seed" in config and config["seed"] is None:
        initializer = type(initializer).from_config({**config, "seed": seed})
    return initializer(shape)


def seed_random_layers(network: keras.Model, seed: int) -> None:
    """Sets layers such as dropout, unless they were given a seed, to their first draw for this one.

    >>> network = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5, name="drop")])
    >>> x, outputs = keras.ops.ones((1, 4)), []
    >>> for _ in range(2):
    ...     seed_random_layers(network, 7)
    ...     outputs.append(network(x, training=True))
    >>> bool(keras.ops.all(outputs[0] == outputs[1]))
    True
    """
    for layer in network.layers:
        if getattr(layer, "seed", None) is not None:
            continue
        known = {id(v) for v in (*layer.weights, *layer.metrics_variables)}
        states = [v for v in layer.variables if id(v) not in known]
        for number, state in enumerate(states):
            # A generator's state is its seed and how often it was asked.
            state.assign([seed_for(seed, f"{layer.name}/{number}"), 0])
