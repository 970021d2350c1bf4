"""The physically small network of one configuration.

Walks the traced model, keeps the chosen branch of every choice and the active channels of every
tensor, and carries the weights over. Wherever the int8 network rounds a tensor it has an
`ActivationQuantizer`, which does nothing until finetuning switches it on.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from udc_tf.graph import activations, conversion
from udc_tf.graph.channel_groups import FIXED, ChannelGroups, ChannelMap
from udc_tf.graph.layer_rules import activation_of_node, kernel_kind, splits_activation
from udc_tf.graph.quantization_points import Point, quantization_points
from udc_tf.graph.trace import Gate, Graph, Node, TensorRef
from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.choice import Mix
from udc_tf.layers.compact_kernels import (
    CompactConv1D,
    CompactConv1DTranspose,
    CompactConv2D,
    CompactConv2DTranspose,
    CompactDense,
    CompactDepthwiseConv1D,
    CompactDepthwiseConv2D,
    CompactKernel,
)
from udc_tf.layers.precision import global_policy
from udc_tf.quantize.quantizers import FLOAT_BITS


@dataclasses.dataclass(frozen=True)
class LayerChoice:
    """What one layer became."""

    bits: int = FLOAT_BITS
    nonzeros: float = 1.0
    kernel_size: int | None = None


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One option of every decision, by name; what is not named stays as in the original."""

    channels: Mapping[str, int] = dataclasses.field(default_factory=dict)  # group -> how many
    layers: Mapping[str, LayerChoice] = dataclasses.field(default_factory=dict)
    branches: Mapping[str, int] = dataclasses.field(default_factory=dict)  # choice -> branch

    def keeps(self, gates: tuple[Gate, ...]) -> bool:
        return all(self.branches.get(g.choice, 0) == g.branch for g in gates)

    def active(self, groups: ChannelGroups, channels: ChannelMap) -> np.ndarray:
        """Positions of a tensor's last axis that stay."""
        limit = [self.channels.get(g.name, g.channels) for g in groups.groups]
        counts = np.append(limit, np.iinfo(np.int64).max)  # FIXED = -1 takes the last: no limit
        assert FIXED == -1
        return np.flatnonzero(channels.index < counts[channels.group])


@dataclasses.dataclass(frozen=True)
class Slices:
    """Which part of an original layer's weights its compact layer takes over."""

    inputs: np.ndarray
    outputs: np.ndarray
    window: slice | None = None

    def of_kernel(self, layer: CompactKernel, kernel: np.ndarray) -> np.ndarray:
        if self.window is not None:
            kernel = kernel[(self.window,) * (kernel.ndim - 2)]
        if layer.in_axis is None:
            # Depthwise: input channels sit in the axis before the last, which has their multiples.
            return np.take(kernel, self.inputs, axis=-2)
        if getattr(layer, "groups", 1) == 1:
            kernel = np.take(kernel, self.inputs, axis=layer.in_axis)
        return np.take(kernel, self.outputs, axis=layer.out_axis)


GATE = "_gate"  # behind the name of a swish, which is a sigmoid and a product
_COMPACT = {
    "Conv1D": CompactConv1D,
    "DepthwiseConv1D": CompactDepthwiseConv1D,
    "Conv2D": CompactConv2D,
    "DepthwiseConv2D": CompactDepthwiseConv2D,
    "Conv1DTranspose": CompactConv1DTranspose,
    "Conv2DTranspose": CompactConv2DTranspose,
    "Dense": CompactDense,
}


