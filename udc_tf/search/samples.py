"""The samples of one step, and a forward pass in which every sample has its part of the batch."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import tree

from udc_tf.layers.current_sample import following
from udc_tf.layers.links import Sampled
from udc_tf.layers.searchable_kernels import SearchableKernel
from udc_tf.training import batch_norm

_KNOWN = ("keras", "udc_tf")  # whose layers add no losses when they are called


class Samples:
    """Samples of all decisions; a layer's kernels for all of them are made at its first call.

    Args:
        z: [samples, decisions, options].
        rows: decision -> its row in z.
    """

    def __init__(self, z: tf.Tensor, rows: dict[str, int]):
        self.z, self.rows = z, rows
        self._sampled = Sampled(z)
        self._kernels: dict[int, list[tf.Tensor]] = {}

    def view(self, index: int) -> "SampleView":
        return SampleView(self, index)

    def kernels_of(self, layer: SearchableKernel) -> list[tf.Tensor]:
        if id(layer) not in self._kernels:
            self._kernels[id(layer)] = layer.kernels_of_samples(self._sampled)
        return self._kernels[id(layer)]


@dataclasses.dataclass(frozen=True)
class GivenSample:
    """A sample whose kernels were made elsewhere, by the layers' identities."""

    kernels: Mapping[int, tf.Tensor]
    z: tf.Tensor  # [decisions, options]
    rows: Mapping[str, int]

    def kernel_of(self, layer: SearchableKernel) -> tf.Tensor:
        return self.kernels[id(layer)]

    def weights_of(self, decision: str) -> tf.Tensor:
        return self.z[self.rows[decision]]


@dataclasses.dataclass(frozen=True)
class SampleView:
    """One of the samples, as the layers ask for it (`current_sample.Sample`)."""

    samples: Samples
    index: int

    def kernel_of(self, layer: SearchableKernel) -> tf.Tensor:
        return self.samples.kernels_of(layer)[self.index]

    def weights_of(self, decision: str) -> tf.Tensor:
        return self.samples.z[self.index, self.samples.rows[decision]]


def predict_by_samples(
    network: keras.Model, x: Any, samples: Samples, layers: Sequence[SearchableKernel] = ()
) -> Any:
    """Each sample on its own slice of the batch; a batch smaller than that is gone round.

    Args:
        network: of the layers that ask for their sample.
        x: the inputs of the whole batch.
        samples: of all decisions.
        layers: those of the network with a searched kernel. In a graph, the network is then traced
            once and not once per sample.
    """
    count = samples.z.shape[0]
    if count == 1:
        with following(samples.view(0)), batch_norm.one_pass():
            return network(x, training=True)

    normalized: list[batch_norm.Pass] = []

    def of_sample(part: Any, z: tf.Tensor, kernels: Sequence[tf.Tensor]) -> Any:
        given = dict(zip(map(id, layers), kernels, strict=True))
        with following(GivenSample(given, z, samples.rows)), batch_norm.seeing() as seen:
            result = network(part, training=True)
        normalized.append(seen)
        return result, seen.found

    forward = traced_once(of_sample, network)
    kernels = [samples.kernels_of(layer) for layer in layers]
    size = tf.shape(tree.flatten(x)[0])[0]
    filled = tf.maximum(size, count)
    outputs, found = [], []
    for s in range(count):
        rows = tf.range(filled * s // count, filled * (s + 1) // count) % size
        part = tree.map_structure(lambda t, rows=rows: tf.gather(t, rows), x)
        result, statistics = forward(part, samples.z[s], [k[s] for k in kernels])
        outputs.append(result)
        found.append(statistics)
    batch_norm.follow(normalized[0].layers, found)
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
    # Not written out at each use either: TensorFlow then optimizes and keeps one graph of it.
    once = {"_noinline": True}
    return tf.function(
        function, autograph=False, reduce_retracing=True, experimental_attributes=once
    )


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
