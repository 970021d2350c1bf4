"""How much each output channel of each kernel matters at the network's outputs."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from udc_tf.compress.output_divergence import Divergence
from udc_tf.layers.activation_quantizer import settled
from udc_tf.layers.inventory import activation_quantizers, kernel_layers

_BATCH = 16


def channel_importance(
    network: keras.Model, inputs: Sequence[np.ndarray], divergence: Divergence, seed: int
) -> dict[str, np.ndarray]:
    """Layer -> the divergence's curvature in each of its output channels.

    It is half the mean, over the examples, of the squared gradients at all positions of a channel:
    a squared error e at every position costs about `importance * e`. Of a layer that is called
    several times, whose channels have no single place, all are 1.
    """
    layers = [x for x in kernel_layers(network) if len(x._inbound_nodes) == 1]
    taps = keras.Model(network.inputs, [[x.output for x in layers], network.outputs])

    @tf.function(autograph=False, reduce_retracing=True)
    def squares(batch: list[tf.Tensor], noise: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(batch)
            inner, outputs = taps(batch, training=False)
            value = divergence.sampled(outputs, noise)
        found = tape.gradient(value, inner, unconnected_gradients="zero")
        return [
            # What a ReLU cut off is not felt.
            tf.reduce_sum(tf.square(g) * _passes(x, y), axis=tuple(range(len(g.shape) - 1)))
            for g, x, y in zip(found, layers, inner, strict=True)
        ]

    rng = np.random.default_rng(seed)
    count, sums = len(inputs[0]), [np.float64(0.0)] * len(layers)
    for start in range(0, count, _BATCH):
        batch = [tf.convert_to_tensor(x[start : start + _BATCH]) for x in inputs]
        shapes = [(len(batch[0]), *(n or 1 for n in o.shape[1:])) for o in network.outputs]
        noise = [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]
        with settled(activation_quantizers(network)):
            found = squares(batch, noise)
        sums = [a + f.numpy() for a, f in zip(sums, found, strict=True)]
    importance = {x.name: np.asarray(s / (2 * count)) for x, s in zip(layers, sums, strict=True)}
    for layer in kernel_layers(network):
        if layer.name not in importance:
            importance[layer.name] = np.ones(layer.output_channels((None, layer.theta.shape[-2])))
    return importance


def _passes(layer: keras.layers.Layer, output: tf.Tensor) -> tf.Tensor:
    if layer.activation is keras.activations.linear:
        return tf.ones_like(output)
    return tf.cast(output != 0, output.dtype)
