"""Kernels with what becomes part of them in an int8 network: the batch norm that follows."""

import collections
import dataclasses
import math
import weakref
from typing import Any, TypeVar

import keras
import numpy as np

from udc_tf.graph import shapes
from udc_tf.graph.affine import Affine
from udc_tf.graph.layer_rules import Range, absorbed, rule_of_node
from udc_tf.graph.trace import Graph, Node, TensorRef, trace
from udc_tf.graph.uses import Uses
from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.kernels import KernelLayer

_Layer = TypeVar("_Layer", bound=keras.layers.Layer)


@dataclasses.dataclass(frozen=True)
class Fold:
    """A kernel that is called once.

    Attributes:
        batch_norm: what takes its outputs, alone and at once; None if that is something else.
        input_quantizer: what rounds its inputs; None if nothing does.
        output_quantizer: what rounds its outputs, after batch norm and ReLU, and nothing else; or
            None.
        whole_inputs: whether its inputs are still whole steps; those of an average are not.
    """

    kernel: KernelLayer
    batch_norm: keras.layers.BatchNormalization | None
    input_quantizer: ActivationQuantizer | None
    output_quantizer: ActivationQuantizer | None = None
    whole_inputs: bool = True

    def gain(self) -> np.ndarray:
        """What the batch norm multiplies with, one factor per channel."""
        bn: Any = self.batch_norm  # Keras' own hints have its statistics as None
        if bn is None:
            raise ValueError(f"No batch norm follows `{self.kernel.name}`.")
        return Affine.of(bn, bn.moving_variance.shape[0]).factor


def folds(network: keras.Model) -> list[Fold]:
    """The kernels of a functional model, in the order of their calls.

    Example:

    >>> from udc_tf import UDCDense
    >>> dense, bn = UDCDense(3, name="dense"), keras.layers.BatchNormalization(name="bn")
    >>> model = keras.Sequential([keras.Input((4,)), dense, bn])
    >>> [(fold.kernel.name, fold.batch_norm.name) for fold in folds(model)]
    [('dense', 'bn')]
    """
    return list(_found(network)[0])


@dataclasses.dataclass(frozen=True)
class Mean:
    """A mean over all positions of an image that is rounded before and after, and nothing else."""

    positions: int
    input_quantizer: ActivationQuantizer
    output_quantizer: ActivationQuantizer
    whole_inputs: bool = True


