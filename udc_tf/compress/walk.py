"""Two networks of one structure, call by call, on all examples at once.

Each call is computed once; a tensor is kept until its last consumer has taken it. So what a layer
gets and gives in the original and in the compressed network can be looked at side by side, and the
layer changed before it is called, in the time of two forward passes however deep the network is.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import tree

from udc_tf.graph.trace import Graph, Node, TensorRef, trace
from udc_tf.layers.compact_kernels import CompactKernel

_BATCH = 64
_MOST_BYTES = 1 << 29  # of tensors that are kept, in each of the networks


@dataclasses.dataclass(frozen=True)
class Call:
    """One call that is about to happen.

    Attributes:
        name: of the layer.
        layer: of the compressed network.
        original: of the original network.
        inputs: of the compressed network, one array per tensor, first axis the examples.
        original_inputs: of the original.
        again: whether the layer has been called before.
    """

    name: str
    layer: Any
    original: Any
    inputs: list[np.ndarray]
    original_inputs: list[np.ndarray]
    again: bool


class Walk:
    """The calls of a network beside those of its original.

    Args:
        network: as `Compactor` builds it.
        original: another one of the same structure, or the same one.

    Attributes:
        calls: of each layer, by name.
    """

    def __init__(self, network: keras.Model, original: keras.Model):
        self._graph = trace(network)
        self._layers = {layer.name: layer for layer in network.layers}
        self._originals = {layer.name: layer for layer in original.layers}
        self._same = network is original
        self.calls = collections.Counter(node.name for node in self._graph.nodes)

    def most_examples(self) -> int:
        """With how many examples the kept tensors stay within bounds."""
        size = 4 * _largest_kept(self._graph)
        return max(1, _MOST_BYTES // max(size, 1))

    def shared_inputs(self, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """What layers get that are called more than once: of each call, its share of the examples.

        The first step of a recurrent layer has a state of zeros, which says nothing of the others.
        """
        found: dict[str, list[np.ndarray]] = {
            name: []
            for name, count in self.calls.items()
            if count > 1 and isinstance(self._layers.get(name), CompactKernel)
        }

        def visit(call: Call) -> None:
            if (parts := found.get(call.name)) is not None:
                parts.append(call.inputs[0][len(parts) :: self.calls[call.name]])

        if found:
            self.run(inputs, visit)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def run(
        self, inputs: Sequence[np.ndarray], visit: Callable[[Call], None]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Makes all calls, each after `visit`.

        Returns:
            The outputs of the network and of the original.
        """
        graph = self._graph
        uses = collections.Counter(ref.id for node in graph.nodes for ref in node.inputs)
        outputs = [ref.id for ref in tree.flatten(graph.outputs)]
        uses.update(outputs)
        refs = tree.flatten(graph.inputs)
        values = {ref.id: np.asarray(x) for ref, x in zip(refs, inputs, strict=True)}
        originals = values if self._same else dict(values)
        seen: set[str] = set()
        for node in graph.nodes:
            layer = self._layers.get(node.name, node.layer)
            original = self._originals.get(node.name, node.layer)
            taken = [ref.id for ref in node.inputs]
            visit(
                Call(
                    node.name,
                    layer,
                    original,
                    [values[i] for i in taken],
                    [originals[i] for i in taken],
                    node.name in seen,
                )
            )
            seen.add(node.name)
            _call(node, layer, values)
            if not self._same:
                _call(node, original, originals)
            for i in taken:
                uses[i] -= 1
                if not uses[i]:
                    values.pop(i, None)
                    originals.pop(i, None)
        return [values[i] for i in outputs], [originals[i] for i in outputs]


def _call(node: Node, layer: Any, values: dict[int, np.ndarray]) -> None:
    """Adds what a call gives to `values`, computed in batches."""
    results: list[list[np.ndarray]] = [[] for _ in tree.flatten(node.outputs)]
    count = max((len(values[ref.id]) for ref in node.inputs), default=1)
    for start in range(0, count, _BATCH):

        def fill(value: Any, at: int = start) -> Any:
            if not isinstance(value, TensorRef):
                return value
            return keras.ops.convert_to_tensor(values[value.id][at : at + _BATCH])

        args, kwargs = tree.map_structure(fill, (node.args, node.kwargs))
        produced = tree.flatten(layer(*args, **kwargs))
        for rows, tensor in zip(results, produced, strict=True):
            rows.append(keras.ops.convert_to_numpy(tensor))
    for ref, rows in zip(tree.flatten(node.outputs), results, strict=True):
        values[ref.id] = np.concatenate(rows)


def _largest_kept(graph: Graph) -> int:
    """The most numbers per example that are kept at a time."""
    last = {ref.id: i for i, node in enumerate(graph.nodes) for ref in node.inputs}
    last |= {ref.id: len(graph.nodes) for ref in tree.flatten(graph.outputs)}
    kept = {ref.id: _size(ref) for ref in tree.flatten(graph.inputs)}
    largest = sum(kept.values())
    for i, node in enumerate(graph.nodes):
        kept |= {ref.id: _size(ref) for ref in tree.flatten(node.outputs)}
        largest = max(largest, sum(kept.values()))
        kept = {k: v for k, v in kept.items() if last.get(k, -1) > i}
    return largest


def _size(ref: TensorRef) -> int:
    return int(np.prod([n or 1 for n in ref.shape[1:]]))
