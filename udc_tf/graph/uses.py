"""Who takes each tensor of a graph."""

from collections.abc import Callable, Iterable

import keras

from udc_tf.graph.trace import Graph, Node, TensorRef


class Uses:
    """The consumers of each tensor.

    Args:
        nodes: those that count.
        outputs: of the model.
        identity: the id under which a tensor is known, where several references mean one tensor.

    Example:

    >>> from udc_tf.graph.trace import trace
    >>> x = keras.Input((4,))
    >>> graph = trace(keras.Model(x, keras.layers.ReLU(name="relu")(keras.layers.Dense(2)(x))))
    >>> Uses.of(graph).sole_consumer(graph.nodes[0].output).name
    'relu'
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        outputs: Iterable[TensorRef],
        identity: Callable[[TensorRef], int] = lambda ref: ref.id,
    ):
        self._identity = identity
        self._outputs = {identity(ref) for ref in outputs}
        self._consumers: dict[int, list[Node]] = {}
        for node in nodes:
            for ref in node.inputs:
                self._consumers.setdefault(identity(ref), []).append(node)

    @classmethod
    def of(cls, graph: Graph) -> "Uses":
        return cls(graph.nodes, keras.tree.flatten(graph.outputs))

    def is_output(self, ref: TensorRef) -> bool:
        return self._identity(ref) in self._outputs

    def consumers(self, ref: TensorRef) -> list[Node]:
        """All calls that take a tensor."""
        return self._consumers.get(self._identity(ref), [])

    def sole_consumer(self, ref: TensorRef) -> Node | None:
        """The only call that takes a tensor, which is no output of the model; else None."""
        consumers = self.consumers(ref)
        return consumers[0] if len(consumers) == 1 and not self.is_output(ref) else None
