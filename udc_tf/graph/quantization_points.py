"""Where an int8 TFLite network materialises a tensor, and so rounds it.

An operator's output is written in 8 bits with a scale of its own, except that

- a batch norm folds into the convolution before it, and a ReLU or ReLU6 into the convolution or
  elementwise operator before it: one tensor, after the last of them;
- pooling by maximum or window average, padding, reshaping and the like keep their input's scale;
- all inputs of a concatenation and its output have one scale;
- all steps of a layer over time have one, so that kernels and tables are stored once;
- softmax, sigmoid and tanh have a prescribed scale; what only sigmoid or tanh take needs no range
  beyond which these saturate.

`quantization_points` finds these tensors in a traced model.
"""

import dataclasses
from collections.abc import Callable, Mapping

import keras

from udc_tf.graph import conversion
from udc_tf.graph.layer_rules import (
    Range,
    absorbed,
    activation_of_node,
    rule_of_node,
    saturation,
    splits_activation,
)
from udc_tf.graph.trace import Graph, Node, TensorRef
from udc_tf.graph.uses import Uses
from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.choice import Mix


@dataclasses.dataclass(frozen=True)
class Point:
    """One 8-bit range, and what is known about it beforehand."""

    name: str
    fixed_range: tuple[float, float] | None = None
    limit: float | None = None
    shared: bool = False
    is_output: bool = False

    def make(self) -> ActivationQuantizer:
        return ActivationQuantizer(
            hold_peaks=self.shared,
            fixed_range=self.fixed_range,
            limit=self.limit,
            inference_only=self.is_output and self.fixed_range is not None,
            name=self.name,
        )


@dataclasses.dataclass(frozen=True)
class QuantizationPoints:
    """Tensors to quantize, by their id in the graph.

    `split` has, for kernel layers whose activation TFLite computes as an operator of its own, the
    point between the two, by the id of the layer's output.
    """

    tensors: Mapping[int, Point]
    split: Mapping[int, Point]


def quantization_points(
    graph: Graph, keeps: Callable[[Node], bool], branch_of: Callable[[Node], int]
) -> QuantizationPoints:
    """The points of the part of `graph` that `keeps` keeps; `branch_of` says what a `Mix` takes.

    >>> from keras import layers as kl
    >>> from udc_tf.graph.trace import trace
    >>> x = keras.Input((8, 8, 3), name="image")
    >>> y = kl.ReLU(name="relu")(kl.BatchNormalization()(kl.Conv2D(4, 3, name="conv")(x)))
    >>> y = kl.Dense(2, name="head")(kl.Flatten()(kl.MaxPooling2D()(y)))
    >>> points = quantization_points(trace(keras.Model(x, y)), lambda n: True, lambda n: 0)
    >>> [point.name for point in points.tensors.values()]
    ['image_quantizer', 'relu_quantizer', 'head_quantizer']
    """
    return _Planner(graph, keeps, branch_of).plan()