class Compactor:
    """Builds the compact model of a configuration, and fills in weights by original layer name."""

    def __init__(self, graph: Graph, groups: ChannelGroups, configuration: Configuration):
        self._graph, self._groups, self._configuration = graph, groups, configuration
        self._made: dict[object, Any] = {}  # layers, and operations of keras.ops
        self._slices: dict[str, tuple[keras.layers.Layer, Slices]] = {}
        self._points = quantization_points(
            graph,
            keeps=lambda node: configuration.keeps(node.gates),
            branch_of=lambda node: configuration.branches.get(node.name, 0),
        )
        self._quantizers: dict[str, ActivationQuantizer] = {}
        self._quantized_inputs: dict[int, keras.KerasTensor] = {}

    def build(self) -> keras.Model:
        self._quantized_inputs = {}
        with global_policy("float32"):
            return self._graph.rebuild(self._convert)

    @property
    def layers(self) -> dict[str, tuple[keras.layers.Layer, Slices]]:
        """Original name -> (compact layer, what it takes of the original's weights)."""
        return self._slices

    def _convert(self, node: Node) -> Callable[..., Any] | None:
        if not self._configuration.keeps(node.gates):
            return None
        if isinstance(node.layer, Mix):
            branch = self._configuration.branches.get(node.name, 0)
            return lambda branches: branches[branch]
        if id(node.layer) not in self._made:
            self._made[id(node.layer)] = self._make(node)
        layer = self._made[id(node.layer)]

        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._quantize_inputs(node, args, kwargs)
            outputs = layer(*args, **kwargs)
            if node.output.id in self._points.split:
                outputs = self._quantizer(self._points.split[node.output.id])(outputs)
                outputs = self._activation(node)(outputs)
            return keras.tree.map_structure(
                lambda ref, tensor: self._quantize(ref, tensor), node.outputs, outputs
            )

        return call

    def _quantizer(self, point: Point) -> ActivationQuantizer:
        """The layer of a range; tensors that share the range share the layer."""
        if point.name not in self._quantizers:
            self._quantizers[point.name] = point.make()
        return self._quantizers[point.name]

    def _quantize(self, ref: TensorRef, tensor: Any) -> Any:
        point = self._points.tensors.get(ref.id)
        return tensor if point is None else self._quantizer(point)(tensor)

    def _quantize_inputs(
        self, node: Node, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]]:
        """Rounds those arguments that are inputs of the model, each once for all its consumers."""
        inputs = {ref.id for ref in keras.tree.flatten(self._graph.inputs)}

        def rounded(ref: Any, value: Any) -> Any:
            if not isinstance(ref, TensorRef) or ref.id not in inputs:
                return value
            if ref.id not in self._quantized_inputs:
                self._quantized_inputs[ref.id] = self._quantize(ref, value)
            return self._quantized_inputs[ref.id]

        return keras.tree.map_structure(rounded, (node.args, node.kwargs), (args, kwargs))

    def _activation(self, node: Node) -> Callable[..., Any]:
        """The activation of a kernel layer, as a layer of its own: TFLite has it as an operator."""
        key = (id(node.layer), "activation")
        if key not in self._made:
            name = f"{conversion.safe_name(node.name)}_activation"
            alone = keras.layers.Activation(node.layer.activation, name=name)
            self._made[key] = _gated(name) if _is_silu(node) else alone
        return self._made[key]

    def _make(self, node: Node) -> Callable[..., Any]:
        kind = kernel_kind(node.layer)
        if kind is None and _is_silu(node):
            return _gated(conversion.safe_name(node.name))
        slices = self._slice(node)
        if kind is not None:
            made = self._make_kernel_layer(node, kind, slices)
        elif isinstance(node.layer, keras.layers.Layer):
            channels, of = len(slices.outputs), node.output.shape[-1]
            made = conversion.copy_layer(node.layer, node.name, channels, "float32", of)
        else:
            return node.layer  # an operation of keras.ops: nothing of its own
        self._slices[node.name] = (made, slices)
        return made

    def _make_kernel_layer(self, node: Node, kind: str, slices: Slices) -> CompactKernel:
        choice = self._configuration.layers.get(node.name, LayerChoice())
        config = {**conversion.kernel_config(node.layer, node.name), "dtype": "float32"}
        if "filters" in config:
            config["filters"] = len(slices.outputs)
        if "units" in config:
            config["units"] = len(slices.outputs)
        if choice.kernel_size is not None:
            config["kernel_size"] = choice.kernel_size
        if splits_activation(node.layer):
            config["activation"] = None
        return _COMPACT[kind](**config, bits=choice.bits, nonzeros=choice.nonzeros)

    def _slice(self, node: Node) -> Slices:
        def active(ref: TensorRef) -> np.ndarray:
            return self._configuration.active(self._groups, self._groups.map_of(ref))

        window = None
        choice = self._configuration.layers.get(node.name)
        if choice is not None and choice.kernel_size is not None:
            start = (node.layer.kernel_size[0] - choice.kernel_size) // 2
            window = slice(start, start + choice.kernel_size)
        inputs = node.inputs[0] if node.inputs else node.output
        return Slices(active(inputs), active(node.output), window)


def _is_silu(node: Node) -> bool:
    return activation_of_node(node).operator == "SILU"


def _gated(name: str) -> Callable[[Any], Any]:
    """x * sigmoid(x), with the sigmoid rounded as the int8 operator between the two rounds it."""
    sigmoid = keras.layers.Activation("sigmoid", name=f"{name}{GATE}")
    prescribed = activations.of_layer(sigmoid).range
    quantizer = ActivationQuantizer(fixed_range=prescribed, name=f"{name}{GATE}_quantizer")
    product = keras.layers.Multiply(name=name)
    return lambda x: product([x, quantizer(sigmoid(x))])


def carry_weights(
    layers: Mapping[str, tuple[keras.layers.Layer, Slices]],
    weights: Mapping[str, Mapping[str, np.ndarray]],
) -> None:
    """Cuts the original layers' weights, given by layer and variable name, into compact ones."""
    for name, (layer, slices) in layers.items():
        source = weights.get(name)
        if not source:
            continue
        if isinstance(layer, CompactKernel):
            layer.theta.assign(slices.of_kernel(layer, source["kernel"]))
            if layer.bias is not None:
                layer.bias.assign(source["bias"][slices.outputs])
            if "log_range" in source:
                layer.log_range.assign(source["log_range"])
            else:
                layer.initialize_range()
            layer.refresh_mask()
            continue
        for variable in layer.weights:
            value = source.get(variable.name)
            if value is None:
                continue
            if value.shape != tuple(variable.shape):
                value = np.take(value, slices.outputs, axis=-1)
            variable.assign(value)
