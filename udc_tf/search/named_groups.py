"""Plans for models whose graph cannot be read: subclassed, with named channel groups."""

from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np

from udc_tf.cost.priced_network import Decision, FixedPart, Plan, PricedLayer
from udc_tf.graph.channel_groups import ChannelGroup, ChannelMap
from udc_tf.graph.layer_rules import Price
from udc_tf.layers.searchable_kernels import SearchableKernel
from udc_tf.search.plan import width_counts


def is_subclassed(model: keras.Model) -> bool:
    """Whether the model's graph of layers is unknown."""
    try:
        return model.input is None
    except (AttributeError, ValueError):
        return not isinstance(model, keras.Sequential)


def plan_named_groups(model: keras.Model) -> tuple[dict[str, SearchableKernel], Plan]:
    """The UDC layers of a built model by name, and the plan of its decisions.

    The options are those given to the layers: their variables exist before the search does.
    """
    layers: dict[str, SearchableKernel] = {}
    parts: list[FixedPart] = []
    for layer in _leaves(model):
        if isinstance(layer, SearchableKernel):
            if not layer.built or layer.positions is None:
                raise ValueError(
                    f"Call the model once before `make_searchable`: `{layer.name}` is not built."
                )
            if layer.name in layers:
                raise ValueError(f"Two UDC layers must not share a name. Received: {layer.name!r}")
            layers[layer.name] = layer
        elif layer.weights and not isinstance(layer, keras.layers.BatchNormalization):
            size = sum(int(np.prod(w.shape)) for w in layer.weights)
            parts.append(
                FixedPart(
                    layer.name, ChannelMap.fixed(0), Price(type(layer).__name__), constants=size
                )
            )
    if not layers:
        raise ValueError(
            "The graph of a subclassed model cannot be read: write it with UDC layers that name "
            f"their `width_group` and `input_group`. Received: {type(model).__name__} without any"
        )
    groups, options = _groups(layers)
    index = {g.name: i for i, g in enumerate(groups)}
    priced = []
    for name, layer in layers.items():
        if layer.options.kernels is not None:
            raise ValueError(
                f"Kernel sizes are searched in functional models only. Received: kernels="
                f"{layer.options.kernels} for `{name}`"
            )
        priced.append(
            PricedLayer(
                name=name,
                inputs=_inputs(layer, index, groups),
                outputs=_outputs(layer, index),
                kernel_size=tuple(getattr(layer, "kernel_size", ())),
                positions=layer.positions,
                options=layer.options,
            )
        )
    decisions, widths = [], {}
    for g, wanted in options.items():
        if wanted is not None:
            widths[g] = width_counts(groups[g].channels, wanted)
            if len(widths[g]) > 1:
                fractions = tuple(n / groups[g].channels for n in widths[g])
                decisions.append(Decision("width", groups[g].name, fractions))
    for each in priced:
        for kind, values in (("bits", each.options.bits), ("sparsity", each.options.sparsities)):
            if values is not None and len(values) > 1:
                decisions.append(Decision(kind, each.name, values))
    if not decisions:
        raise ValueError(f"Nothing can be searched in `{model.name}` with this space.")
    left_out = {p.name: "it is not a UDC layer; its weights count as bytes" for p in parts}
    return layers, Plan(
        tuple(groups), widths, tuple(decisions), tuple(priced), tuple(parts), left_out
    )


def _leaves(model: keras.Model) -> Iterator[keras.layers.Layer]:
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _leaves(layer)
        else:
            yield layer


def _groups(
    layers: Mapping[str, SearchableKernel],
) -> tuple[list[ChannelGroup], dict[int, tuple[float, ...] | None]]:
    groups: list[ChannelGroup] = []
    widths: dict[int, tuple[float, ...] | None] = {}
    by_name: dict[str, int] = {}
    for name, layer in layers.items():
        if layer.width_group is None or layer.in_axis is None:
            continue
        channels = int(layer.theta.shape[layer.out_axis])
        wanted = layer.options.widths
        if layer.width_group not in by_name:
            by_name[layer.width_group] = len(groups)
            groups.append(ChannelGroup(layer.width_group, channels))
            widths[len(groups) - 1] = wanted
        g = by_name[layer.width_group]
        if groups[g].channels != channels or widths[g] != wanted:
            raise ValueError(
                f"Layers of the width group {layer.width_group!r} must have the same number of "
                f"channels and the same options. Received: {channels} channels and {wanted} for "
                f"`{name}`, {groups[g].channels} and {widths[g]} before"
            )
    return groups, widths


def _inputs(
    layer: SearchableKernel, index: Mapping[str, int], groups: Sequence[ChannelGroup]
) -> ChannelMap | None:
    if layer.in_axis is None:
        return None
    length = int(layer.theta.shape[layer.in_axis])
    if layer.input_group is None:
        return ChannelMap.fixed(length)
    names = [layer.input_group] if isinstance(layer.input_group, str) else layer.input_group
    for name in names:
        if name not in index:
            raise ValueError(
                f"`{layer.name}` reads the group {name!r}, which no layer opens. The groups are: "
                f"{', '.join(index) or 'none'}"
            )
    numbers = [np.full(groups[index[n]].channels, index[n]) for n in names]
    group = np.concatenate(numbers)
    places = np.concatenate([np.arange(len(n)) for n in numbers])
    if length % len(group):
        raise ValueError(
            f"`{layer.name}` reads {length} channels, which is no multiple of the {len(group)} of "
            f"its groups {names}"
        )
    times = length // len(group)  # more than once after a flatten
    return ChannelMap(np.tile(group, times), np.tile(places, times))


def _outputs(layer: SearchableKernel, index: Mapping[str, int]) -> ChannelMap:
    if layer.in_axis is None:
        channels = int(layer.theta.shape[2]) * int(layer.theta.shape[3])
        source = layer.input_group or layer.width_group
        if source is None:
            return ChannelMap.fixed(channels)
        if not isinstance(source, str):
            raise ValueError(
                f"A depthwise layer reads one group. Received: {source} for `{layer.name}`"
            )
        times = int(layer.theta.shape[3])
        places = np.repeat(np.arange(channels // times), times)
        return ChannelMap(np.full(channels, index[source]), places)
    channels = int(layer.theta.shape[layer.out_axis])
    if layer.width_group is None:
        return ChannelMap.fixed(channels)
    return ChannelMap(np.full(channels, index[layer.width_group]), np.arange(channels))
