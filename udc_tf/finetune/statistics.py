"""Measuring batch norm's statistics and activation ranges on a few batches.

Both are running averages, which lag behind weights that still move (and behind masks that move in
jumps). Before they are frozen they are measured anew, with the weights as they are.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from udc_tf.layers.activation_quantizer import held
from udc_tf.layers.inventory import activation_quantizers
from udc_tf.training import batch_norm
from udc_tf.training.batch_norm import batch_norm_layers


def recalibrate(network: keras.Model, batches: Iterable) -> None:
    """Sets statistics and ranges to their averages over `batches` of inputs.

    Ranges are measured in a second pass, with the statistics that inference will use.
    """
    batches = list(batches)
    if not batches:
        return
    with _unoptimized():
        _measure(network, batches)


def _measure(network: keras.Model, batches: list[Any]) -> None:
    def forward() -> Callable[[Any], Any]:
        # Traced anew each time: what is frozen is decided when the graph is made.
        return tf.function(
            lambda x: network(x, training=True), reduce_retracing=True, autograph=False
        )

    quantizers = activation_quantizers(network)
    with _tracking(network, 0.0), held(quantizers), batch_norm.fused(network):
        batch_norm.measure_statistics(batch_norm_layers(network), forward(), batches)
    for quantizer in quantizers:
        quantizer.seen.assign(0.0)
    if quantizers:
        with _tracking(network, 1.0), frozen_statistics(network):
            run = forward()
            for x in batches:
                run(x)


@contextlib.contextmanager
def frozen_statistics(network: keras.Model) -> Iterator[None]:
    """Batch norm as in inference, even in training steps; its gain and offset are frozen too."""
    layers = [(bn, bn.trainable) for bn in batch_norm_layers(network)]
    for bn, _ in layers:
        bn.trainable = False
    try:
        yield
    finally:
        for bn, trainable in layers:
            bn.trainable = trainable


@contextlib.contextmanager
def _unoptimized() -> Iterator[None]:
    """Graphs run as they are: some batches take less time than it takes to optimize a graph."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({**before, "disable_meta_optimizer": True})
    try:
        yield
    finally:
        off = {"disable_meta_optimizer": before.get("disable_meta_optimizer", False)}
        tf.config.optimizer.set_experimental_options({**before, **off})


@contextlib.contextmanager
def without_dropout(network: keras.Model) -> Iterator[None]:
    """No layer drops anything, even in training steps.

    Dropout changes the variance of what goes into a batch norm, which one that stands still does
    not make good: weights would learn to.
    """
    kinds = (keras.layers.Dropout, keras.layers.GaussianDropout, keras.layers.AlphaDropout)
    layers = [(x, x.rate) for x in network.layers if isinstance(x, kinds)]
    for layer, _ in layers:
        layer.rate = 0.0
    try:
        yield
    finally:
        for layer, rate in layers:
            layer.rate = rate


@contextlib.contextmanager
def _tracking(network: keras.Model, value: float) -> Iterator[None]:
    layers = [(q, q.tracking.numpy()) for q in activation_quantizers(network)]
    for quantizer, _ in layers:
        quantizer.tracking.assign(value)
    try:
        yield
    finally:
        for quantizer, old in layers:
            quantizer.tracking.assign(old)
