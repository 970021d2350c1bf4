"""Where an int8 TFLite network materialises a tensor, and so rounds it.

An operator's output is written in 8 bits with a scale of its own, except that

- a batch norm folds into the convolution before it, and a ReLU or ReLU6 into the convolution or
  elementwise operator before it: one tensor, after the last of them;
- pooling by maximum or window average, padding, reshaping and the like keep their input's scale;
- all inputs of a concatenation and its output have one scale;
- softmax, sigmoid and tanh have a prescribed scale.

`quantization_points` finds these tensors in a traced model.
"""

import dataclasses
from collections.abc import Callable, Mapping

import keras
from keras import layers as kl

from udc_tf.graph import conversion
from udc_tf.graph.trace import Graph, Node, TensorRef
from udc_tf.layers.activation_quantizer import FIXED_RANGES, ActivationQuantizer
from udc_tf.layers.choice import Mix

_KEEPS_RANGE = (
    kl.MaxPooling2D,
    kl.GlobalMaxPooling2D,
    kl.AveragePooling2D,
    kl.Flatten,
    kl.Reshape,
    kl.Permute,
    kl.ZeroPadding2D,
    kl.Cropping2D,
    kl.UpSampling2D,
    kl.Dropout,
    kl.SpatialDropout2D,
    kl.GaussianNoise,
    kl.GaussianDropout,
    kl.Identity,
    Mix,
)
_KEEPS_RANGE_OPS = (
    "Reshape",
    "Transpose",
    "Squeeze",
    "ExpandDims",
    "MaxPool",
    "AveragePool",
    "Pad",
)
_FUSES_ACTIVATION = (kl.BatchNormalization, kl.Add, kl.Subtract, kl.Multiply)
_FUSES_ACTIVATION_OPS = ("Add", "Subtract", "Multiply")


@dataclasses.dataclass(frozen=True)
class Point:
    """One 8-bit range, and what is known about it beforehand."""

    name: str
    fixed_range: tuple[float, float] | None = None
    shared: bool = False
    is_output: bool = False

    def make(self) -> ActivationQuantizer:
        return ActivationQuantizer(
            hold_peaks=self.shared,
            fixed_range=self.fixed_range,
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
    def __init__(self, graph, keeps, branch_of):
        self._graph = graph
        self._nodes = [n for n in graph.nodes if keeps(n)]
        self._alias: dict[int, int] = {}
        for node in self._nodes:
            if isinstance(node.layer, Mix):
                self._alias[node.output.id] = self._id(node.inputs[branch_of(node)])
        self._outputs = {self._id(ref) for ref in keras.tree.flatten(graph.outputs)}
        self._consumers: dict[int, list[Node]] = {}
        for node in self._nodes:
            if not isinstance(node.layer, Mix):
                for ref in node.inputs:
                    self._consumers.setdefault(self._id(ref), []).append(node)
        self._parent: dict[int, int] = {}  # tensors whose range is one
        self._names: dict[int, str] = {}  # of quantized tensors
        self._fixed: dict[int, tuple[float, float]] = {}

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
        split, used = {}, set()
        for node in self._nodes:
            if isinstance(node.layer, Mix):
                continue
            self._visit(node)
            if splits_activation(node.layer):
                name = _unique(f"{conversion.safe_name(node.name)}_preactivation_quantizer", used)
                split[node.output.id] = Point(name)
        members: dict[int, list[int]] = {}
        for i in self._names:
            if i not in self._fixed:
                members.setdefault(self._root(i), []).append(i)
        points = {}
        for i, name in self._names.items():
            first = i if i in self._fixed else members[self._root(i)][0]
            if first in points:
                points[i] = points[first]
                continue
            points[i] = Point(
                _unique(f"{conversion.safe_name(name)}_quantizer", used),
                fixed_range=self._fixed.get(i),
                shared=i not in self._fixed and len(members[self._root(i)]) > 1,
                is_output=i in self._outputs,
            )
        return QuantizationPoints(points, split)

    def _visit(self, node: Node) -> None:
        layer, outputs = node.layer, keras.tree.flatten(node.outputs)
        kind = type(layer).__name__
        if not node.inputs:
            return
        if keeps_range(layer):
            source = self._id(node.inputs[0])
            for ref in outputs:
                self._parent[ref.id] = self._root(source)
                if source in self._fixed:
                    self._fixed[ref.id] = self._fixed[source]
            return
        if isinstance(layer, kl.Concatenate) or kind == "Concatenate":
            sources = {self._id(ref) for ref in node.inputs}
            free = [s for s in sources if s not in self._fixed]
            for i in (*free, node.output.id):
                self._parent[self._root(i)] = self._root(free[0] if free else node.output.id)
            if len(free) < len(sources):
                self._names[node.output.id] = node.name
            return
        if self._folds_into_next(node):
            return
        for ref in outputs:
            self._names[ref.id] = node.name
        fixed = FIXED_RANGES.get(_activation(layer) or kind.lower())
        if fixed is not None:
            self._fixed[node.output.id] = fixed

    def _folds_into_next(self, node: Node) -> bool:
        i = self._id(node.output)
        users = self._consumers.get(i, [])
        if len(users) != 1 or i in self._outputs or _activation(node.layer) not in (None, "linear"):
            return False
        following = users[0].layer
        is_kernel = conversion.kernel_kind(node.layer) is not None
        if isinstance(following, kl.BatchNormalization):
            return is_kernel
        fuses = is_kernel or isinstance(node.layer, _FUSES_ACTIVATION)
        fuses = fuses or type(node.layer).__name__ in _FUSES_ACTIVATION_OPS
        return fuses and is_fusable(following)


def keeps_range(layer: keras.Operation) -> bool:
    """Whether the layer's outputs have its inputs' scale."""
    return isinstance(layer, _KEEPS_RANGE) or type(layer).__name__ in _KEEPS_RANGE_OPS


def is_fusable(layer: keras.Operation) -> bool:
    """Whether the layer is a ReLU that becomes part of the operator before it."""
    if isinstance(layer, kl.ReLU):
        plain = not layer.negative_slope and not layer.threshold
        return plain and layer.max_value in (None, 6)
    if type(layer).__name__ in ("Relu", "Relu6"):
        return True
    return isinstance(layer, kl.Activation) and _activation(layer) in ("relu", "relu6")


def splits_activation(layer: keras.Operation) -> bool:
    """Whether a kernel layer has an activation that is an operator of its own in TFLite."""
    if conversion.kernel_kind(layer) is None:
        return False
    return _activation(layer) not in ("linear", "relu", "relu6")


def _activation(layer: keras.Operation) -> str | None:
    if isinstance(layer, kl.Softmax):
        return "softmax"
    activation = getattr(layer, "activation", None)
    return None if activation is None else getattr(activation, "__name__", "unknown")


def _unique(name: str, used: set[str]) -> str:
    candidate, n = name, 1
    while candidate in used:
        n += 1
        candidate = f"{name}_{n}"
    used.add(candidate)
    return candidate
