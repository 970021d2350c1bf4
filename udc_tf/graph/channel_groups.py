"""Which channels of a network must be cut together.

A convolution or dense layer opens a group of channels; layers that work channel by channel pass it
on, additions tie two groups into one, concatenation lines groups up, flattening repeats them. What
is not understood freezes the groups it touches, with the reason, so that nothing is cut wrongly.
"""

import dataclasses
import functools
from collections.abc import Sequence

import keras
import numpy as np

from udc_tf.graph.layer_rules import Channels, activation_of_node, rule_of_node
from udc_tf.graph.trace import Graph, Node, TensorRef

FIXED = -1  # the group of channels that always stay


@dataclasses.dataclass(frozen=True)
class ChannelMap:
    """For each position along a tensor's last axis: its group, and its place in the group."""

    group: np.ndarray
    index: np.ndarray

    @classmethod
    def fixed(cls, channels: int) -> "ChannelMap":
        return cls(np.full(channels, FIXED), np.arange(channels))

    def __len__(self) -> int:
        return len(self.group)


@dataclasses.dataclass
class ChannelGroup:
    """Channels that share one width decision."""

    name: str
    channels: int
    frozen: str | None = None  # the reason


class ChannelGroups:
    """The groups of a graph and the channel map of each of its tensors.

    Example:

    >>> from udc_tf.graph.trace import trace
    >>> x = keras.Input((8, 8, 3))
    >>> y = keras.layers.Conv2D(4, 3, name="a")(x)
    >>> y = keras.layers.Dense(2, name="head")(keras.layers.Flatten()(y))
    >>> {g.name: g.frozen for g in ChannelGroups(trace(keras.Model(x, y))).groups}
    {'a': None, 'head': 'its channels are an output of the model'}
    """

    def __init__(self, graph: Graph):
        self._parent: list[int] = []
        self._all: list[ChannelGroup] = []
        self._maps: dict[int, ChannelMap] = {}
        self._opened: dict[int, ChannelMap] = {}
        self._read: dict[int, list[ChannelMap]] = {}  # by layers with weights, when first called
        for ref in keras.tree.flatten(graph.inputs):
            self._maps[ref.id] = ChannelMap.fixed(_channels(ref))
        for node in graph.nodes:
            self._visit(node)
        for ref in keras.tree.flatten(graph.outputs):
            self._freeze(self._maps[ref.id], "its channels are an output of the model")

    @functools.cached_property
    def groups(self) -> list[ChannelGroup]:
        return [g for i, g in enumerate(self._all) if self._find(i) == i]

    def map_of(self, ref: TensorRef) -> ChannelMap:
        """The map with merged groups resolved; group numbers index `groups`."""
        raw = self._maps[ref.id]
        return ChannelMap(self._numbers[raw.group], raw.index)

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        """Number as opened -> number in `groups`; FIXED, which is -1, finds itself at the end."""
        roots = [self._find(i) for i in range(len(self._all))]
        numbers = {root: n for n, root in enumerate(sorted(set(roots)))}
        return np.asarray([*(numbers[root] for root in roots), FIXED])

    def _find(self, i: int) -> int:
        while self._parent[i] != i:
            i = self._parent[i]
        return i

    def _freeze(self, channels: ChannelMap, reason: str) -> None:
        for g in set(channels.group.tolist()) - {FIXED}:
            group = self._all[self._find(g)]
            group.frozen = group.frozen or reason

    def _open(self, node: Node, channels: int) -> ChannelMap:
        # A layer that is called twice has one kernel, so one group.
        if id(node.layer) not in self._opened:
            number = len(self._all)
            self._all.append(ChannelGroup(node.name, channels))
            self._parent.append(number)
            self._opened[id(node.layer)] = ChannelMap(
                np.full(channels, number), np.arange(channels)
            )
        return self._opened[id(node.layer)]

    def _tie(self, a: ChannelMap, b: ChannelMap, name: str) -> ChannelMap:
        reason = f"`{name}` joins it with channels that cannot be cut alike"
        for g, h in {*zip(a.group.tolist(), b.group.tolist(), strict=True)}:
            here = (a.group == g) & (b.group == h)
            if g == FIXED and h == FIXED:
                continue
            if g == FIXED or h == FIXED:
                self._freeze(a, reason)
                self._freeze(b, reason)
                continue
            g, h = self._find(g), self._find(h)
            if g == h and np.array_equal(a.index[here], b.index[here]):
                continue
            one, other = self._all[g], self._all[h]
            if one.channels != other.channels or not np.array_equal(a.index[here], b.index[here]):
                self._freeze(a, reason)
                self._freeze(b, reason)
                continue
            self._parent[max(g, h)] = min(g, h)
            self._all[min(g, h)].frozen = one.frozen or other.frozen
        return a

    def _tie_calls(self, node: Node) -> None:
        """A layer that is called twice has one kernel, so it reads channels that are cut alike."""
        if not getattr(node.layer, "weights", ()):
            return
        maps = [self._maps[ref.id] for ref in node.inputs]
        for first, later in zip(self._read.setdefault(id(node.layer), maps), maps, strict=True):
            self._tie(first, later, node.name)

    def _visit(self, node: Node) -> None:
        self._tie_calls(node)
        outputs = keras.tree.flatten(node.outputs)
        channels = self._output_map(node) if len(outputs) == 1 else None
        if channels is None or len(channels) != _channels(outputs[0]):
            for ref in node.inputs:
                kind = type(node.layer).__name__
                self._freeze(self._maps[ref.id], f"`{node.name}` ({kind}) reads it as a whole")
            for ref in outputs:
                self._maps[ref.id] = ChannelMap.fixed(_channels(ref))
            return
        self._maps[outputs[0].id] = channels

    def _output_map(self, node: Node) -> ChannelMap | None:
        """The output's map, or None where it is unknown how channels go through the layer."""
        maps = [self._maps[r.id] for r in node.inputs]
        match rule_of_node(node).channels:
            case Channels.OPENS:
                opened = self._open(node, _channels(node.output))
                if activation_of_node(node).mixes_channels:
                    self._freeze(opened, f"the activation of `{node.name}` reads it as a whole")
                return opened
            case Channels.REPEATS:
                times = node.layer.depth_multiplier
                return ChannelMap(np.repeat(maps[0].group, times), np.repeat(maps[0].index, times))
            case Channels.TIES:
                return self._elementwise(maps, node.name)
            case Channels.APPENDS:
                return self._concatenate(node, maps)
            case Channels.RESHAPES:
                return self._flatten(node.inputs[0], node.output, maps[0])
            case Channels.PASSES:
                return maps[0] if len(maps) == 1 else None
        return None

    def _elementwise(self, maps: Sequence[ChannelMap], name: str) -> ChannelMap | None:
        widest = max(maps, key=len)
        if not widest:
            return None
        for other in maps:
            if len(other) == len(widest):
                self._tie(widest, other, name)
            elif len(other) == 1:
                self._freeze(other, f"`{name}` spreads it over other channels")
            else:
                return None
        return widest

    def _concatenate(self, node: Node, maps: Sequence[ChannelMap]) -> ChannelMap | None:
        if node.layer.axis in (-1, len(node.output.shape) - 1):
            return ChannelMap(
                np.concatenate([m.group for m in maps]), np.concatenate([m.index for m in maps])
            )
        return self._elementwise(maps, node.name)

    def _flatten(
        self, source: TensorRef, target: TensorRef, channels: ChannelMap
    ) -> ChannelMap | None:
        if len(target.shape) < 2 or target.shape[-1] is None or not len(channels):
            return None
        inner, outer = _channels(source), _channels(target)
        if inner == outer:
            return channels
        # Everything after the batch goes into one axis: the channels come round once per position.
        if len(target.shape) == 2 and outer % inner == 0:
            times = outer // inner
            return ChannelMap(np.tile(channels.group, times), np.tile(channels.index, times))
        return None


def _channels(ref: TensorRef) -> int:
    return ref.shape[-1] or 0 if len(ref.shape) > 1 else 0
