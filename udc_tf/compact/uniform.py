"""`compact`: the small network of one setting for all layers, without a search."""

import dataclasses
import fnmatch
from collections.abc import Mapping
from typing import Any

import keras

from udc_tf.compact.build import Compactor, Configuration, LayerChoice, carry_weights
from udc_tf.graph.channel_groups import FIXED, ChannelGroups
from udc_tf.graph.conversion import keep_output_names, layer_weights
from udc_tf.graph.layer_rules import Channels, kernel_kind, rule_of_node
from udc_tf.graph.trace import Graph, Node, trace
from udc_tf.quantize.quantizers import FLOAT_BITS


@dataclasses.dataclass(frozen=True)
class _Setting:
    """What one layer is to become."""

    width: float
    bits: int
    nonzeros: float

    def __post_init__(self) -> None:
        for name in ("width", "nonzeros"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 < value <= 1:
                raise ValueError(f"`{name}` must be a fraction in (0, 1]. Received: {value!r}")
        if self.bits not in (*range(1, 9), FLOAT_BITS):
            raise ValueError(f"`bits` must be 1 to 8, or 32. Received: {self.bits!r}")


def compact(
    model: keras.Model,
    width: float = 1.0,
    bits: int = 8,
    nonzeros: float = 1.0,
    layers: Mapping[str, Mapping[str, Any]] | None = None,
) -> keras.Model:
    """The compact model of one setting for all layers, as `Architecture.build()` gives it.

    It carries the weights of `model`, which is left as it is. Of every group of channels that may
    be cut, the first stay; outputs of the model, and channels that a layer reads as a whole, keep
    their number. Of each choice, the first branch stays. Narrower layers have less dropout, so that
    as many channels get through as before, or all.

    Args:
        model: a functional or Sequential model.
        width: the fraction of channels that stay, in (0, 1].
        bits: of the weights: 1 to 8, or 32 for float weights that are deployed with 8.
        nonzeros: the fraction of weights that are not zero, in (0, 1].
        layers: for layers whose name matches a pattern, settings that replace those above:
            `{"stem*": {"bits": 8, "nonzeros": 1.0}}`. Later patterns win.

    Raises:
        ValueError: a setting is out of its range, a pattern matches no layer with a kernel, a width
            is asked of channels that cannot be cut, or of tied channels different widths.

    Example:

    >>> x = keras.Input((8, 8, 3))
    >>> y = keras.layers.Conv2D(16, 3, activation="relu", name="conv")(x)
    >>> y = keras.layers.Dense(4, name="head")(keras.layers.Flatten()(y))
    >>> tiny = compact(keras.Model(x, y), width=0.5, bits=4, layers={"head": {"bits": 8}})
    >>> tiny.get_layer("conv").filters, tiny.get_layer("conv").bits, tiny.get_layer("head").bits
    (8, 4, 8)
    """
    everywhere = _Setting(width, bits, nonzeros)
    graph = trace(model)
    groups = ChannelGroups(graph)
    kernels = {n.name: n for n in graph.nodes if kernel_kind(n.layer) is not None}
    if not kernels:
        raise ValueError(
            "The model has no convolution and no Dense layer to make "
            f"compact. Received: {model.name} with layers {[x.name for x in model.layers]}"
        )
    overrides = dict(layers or {})
    settings = dict.fromkeys(kernels, everywhere)
    for pattern, replaced in overrides.items():
        matching = _matching(pattern, kernels)
        for name in matching:
            settings[name] = _replaced(settings[name], pattern, replaced)
        if replaced.get("width", 1.0) < 1:
            _check_cuttable(pattern, [kernels[name] for name in matching], groups)
    configuration = Configuration(
        channels=_channels(graph, groups, settings),
        layers={name: LayerChoice(s.bits, s.nonzeros) for name, s in settings.items()},
    )
    compactor = Compactor(graph, groups, configuration)
    tiny = compactor.build()
    keep_output_names(model, tiny)
    carry_weights(
        compactor.layers,
        {n.name: layer_weights(n.layer) for n in graph.nodes if getattr(n.layer, "weights", ())},
    )
    return tiny


def _matching(pattern: str, kernels: Mapping[str, Node]) -> list[str]:
    names = [name for name in kernels if fnmatch.fnmatchcase(name, pattern)]
    if not names:
        raise ValueError(
            f"The layers with a kernel are {', '.join(kernels)}. Received: {pattern!r}"
        )
    return names


def _replaced(setting: _Setting, pattern: str, values: Mapping[str, Any]) -> _Setting:
    known = [f.name for f in dataclasses.fields(_Setting)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(
            f"A layer takes {', '.join(known)}. Received for {pattern!r}: {', '.join(unknown)}"
        )
    return dataclasses.replace(setting, **values)


def _groups_opened_by(node: Node, groups: ChannelGroups) -> set[int]:
    if rule_of_node(node).channels is not Channels.OPENS:
        return set()
    return set(groups.map_of(node.output).group.tolist()) - {FIXED}


def _check_cuttable(pattern: str, nodes: list[Node], groups: ChannelGroups) -> None:
    """Raises if a width is given for layers none of which has channels of its own to cut."""
    reasons = []
    for node in nodes:
        opened = [groups.groups[g] for g in _groups_opened_by(node, groups)]
        if any(group.frozen is None for group in opened):
            return
        reason = opened[0].frozen if opened else "its channels are those of its input"
        reasons.append(f"{node.name}: {reason}")
    raise ValueError(f"These channels cannot be cut: {'; '.join(reasons)}. Received: {pattern!r}")


def _channels(
    graph: Graph, groups: ChannelGroups, settings: Mapping[str, _Setting]
) -> dict[str, int]:
    """Group -> how many channels stay, of those that may be cut."""
    widths: dict[int, dict[str, float]] = {}
    for node in graph.nodes:
        if node.name in settings:
            for g in _groups_opened_by(node, groups):
                widths.setdefault(g, {})[node.name] = settings[node.name].width
    channels = {}
    for g, wanted in widths.items():
        group = groups.groups[g]
        if group.frozen is not None:
            continue
        if len(set(wanted.values())) > 1:
            raise ValueError(
                f"Layers whose channels are tied must have the same width. Received: {wanted}"
            )
        channels[group.name] = max(1, round(next(iter(wanted.values())) * group.channels))
    return channels
