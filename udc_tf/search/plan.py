"""From a network and a search space to the list of decisions and of priced layers."""

import dataclasses
import math

import keras
import numpy as np

from udc_tf.cost.priced_network import Decision, FixedPart, Plan, PricedLayer
from udc_tf.cost.schedule import schedule
from udc_tf.graph.channel_groups import FIXED, ChannelGroups, ChannelMap
from udc_tf.graph.layer_rules import (
    Channels,
    Price,
    absorbed,
    activation_of_node,
    kernel_kind,
    rule_of_node,
)
from udc_tf.graph.numeric_rules import activation_price
from udc_tf.graph.trace import Graph, Node
from udc_tf.graph.uses import Uses
from udc_tf.layers.choice import Mix
from udc_tf.layers.layer_options import LayerOptions
from udc_tf.search.space import SearchSpace


def plan_search(
    graph: Graph, channels: ChannelGroups, space: SearchSpace, multiple: int = 1
) -> Plan:
    """Works out the decisions for a traced model; channels are in multiples of `multiple`."""
    names = {n.name for n in graph.nodes} | {g.name for g in channels.groups}
    if unmatched := space.unmatched_patterns(sorted(names)):
        raise ValueError(
            f"No layer matches {', '.join(map(repr, unmatched))} of the search space. The layers "
            f"are: {', '.join(sorted(names))}"
        )
    layers: list[PricedLayer] = []
    fixed: list[FixedPart] = []
    left_out: dict[str, str] = {}
    seen: set[int] = set()
    uses = Uses.of(graph)
    folded = {id(n) for node in graph.nodes for n in absorbed(node, uses)}
    for node in graph.nodes:
        shared = id(node.layer) in seen
        seen.add(id(node.layer))
        if kernel_kind(node.layer) is not None:
            if shared:
                # Its weights are stored once; it is commanded, and multiplies, again.
                fixed.append(_again(node, channels))
                earlier = next(i for i, p in enumerate(layers) if p.name == node.name)
                again, first = _positions(node), layers[earlier]
                total = None
                if again is not None and first.positions is not None:
                    total = first.positions + again
                layers[earlier] = dataclasses.replace(first, positions=total)
                continue
            layers.append(_priced(node, channels, space, left_out))
            if getattr(node.layer, "depth_multiplier", 1) > 1 and node.inputs[0].shape[-1] != 1:
                fixed.append(_interleaved(node, channels))
            if 1 < getattr(node.layer, "groups", 1) < (node.inputs[0].shape[-1] or 0):
                fixed.append(_in_groups(node, channels))
            activation = activation_of_node(node)
            if not activation.fuses:
                outputs, price = channels.map_of(node.output), activation_price(activation, node)
                behind = f"{node.name} ({activation.name})"
                if price.operator is not None:
                    fixed.append(FixedPart(behind, outputs, price, gates=node.gates))
        else:
            part = _fixed_part(node, channels, shared, left_out)
            free = id(node) in folded
            fixed.append(dataclasses.replace(part, price=Price()) if free else part)
    decisions, widths = _width_decisions(graph, channels, space, left_out, multiple)
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
    return Plan(
        tuple(channels.groups),
        widths,
        tuple(decisions),
        tuple(layers),
        tuple(fixed),
        left_out,
        *schedule(graph, channels, layers, fixed),
    )


def width_counts(channels: int, widths: tuple[float, ...], multiple: int = 1) -> tuple[int, ...]:
    """Distinct channel counts of the width options, in multiples where there are enough channels.

    >>> width_counts(4, (0.1, 0.2, 0.5, 1.0)), width_counts(64, (0.3, 0.5, 0.7, 1.0), 16)
    ((1, 2, 4), (16, 32, 48, 64))
    """
    while multiple > 1 and 2 * multiple > channels:
        multiple //= 2
    snapped = (multiple * round(w * channels / multiple) for w in widths)
    return tuple(sorted({min(max(n, multiple, 1), channels) for n in snapped}))


