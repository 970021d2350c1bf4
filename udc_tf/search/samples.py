"""The samples of one step, and a forward pass in which every sample has its part of the batch."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from udc_tf.layers.current_sample import following
from udc_tf.layers.searchable_kernels import SearchableKernel


class Samples:
    """Samples of all decisions; a layer's kernels for all of them are made at its first call.

    Args:
        z: [samples, decisions, options].
        rows: decision -> its row in z.
    """

    def __init__(self, z: tf.Tensor, rows: dict[str, int]):
        self.z, self.rows = z, rows
        self._kernels: dict[int, list[tf.Tensor]] = {}

    def view(self, index: int) -> "SampleView":
        return SampleView(self, index)

    def kernels_of(self, layer: SearchableKernel) -> list[tf.Tensor]:
        if id(layer) not in self._kernels:
            self._kernels[id(layer)] = layer.kernels_of_samples(self.z)
        return self._kernels[id(layer)]


@dataclasses.dataclass(frozen=True)
class SampleView:
    """One of the samples, as the layers ask for it (`current_sample.Sample`)."""

    samples: Samples
    index: int

    def kernel_of(self, layer: SearchableKernel) -> tf.Tensor:
        return self.samples.kernels_of(layer)[self.index]

    def weights_of(self, decision: str) -> tf.Tensor:
        return self.samples.z[self.index, self.samples.rows[decision]]


def predict_by_samples(network: keras.Model, x: Any, samples: Samples) -> Any:
    """Each sample on its own slice of the batch; a batch smaller than that is gone round."""
    count = samples.z.shape[0]
    if count == 1:
        with following(samples.view(0)):
            return network(x, training=True)
    size = tf.shape(tree.flatten(x)[0])[0]
    filled = tf.maximum(size, count)
    outputs = []
    for s in range(count):
        rows = tf.range(filled * s // count, filled * (s + 1) // count) % size
        part = tree.map_structure(lambda t, rows=rows: tf.gather(t, rows), x)
        with following(samples.view(s)):
            outputs.append(network(part, training=True))
    return tree.map_structure(lambda *parts: tf.concat(parts, axis=0)[:size], *outputs)


def repeated(data: Any, times: int) -> Any:
    """A batch behind itself, so that the slice of each of so many samples is all of it.

    >>> repeated((tf.constant([1, 2]), None), 2)[0].numpy().tolist()
    [1, 2, 1, 2]
    """
    return tree.map_structure(lambda t: None if t is None else tf.concat([t] * times, axis=0), data)
