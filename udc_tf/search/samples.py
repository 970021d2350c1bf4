"""The samples of one step, and a forward pass in which every sample has its part of the batch."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from udc_tf.layers.current_sample import following
from udc_tf.layers.kernels_together import kernels_of_layers
from udc_tf.layers.searchable_kernels import SearchableKernel

_KNOWN = ("keras", "udc_tf")  # whose layers add no losses when they are called


@dataclasses.dataclass(frozen=True)
class OneSample:
    """A sample as the layers ask for it (`current_sample.Sample`).

    Attributes:
        kernels: of every layer, by its identity.
        z: [decisions, options].
        rows: decision -> its row in z.
    """

    kernels: Mapping[int, tf.Tensor]
    z: tf.Tensor
    rows: Mapping[str, int]

    def kernel_of(self, layer: SearchableKernel) -> tf.Tensor:
        return self.kernels[id(layer)]

    def weights_of(self, decision: str) -> tf.Tensor:
        return self.z[self.rows[decision]]


@dataclasses.dataclass(frozen=True)
class Samples:
    """Samples of all decisions.

    Attributes:
        z: [samples, decisions, options].
        rows: decision -> its row in z.
        layers: those with a searched kernel.
    """

    z: tf.Tensor
    rows: Mapping[str, int]
    layers: Sequence[SearchableKernel]

    def kernels(self) -> list[list[tf.Tensor]]:
        """Of each layer the kernel under every sample."""
        return kernels_of_layers(self.layers, self.z)

    def given(self, z: tf.Tensor, kernels: Sequence[tf.Tensor]) -> OneSample:
        """One of them, with the kernels that the layers have under it."""
        return OneSample(dict(zip(map(id, self.layers), kernels, strict=True)), z, self.rows)

    def first(self) -> OneSample:
        return self.given(self.z[0], [kernels[0] for kernels in self.kernels()])


def predict_by_samples(network: keras.Model, x: Any, samples: Samples) -> Any:
    """Each sample on its own slice of the batch; a batch smaller than that is gone round.

    In a graph the network is traced once and not once per sample.

    Args:
        network: of the layers that ask for their sample.
        x: the inputs of the whole batch.
        samples: of all decisions.
    """
    count = samples.z.shape[0]
    if count == 1:
        with following(samples.first()):
            return network(x, training=True)

    def of_sample(part: Any, z: tf.Tensor, kernels: Sequence[tf.Tensor]) -> Any:
        with following(samples.given(z, kernels)):
            return network(part, training=True)

    forward = traced_once(of_sample, network)
    kernels = samples.kernels()
    size = tf.shape(tree.flatten(x)[0])[0]
    filled = tf.maximum(size, count)
    outputs = []
    for s in range(count):
        rows = tf.range(filled * s // count, filled * (s + 1) // count) % size
        part = tree.map_structure(lambda t, rows=rows: tf.gather(t, rows), x)
        outputs.append(forward(part, samples.z[s], [k[s] for k in kernels]))
    return tree.map_structure(lambda *parts: tf.concat(parts, axis=0)[:size], *outputs)


def traced_once(function: Callable[..., Any], network: keras.Model) -> Callable[..., Any]:
    """`function`, which calls the network, as one part of a graph that is used several times.

    Tracing a network takes most of the time to a first step. Where it may not be a part of its
    own, the function is returned as it is: outside of graphs, on several replicas, which do not
    synchronise inside of one, and with layers that leave losses behind, which belong to it alone.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if tf.executing_eagerly() or replicas > 1 or not _leaves_nothing(network):
        return function
    return tf.function(function, autograph=False, reduce_retracing=True)


def _leaves_nothing(network: keras.Model) -> bool:
    """Whether all that calls of it leave behind are variables; what users wrote is not asked."""
    return all(
        type(layer).__module__.split(".")[0] in _KNOWN
        and getattr(layer, "activity_regularizer", None) is None
        for layer in network._flatten_layers()
    )


def repeated(data: Any, times: int) -> Any:
    """A batch behind itself, so that the slice of each of so many samples is all of it.

    >>> repeated((tf.constant([1, 2]), None), 2)[0].numpy().tolist()
    [1, 2, 1, 2]
    """
    return tree.map_structure(lambda t: None if t is None else tf.concat([t] * times, axis=0), data)
