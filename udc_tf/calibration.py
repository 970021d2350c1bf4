"""Measuring batch norm's statistics and activation ranges on a few batches.

Both are running averages, which lag behind weights that still move (and behind masks that move in
jumps). Before they are frozen they are measured anew, with the weights as they are.
"""

import contextlib
from collections.abc import Iterable, Iterator

import keras
import tensorflow as tf

from udc_tf.finetuner import activation_quantizers, batch_norms


def recalibrate(network: keras.Model, batches: Iterable) -> None:
    """Sets statistics and ranges to their averages over `batches` of inputs.

    Ranges are measured in a second pass, with the statistics that inference will use.
    """
    batches = list(batches)
    if not batches:
        return
    share = tf.Variable(0.0, trainable=False, name="share_of_the_past")

    def run():
        # Traced anew each time: what is frozen is decided when the graph is made.
        forward = tf.function(lambda x: network(x, training=True), reduce_retracing=True)
        # A running average with the momentum i/(i+1) is the plain mean of all batches so far.
        for i, x in enumerate(batches):
            share.assign(i / (i + 1))
            forward(x)

    if batch_norms(network):
        with _tracking(network, 0.0), _momentum(network, share):
            run()
    for quantizer in activation_quantizers(network):
        quantizer.seen.assign(0.0)
    with _tracking(network, 1.0), frozen_statistics(network):
        run()


@contextlib.contextmanager
def frozen_statistics(network: keras.Model) -> Iterator[None]:
    """Batch norm as in inference, even in training steps; its gain and offset are frozen too."""
    layers = [(bn, bn.trainable) for bn in batch_norms(network)]
    for bn, _ in layers:
        bn.trainable = False
    try:
        yield
    finally:
        for bn, trainable in layers:
            bn.trainable = trainable


@contextlib.contextmanager
def _momentum(network, momentum) -> Iterator[None]:
    layers = [(bn, bn.momentum) for bn in batch_norms(network)]
    for bn, _ in layers:
        bn.momentum = momentum
    try:
        yield
    finally:
        for bn, value in layers:
            bn.momentum = value


@contextlib.contextmanager
def _tracking(network, value) -> Iterator[None]:
    layers = [(q, q.tracking.numpy()) for q in activation_quantizers(network)]
    for quantizer, _ in layers:
        quantizer.tracking.assign(value)
    try:
        yield
    finally:
        for quantizer, old in layers:
            quantizer.tracking.assign(old)