def _width_decisions(
    graph: Graph,
    channels: ChannelGroups,
    space: SearchSpace,
    left_out: dict[str, str],
    multiple: int,
) -> tuple[list[Decision], dict[int, tuple[int, ...]]]:
    by_name = {g.name: i for i, g in enumerate(channels.groups)}
    options: dict[int, dict[str, tuple[float, ...] | None]] = {}
    for node in graph.nodes:
        if rule_of_node(node).channels is Channels.OPENS:
            for g in set(channels.map_of(node.output).group.tolist()) - {FIXED}:
                options.setdefault(g, {})[node.name] = _own_options(node, space).widths
    decisions: list[Decision] = []
    widths: dict[int, tuple[int, ...]] = {}
    for name, g in by_name.items():
        group = channels.groups[g]
        wanted = set(options.get(g, {}).values())
        common = next(iter(wanted), None)
        if group.frozen:
            left_out[f"width of {name}"] = group.frozen
        elif None in wanted or common is None:
            left_out[f"width of {name}"] = "the search space leaves its width alone"
        elif len(wanted) > 1:
            raise ValueError(
                "Layers whose channels are tied must have the same width options. Received: "
                f"{options[g]}"
            )
        else:
            counts = width_counts(group.channels, common, multiple)
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


def _priced(
    node: Node, channels: ChannelGroups, space: SearchSpace, left_out: dict[str, str]
) -> PricedLayer:
    options = _own_options(node, space)
    if space.is_frozen(node.name):
        left_out[node.name] = "the search space freezes it"
    inputs: ChannelMap | None = channels.map_of(node.inputs[0])
    is_first = inputs is not None and bool((inputs.group == FIXED).all())
    if rule_of_node(node).channels is Channels.REPEATS:
        inputs = None
    elif inputs is not None and (groups := getattr(node.layer, "groups", 1)) > 1:
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
        is_first=is_first,
    )


def _positions(node: Node) -> int | None:
    transposed = rule_of_node(node).operator == "TRANSPOSE_CONV"
    spatial = (node.inputs[0] if transposed else node.output).shape[1:-1]
    known = [size for size in spatial if size is not None]
    return math.prod(known) if len(known) == len(spatial) else None


def _usable_kernels(
    node: Node, kernels: tuple[int, ...] | None, left_out: dict[str, str]
) -> tuple[int, ...] | None:
    """Kernel sizes that can be cut from the middle of this layer's kernel without a shift."""
    layer = node.layer
    size = tuple(getattr(layer, "kernel_size", ()))
    if kernels is None or set(size) <= {1}:
        return None
    transposed = rule_of_node(node).operator == "TRANSPOSE_CONV"
    if len(set(size)) != 1 or layer.padding != "same" or transposed:
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


def _again(node: Node, channels: ChannelGroups) -> FixedPart:
    """What a further call of a kernel costs besides its multiplications."""
    price = Price(rule_of_node(node).operator, on_vector=_is_step(node))
    return FixedPart(node.name, channels.map_of(node.output), price, gates=node.gates)


# Bytes of commands, as measured: of each convolution, of the pools of each position, and of those
# of each row of each channel that is read.
_OF_GROUP, _OF_MULTIPLE, _OF_POSITION, _OF_ROW = 140.0, 300.0, 41.0, 20.5


def _interleaved(node: Node, channels: ChannelGroups) -> FixedPart:
    """What a depthwise convolution with a multiplier takes besides its kernel.

    Vela makes a convolution for each multiple, then lays their channels between each other's with
    pools, some for each position and some for each row of each channel.
    """
    *_, rows, columns = 1, *(size or 1 for size in node.output.shape[1:-1])
    times = node.layer.depth_multiplier
    price = Price("DEPTHWISE_INTERLEAVED", commands=_OF_ROW * rows / times)
    more = _OF_MULTIPLE * times + _OF_POSITION * rows * columns
    name, outputs = f"{node.name} (channels between each other)", channels.map_of(node.output)
    return FixedPart(name, outputs, price, commands=more, gates=node.gates)


def _in_groups(node: Node, channels: ChannelGroups) -> FixedPart:
    """What a convolution in groups takes besides: each of them is an operation of its own."""
    name, more = f"{node.name} (its groups)", _OF_GROUP * (node.layer.groups - 1)
    return FixedPart(name, channels.map_of(node.output), Price(), commands=more, gates=node.gates)


def _is_step(node: Node) -> bool:
    return node.whole is not None and len(node.output.shape) == 2


def _fixed_part(
    node: Node, channels: ChannelGroups, shared: bool, left_out: dict[str, str]
) -> FixedPart:
    rule = rule_of_node(node)
    outputs = channels.map_of(keras.tree.flatten(node.outputs)[0])
    price = dataclasses.replace(rule.price(node), on_vector=_is_step(node))
    part = FixedPart(node.name, outputs, price, gates=node.gates)
    why = rule.refused or rule.unsearched
    if why is None or shared:
        return part
    size = sum(int(np.prod(w.shape)) for w in getattr(node.layer, "weights", ()))
    if size:
        left_out[node.name] = (
            f"{why}; its {size} weights count as bytes, its multiplications are not counted"
        )
    return dataclasses.replace(part, constants=size)
