"""From a network and a search space to the list of decisions and of priced layers."""

import dataclasses
import functools
import math

import keras
import numpy as np
from keras import layers as kl

from udc_tf.graph.channel_groups import FIXED, OPENING, ChannelGroup, ChannelGroups, ChannelMap
from udc_tf.graph.conversion import kernel_kind, unsupported
from udc_tf.graph.trace import Gate, Graph, Node
from udc_tf.layers.choice import Mix
from udc_tf.search.space import LayerOptions, SearchSpace


@dataclasses.dataclass(frozen=True)
class Decision:
    """One categorical variable: `options[k]` is taken with probability pi[k]."""

    kind: str  # "width", "bits", "sparsity", "kernel" or "choice"
    subject: str  # the channel group, layer or choice it is about
    options: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.subject}"


@dataclasses.dataclass(frozen=True)
class PricedLayer:
    """A layer with a kernel, as the costs see it."""

    name: str
    inputs: ChannelMap | None  # None: each output channel reads one input channel
    outputs: ChannelMap
    kernel_size: tuple[int, ...]
    positions: int | None
    options: LayerOptions
    gates: tuple[Gate, ...] = ()

    @property
    def taps(self) -> int:
        return math.prod(self.kernel_size)


@dataclasses.dataclass(frozen=True)
class FixedPart:
    """What costs something but is not searched: `bytes` of constants, one operator or none."""

    name: str
    bytes: int
    operators: int
    outputs: ChannelMap  # a per-channel cost scales with the active ones
    bytes_per_channel: float = 0.0
    macs_per_channel: float = 0.0
    gates: tuple[Gate, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that the search decides, prices and leaves alone."""

    groups: tuple[ChannelGroup, ...]
    widths: dict[int, tuple[int, ...]]  # channels of each option, for groups that are searched
    decisions: tuple[Decision, ...]
    layers: tuple[PricedLayer, ...]
    fixed: tuple[FixedPart, ...]
    left_out: dict[str, str]  # name -> why it is not searched

    def decision_index(self, kind: str, subject: str) -> int | None:
        return self._indices.get((kind, subject))

    @functools.cached_property
    def _indices(self) -> dict[tuple[str, str], int]:
        return {(d.kind, d.subject): i for i, d in enumerate(self.decisions)}

    def group_of(self, channels: ChannelMap) -> list[int]:
        return sorted(set(channels.group.tolist()) - {FIXED})


def plan_search(graph: Graph, channels: ChannelGroups, space: SearchSpace) -> Plan:
    """Works out the decisions for a traced model."""
    names = {n.name for n in graph.nodes} | {g.name for g in channels.groups}
    if unmatched := space.unmatched_patterns(sorted(names)):
        raise ValueError(
            f"No layer matches {', '.join(map(repr, unmatched))} of the search space. The layers "
            f"are: {', '.join(sorted(names))}"
        )
    layers, fixed, left_out, seen = [], [], {}, set()
    for node in graph.nodes:
        shared = id(node.layer) in seen
        seen.add(id(node.layer))
        if kernel_kind(node.layer) is not None:
            if shared:
                # Its weights are stored once; only its multiplications happen again.
                earlier = next(i for i, p in enumerate(layers) if p.name == node.name)
                again = _positions(node)
                first = layers[earlier]
                total = None if None in (again, first.positions) else first.positions + again
                layers[earlier] = dataclasses.replace(first, positions=total)
                continue
            layers.append(_priced(node, channels, space, left_out))
            if _activation(node) == "softmax":
                fixed.append(_softmax_part(node, channels))
        else:
            fixed.append(_fixed_part(node, channels, graph, shared, left_out))
    decisions, widths = _width_decisions(graph, channels, space, left_out)
    for layer in layers:
        for kind, options in (
            ("bits", layer.options.bits),
            ("sparsity", layer.options.sparsities),
            ("kernel", layer.options.kernels),
        ):
            if options is not None and len(options) > 1:
                decisions.append(Decision(kind, layer.name, options))
    if space.operators:
        for node in graph.nodes:
            if isinstance(node.layer, Mix):
                decisions.append(
                    Decision("choice", node.name, tuple(range(node.layer.branch_count)))
                )
    if not decisions:
        reasons = "; ".join(f"{k}: {v}" for k, v in left_out.items()) or "no layer has a kernel"
        raise ValueError(
            f"Nothing can be searched in `{graph.name}` with this space. Left out: {reasons}."
        )
    return Plan(
        tuple(channels.groups), widths, tuple(decisions), tuple(layers), tuple(fixed), left_out
    )


def width_counts(channels: int, widths: tuple[float, ...]) -> tuple[int, ...]:
    """Distinct channel counts of the width options.

    >>> width_counts(4, (0.1, 0.2, 0.5, 1.0))
    (1, 2, 4)
    """
    return tuple(sorted({max(1, round(w * channels)) for w in widths}))


def _width_decisions(graph, channels, space, left_out):
    by_name = {g.name: i for i, g in enumerate(channels.groups)}
    options: dict[int, dict[str, tuple[float, ...] | None]] = {}
    for node in graph.nodes:
        if kernel_kind(node.layer) in OPENING:
            for g in set(channels.map_of(node.output).group.tolist()) - {FIXED}:
                wanted = _own_options(node, space).widths
                options.setdefault(g, {})[node.name] = wanted
    decisions, widths = [], {}
    for name, g in by_name.items():
        group = channels.groups[g]
        wanted = set(options.get(g, {}).values())
        if group.frozen:
            left_out[f"width of {name}"] = group.frozen
        elif None in wanted or not wanted:
            left_out[f"width of {name}"] = "the search space leaves its width alone"
        elif len(wanted) > 1:
            raise ValueError(
                "Layers whose channels are tied must have the same width options. Received: "
                f"{options[g]}"
            )
        else:
            counts = width_counts(group.channels, wanted.pop())
            if len(counts) > 1 or counts[0] < group.channels:
                widths[g] = counts
            if len(counts) > 1:
                fractions = tuple(n / group.channels for n in counts)
                decisions.append(Decision("width", name, fractions))
    return decisions, widths


def _own_options(node: Node, space: SearchSpace) -> LayerOptions:
    """The space's options; a UDC layer's own where it was given any."""
    options = space.options_for(node.name)
    own = getattr(node.layer, "options", None)
    if own is None or space.is_frozen(node.name):
        return options
    given = {f.name: getattr(own, f.name) for f in dataclasses.fields(own)}
    return dataclasses.replace(options, **{k: v for k, v in given.items() if v is not None})


def _priced(node: Node, channels: ChannelGroups, space: SearchSpace, left_out) -> PricedLayer:
    options = _own_options(node, space)
    if space.is_frozen(node.name):
        left_out[node.name] = "the search space freezes it"
    inputs = channels.map_of(node.inputs[0])
    if kernel_kind(node.layer) == "DepthwiseConv2D":
        inputs = None
    elif (groups := getattr(node.layer, "groups", 1)) > 1:
        inputs = ChannelMap.fixed(len(inputs) // groups)
    kernels = _usable_kernels(node, options.kernels, left_out)
    return PricedLayer(
        name=node.name,
        inputs=inputs,
        outputs=channels.map_of(node.output),
        kernel_size=tuple(getattr(node.layer, "kernel_size", ())),
        positions=_positions(node),
        options=dataclasses.replace(options, kernels=kernels),
        gates=node.gates,
    )


def _positions(node: Node) -> int | None:
    transposed = kernel_kind(node.layer) == "Conv2DTranspose"
    spatial = (node.inputs[0] if transposed else node.output).shape[1:-1]
    return None if None in spatial else math.prod(spatial)


def _usable_kernels(node: Node, kernels, left_out) -> tuple[int, ...] | None:
    """Kernel sizes that can be cut from the middle of this layer's kernel without a shift."""
    layer = node.layer
    size = tuple(getattr(layer, "kernel_size", ()))
    if kernels is None or size in ((), (1, 1)):
        return None
    if len(set(size)) != 1 or layer.padding != "same" or kernel_kind(layer) == "Conv2DTranspose":
        left_out[f"kernel of {node.name}"] = "only square kernels with 'same' padding can be cut"
        return None
    usable = tuple(k for k in kernels if k <= size[0] and _stays_aligned(node, k))
    if len(usable) < len([k for k in kernels if k <= size[0]]):
        left_out[f"kernel of {node.name}"] = "some sizes would shift its output and are left out"
    if not usable or usable == size[:1]:
        return None
    return usable


def _stays_aligned(node: Node, kernel: int) -> bool:
    layer, spatial = node.layer, node.inputs[0].shape[1:-1]
    full = layer.kernel_size[0]
    if (full - kernel) % 2:
        return False
    for extent, stride, dilation in zip(spatial, layer.strides, layer.dilation_rate, strict=True):
        if extent is None:
            if stride > 1:
                return False
            continue
        before = [
            max((math.ceil(extent / stride) - 1) * stride + (k - 1) * dilation + 1 - extent, 0) // 2
            for k in (full, kernel)
        ]
        if before[0] - before[1] != dilation * (full - kernel) // 2:
            return False
    return True


_FREE = (kl.Dropout, kl.SpatialDropout2D, kl.GaussianNoise, kl.GaussianDropout, kl.Identity, Mix)
_MOVES_ONLY = (kl.Flatten, kl.Reshape, kl.Cropping2D)
_FUSES = (kl.Activation, kl.ReLU, kl.Rescaling, kl.ZeroPadding2D)


def _fixed_part(node: Node, channels, graph: Graph, shared: bool, left_out) -> FixedPart:
    layer = node.layer
    outputs = channels.map_of(keras.tree.flatten(node.outputs)[0])
    part = FixedPart(node.name, 0, 0, outputs, gates=node.gates)
    if isinstance(layer, kl.Softmax) or _activation(node) == "softmax":
        return _softmax_part(node, channels)
    if isinstance(layer, (*_FREE, *_MOVES_ONLY, *_FUSES)):
        return part
    if isinstance(layer, kl.BatchNormalization):
        source = next((n for n in graph.nodes if n.output.id == node.inputs[0].id), None)
        alone = source is not None and len(graph.consumers(source.output)) == 1
        linear = source is not None and _activation(source) == "linear"
        if alone and kernel_kind(source.layer) is not None and linear:
            return part  # folded into the layer before it
        # Left over as a 1x1 depthwise convolution: a weight and a scale record a channel.
        positions = math.prod(d or 1 for d in node.output.shape[1:-1])
        return dataclasses.replace(
            part, operators=1, bytes_per_channel=11.0, macs_per_channel=float(positions)
        )
    if isinstance(layer, kl.GlobalAveragePooling2D):
        # A depthwise convolution with ones: about a bit a tap and a scale record a channel.
        taps = math.prod(d or 1 for d in node.inputs[0].shape[1:-1])
        return dataclasses.replace(part, operators=1, bytes_per_channel=10.0 + taps / 8)
    size = 0 if shared else sum(int(np.prod(w.shape)) for w in getattr(layer, "weights", ()))
    if size:
        why = unsupported(layer) or f"{type(layer).__name__} is not a layer that can be searched"
        left_out[node.name] = (
            f"{why}; its {size} weights count as bytes, its multiplications are not counted"
        )
    return dataclasses.replace(part, bytes=size, operators=1)


def _activation(node: Node) -> str:
    """The name of the layer's own activation."""
    activation = getattr(node.layer, "activation", None)
    return "linear" if activation is None else getattr(activation, "__name__", "")


def _softmax_part(node: Node, channels: ChannelGroups) -> FixedPart:
    """Vela makes some thirty small operators and two tables of a softmax: about 2.9 kB, or ten."""
    return FixedPart(
        f"{node.name} (softmax)", 0, 10, channels.map_of(node.output), gates=node.gates
    )