def means(network: keras.Model) -> list[Mean]:
    """The means over all positions in a functional model."""
    return list(_found(network)[1])


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A call that scales and shifts channels on its own: a batch norm that folds into no kernel,
    a rescaling, a product or sum with a number. It is rounded before and after, and nothing else.
    """

    node: Node
    input_quantizer: ActivationQuantizer
    output_quantizer: ActivationQuantizer
    whole_inputs: bool = True

    def factors(self) -> np.ndarray:
        """What channels are multiplied with, as the layer is now."""
        return Affine.of_node(self.node).factor


def scalings(network: keras.Model) -> list[Scaling]:
    """The calls of a functional model that scale channels and fold into nothing."""
    return list(_found(network)[2])


@dataclasses.dataclass(frozen=True)
class Product:
    """A product of two tensors, element by element or of matrices. Both are rounded before, and
    the product itself, and nothing else.
    """

    input_quantizer: ActivationQuantizer
    factor_quantizer: ActivationQuantizer
    output_quantizer: ActivationQuantizer
    whole_inputs: bool = True

    @property
    def step(self) -> float:
        """Of what the inputs are multiplied with; 0 while that is not rounded."""
        return self.factor_quantizer.scale if self.factor_quantizer.is_rounding else 0.0


def products(network: keras.Model) -> list[Product]:
    """The products of tensors in a functional model."""
    return list(_found(network)[3])


@dataclasses.dataclass(frozen=True)
class ChannelSum:
    """A sum or mean over channels, which is a convolution with weights that are all alike. It is
    rounded before and after, and nothing else.

    Attributes:
        factor: of each channel.
    """

    factor: float
    input_quantizer: ActivationQuantizer
    output_quantizer: ActivationQuantizer
    whole_inputs: bool = True

    @property
    def step(self) -> float:
        """Of the weights, whose codes are the largest."""
        return self.factor / _LARGEST_CODE


def channel_sums(network: keras.Model) -> list[ChannelSum]:
    """The sums and means over channels in a functional model."""
    return list(_found(network)[4])


_LARGEST_CODE = 127
_Found = tuple[list[Fold], list[Mean], list[Scaling], list[Product], list[ChannelSum]]
# By network, while it lives: finetuning and export ask again and again, and to trace a network
# copies it.
_FOUND: weakref.WeakKeyDictionary[keras.Model, _Found] = weakref.WeakKeyDictionary()


def _found(network: keras.Model) -> _Found:
    """What follows from how the layers are connected, which nothing changes later."""
    if network not in _FOUND:
        graph = trace(network)  # of copies of the layers, by the same names
        _FOUND[network] = (
            _folds(network, graph),
            _means(network, graph),
            _scalings(network, graph),
            _products(network, graph),
            _channel_sums(network, graph),
        )
    return _FOUND[network]


def _folds(network: keras.Model, graph: Graph) -> list[Fold]:
    uses = Uses.of(graph)
    layers = {layer.name: layer for layer in network.layers}
    names = [node.name for node in graph.nodes]

    def layer_of(node: Node | None, kind: type[_Layer]) -> _Layer | None:
        layer = None if node is None else layers.get(node.name)
        return layer if isinstance(layer, kind) else None

    found = []
    for node in graph.nodes:
        kernel = layer_of(node, KernelLayer)
        if kernel is None or names.count(node.name) > 1:
            continue
        chain = [node, *absorbed(node, uses)]
        bn = layer_of(chain[1], keras.layers.BatchNormalization) if len(chain) > 1 else None
        if bn is not None and names.count(bn.name) > 1:
            bn, chain = None, [node]
        origin, whole = _origin(graph, node.inputs[0])
        source = layer_of(origin, ActivationQuantizer)
        target = layer_of(uses.sole_consumer(chain[-1].output), ActivationQuantizer)
        if target is not None and names.count(target.name) > 1:
            target = None
        found.append(Fold(kernel, bn, source, target, whole))
    return found


def _means(network: keras.Model, graph: Graph) -> list[Mean]:
    uses = Uses.of(graph)
    layers = {layer.name: layer for layer in network.layers}
    names = [node.name for node in graph.nodes]
    found = []
    for node in graph.nodes:
        shape = node.inputs[0].shape if node.inputs else ()
        everywhere = tuple(range(1, len(shape) - 1))
        is_mean = rule_of_node(node).operator == "MEAN"
        if not is_mean or shapes.reduced_axes(node.layer, len(shape)) != everywhere:
            continue
        origin, whole = _origin(graph, node.inputs[0])
        around = origin, uses.sole_consumer(node.output)
        source, target = (None if n is None else layers.get(n.name) for n in around)
        if not isinstance(source, ActivationQuantizer) or not isinstance(
            target, ActivationQuantizer
        ):
            continue
        if None not in shape[1:-1] and names.count(target.name) == 1:
            positions = math.prod(size or 0 for size in shape[1:-1])
            found.append(Mean(positions, source, target, whole))
    return found


def _scalings(network: keras.Model, graph: Graph) -> list[Scaling]:
    uses = Uses.of(graph)
    layers = {layer.name: layer for layer in network.layers}
    names = [node.name for node in graph.nodes]
    folded: set[int] = set()
    found = []
    for node in graph.nodes:
        following = absorbed(node, uses)
        folded |= {id(other) for other in following}
        if rule_of_node(node).affine is None or id(node) in folded:
            continue
        if isinstance(node.layer, keras.layers.Layer):  # else it has nothing that training moves
            if node.name not in layers:
                continue
            node = dataclasses.replace(node, layer=layers[node.name])
        origin, whole = _origin(graph, node.inputs[0])
        target = uses.sole_consumer([node, *following][-1].output)
        source, goal = (None if n is None else layers.get(n.name) for n in (origin, target))
        if not isinstance(source, ActivationQuantizer) or not isinstance(goal, ActivationQuantizer):
            continue
        if names.count(goal.name) == 1:
            found.append(Scaling(node, source, goal, whole))
    return found


def _products(network: keras.Model, graph: Graph) -> list[Product]:
    uses, (sources, goals) = Uses.of(graph), _quantizers(network, graph)
    found = []
    for node in graph.nodes:
        operator = rule_of_node(node).operator
        factors = node.inputs * 2 if operator == "SQUARE" else node.inputs
        if operator not in _PRODUCTS or len(factors) != 2:
            continue
        (one, one_whole), (other, other_whole) = (_origin(graph, factor) for factor in factors)
        target = uses.sole_consumer([node, *absorbed(node, uses)][-1].output)
        first, second = _of(sources, one), _of(sources, other)
        goal = _of(goals, target)
        if first is not None and second is not None and goal is not None:
            found.append(Product(first, second, goal, one_whole and other_whole))
    return found


def _channel_sums(network: keras.Model, graph: Graph) -> list[ChannelSum]:
    uses, (sources, goals) = Uses.of(graph), _quantizers(network, graph)
    found = []
    for node in graph.nodes:
        operator, shape = rule_of_node(node).operator, node.inputs[0].shape if node.inputs else ()
        last = len(shape) - 1
        if operator not in ("MEAN", "SUM") or shapes.reduced_axes(node.layer, last + 1) != (last,):
            continue
        origin, whole = _origin(graph, node.inputs[0])
        source, goal = _of(sources, origin), _of(goals, uses.sole_consumer(node.output))
        if source is not None and goal is not None:
            factor = 1.0 if operator == "SUM" else 1.0 / (shape[last] or 1)
            found.append(ChannelSum(factor, source, goal, whole))
    return found


_Quantizers = dict[str, ActivationQuantizer]


def _quantizers(network: keras.Model, graph: Graph) -> tuple[_Quantizers, _Quantizers]:
    """By name all of them, and those that are called once."""
    calls = collections.Counter(node.name for node in graph.nodes)
    found = {q.name: q for q in network.layers if isinstance(q, ActivationQuantizer)}
    return found, {name: q for name, q in found.items() if calls[name] == 1}


def _of(quantizers: _Quantizers, node: Node | None) -> ActivationQuantizer | None:
    return None if node is None else quantizers.get(node.name)


def _origin(graph: Graph, ref: TensorRef) -> tuple[Node | None, bool]:
    """The call that a tensor has its steps from, and whether its values are still whole steps.

    Between the two are calls that move, select, join or average. None if values were joined that
    have not one origin, or are inputs.
    """
    makers = [n for n in graph.nodes if any(r.id == ref.id for r in keras.tree.flatten(n.outputs))]
    if not makers or not makers[0].inputs:
        return (makers[0] if makers else None), True
    node = makers[0]
    rule = rule_of_node(node)
    if rule.range is Range.KEPT:
        origin, whole = _origin(graph, node.inputs[0])
        return origin, whole and rule.operator not in _AVERAGING
    if rule.range is Range.JOINED:
        origins = [_origin(graph, joined) for joined in node.inputs]
        names = {None if origin is None else origin.name for origin, _ in origins}
        alike = len(names) == 1 and None not in names
        return (origins[0][0] if alike else None), all(whole for _, whole in origins)
    return node, True


_PRODUCTS = ("MUL", "SQUARE", "BATCH_MATMUL")
# Operators that round anew, to the steps of their inputs, which Keras does not.
_AVERAGING = ("AVERAGE_POOL_2D", "RESIZE_BILINEAR")
