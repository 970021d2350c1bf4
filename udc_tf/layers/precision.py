"""Mixed precision: what is computed in 16 bits, and when.

Decisions, ranges, quantization and sizes are float32 whatever the policy: the variables that they
depend on are not cast (`autocast=False`). A compact network computes in float32, as the device's
integers have to be told apart; finetuning alone takes it to 16 bits, for the length of its steps.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras


@contextlib.contextmanager
def global_policy(policy: Any) -> Iterator[None]:
    """Layers that are made inside have the policy.

    >>> with global_policy("mixed_bfloat16"):
    ...     keras.layers.Dense(2).compute_dtype
    'bfloat16'
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def computing_in(network: keras.Model, policy: Any) -> Iterator[None]:
    """The layers of a functional model follow the policy inside; its outputs stay float32."""
    last = {id(tensor._keras_history.operation) for tensor in network.outputs}
    layers = [layer for layer in _all_layers(network) if id(layer) not in last]
    before = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers:
            layer.dtype_policy = policy
        yield
    finally:
        for layer, old in zip(layers, before, strict=True):
            layer.dtype_policy = old


def _all_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _all_layers(layer)
        else:
            yield layer