class _Planner:
    def __init__(
        self, graph: Graph, keeps: Callable[[Node], bool], branch_of: Callable[[Node], int]
    ):
        self._graph = graph
        self._nodes = [n for n in graph.nodes if keeps(n)]
        self._alias: dict[int, int] = {}
        for node in self._nodes:
            if isinstance(node.layer, Mix):
                self._alias[node.output.id] = self._id(node.inputs[branch_of(node)])
        self._outputs = {self._id(ref) for ref in keras.tree.flatten(graph.outputs)}
        taking = [node for node in self._nodes if not isinstance(node.layer, Mix)]
        self._uses = Uses(taking, keras.tree.flatten(graph.outputs), self._id)
        self._parent: dict[int, int] = {}  # tensors whose range is one
        self._names: dict[int, str] = {}  # of quantized tensors
        self._fixed: dict[int, tuple[float, float]] = {}
        self._limits: dict[int, float | None] = {}  # of quantized tensors
        self._first: dict[str, int] = {}  # of the tensors that have such a range in a whole
        self._earlier: dict[int, int] = {}  # the others -> the first

    def _id(self, ref: TensorRef) -> int:
        return self._alias.get(ref.id, ref.id)

    def _root(self, i: int) -> int:
        while self._parent.setdefault(i, i) != i:
            i = self._parent[i]
        return i

    def plan(self) -> QuantizationPoints:
        graph = self._graph
        refs = keras.tree.flatten(graph.inputs)
        for ref, name, dtype in zip(refs, graph.input_names, graph.input_dtypes, strict=True):
            if "float" in dtype:
                self._names[ref.id] = name
        split: dict[int, Point] = {}
        used: set[str] = set()
        for node in self._nodes:
            if isinstance(node.layer, Mix):
                continue
            self._visit(node)
            if splits_activation(node.layer):
                if node.output.id in self._earlier:
                    split[node.output.id] = split[self._earlier[node.output.id]]
                    continue
                name = _unique(f"{conversion.safe_name(node.name)}_preactivation_quantizer", used)
                split[node.output.id] = Point(name, limit=activation_of_node(node).saturates)
        members: dict[int, list[int]] = {}
        for i in self._names:
            if i not in self._fixed:
                members.setdefault(self._root(i), []).append(i)
        points: dict[int, Point] = {}
        for i, name in self._names.items():
            first = self._earlier.get(i, i) if i in self._fixed else members[self._root(i)][0]
            if first in points:
                points[i] = points[first]
                continue
            points[i] = Point(
                _unique(f"{conversion.safe_name(name)}_quantizer", used),
                fixed_range=self._fixed.get(i),
                limit=None if i in self._fixed else self._common_limit(members[self._root(i)]),
                shared=i not in self._fixed and len(members[self._root(i)]) > 1,
                is_output=i in self._outputs,
            )
        return QuantizationPoints(points, split)

    def _common_limit(self, tensors: list[int]) -> float | None:
        """What bounds a range that several tensors have."""
        return _widest([self._limits.get(i) for i in tensors])

    def _limit(self, ref: TensorRef) -> float | None:
        """Where all that take a tensor saturate; None if one does not."""
        if self._uses.is_output(ref):
            return None
        return _widest([saturation(taker) for taker in self._uses.consumers(ref)])

    def _visit(self, node: Node) -> None:
        outputs = keras.tree.flatten(node.outputs)
        if not node.inputs:
            return
        rule = rule_of_node(node)
        if rule.range is Range.KEPT:
            source = self._id(node.inputs[0])
            for ref in outputs:
                self._parent[ref.id] = self._root(source)
                if source in self._fixed:
                    self._fixed[ref.id] = self._fixed[source]
            return
        if rule.range is Range.JOINED:
            sources = {self._id(ref) for ref in node.inputs}
            free = [s for s in sources if s not in self._fixed]
            for i in (*free, node.output.id):
                self._parent[self._root(i)] = self._root(free[0] if free else node.output.id)
            if len(free) < len(sources):
                self._names[node.output.id] = node.name
            return
        if absorbed(node, self._uses):
            return  # written after the last of them
        for ref in outputs:
            self._names[ref.id] = node.name
            self._limits[ref.id] = self._limit(ref)
        if node.whole is not None:
            name = node.whole.ranges.get(node.name, node.name)
            first = self._first.setdefault(name, node.output.id)
            if first != node.output.id:
                self._earlier[node.output.id] = first
                self._parent[self._root(node.output.id)] = self._root(first)
        prescribed = activation_of_node(node).range
        if prescribed is not None:
            self._fixed[node.output.id] = prescribed


def _widest(limits: list[float | None]) -> float | None:
    """The largest, if all are limits."""
    known = [limit for limit in limits if limit is not None]
    return max(known, default=None) if len(known) == len(limits) else None


def _unique(name: str, used: set[str]) -> str:
    candidate, n = name, 1
    while candidate in used:
        n += 1
        candidate = f"{name}_{n}"
    used.add(candidate)
    return candidate
