"""Active channels, taps, bits and non-zeros of every layer as linear functions of the decisions.

A soft sample z flattened to [decisions * options] times a constant matrix gives the numbers that a
cost needs for all layers at once; a cost is then a few products, cheap in every search step and
differentiable. What does not depend on channels linearly, such as an NPU's padding, is tabulated
for each width.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from udc_tf.cost.padding import ETHOS_U55, Padding, is_narrow, round_up
from udc_tf.cost.priced_network import FixedPart, Plan, PricedLayer, Step, Tensor
from udc_tf.graph.channel_groups import ChannelMap

Array = Any  # a numpy array, or a TensorFlow tensor of the same shape
_BRICK = 16  # channels that feature maps are laid out in
# A constant, and for each decision that counts what each of its options adds.
_Linear = tuple[float, list[tuple[int, list[float]]]]


def binary_entropy(fraction: float) -> float:
    """H(s) in bits; 0 at both ends, where the formula has none.

    >>> round(binary_entropy(0.2), 3), binary_entropy(1.0)
    (0.722, 0.0)
    """
    if fraction in (0.0, 1.0):
        return 0.0
    return -fraction * math.log2(fraction) - (1 - fraction) * math.log2(1 - fraction)


@dataclasses.dataclass(frozen=True)
class Counts:
    """Per layer [..., layers], and per unsearched part [..., parts].

    Attributes:
        bits: as many as the option has; `by_bits` has the values of other tables of bits.
        nonzeros: the share of the weights that are not zero.
        entropy: H(nonzeros), of each option by itself.
        dense: 1 where nothing is pruned.
        fan_in: weights coded for each output channel, padding included, for the full kernel;
            `kernel_share` is what a smaller kernel takes of it.
        multiplied: the same in the blocks of an Ethos-U55, which Vela's estimates of time follow.
        padded_outputs: output channels, padding included.
        records: scale records, padding included.
        pruned: [..., sparsities, layers], z of each fraction below 1 in `CountMaps.sparsities`;
            None where decisions are hard, so that `nonzeros` says it all.
        tensor_bytes, step_present: of `Plan.tensors` and `Plan.steps`, if they were asked for.
        narrow_outputs: likewise, output channels where they are too few for bricks, else 0.
    """

    inputs: Array
    outputs: Array
    taps: Array
    bits: Array
    nonzeros: Array
    entropy: Array
    dense: Array
    fan_in: Array
    multiplied: Array
    kernel_share: Array
    padded_outputs: Array
    records: Array
    by_bits: Mapping[str, Array]
    present: Array
    part_channels: Array
    part_present: Array
    pruned: Array | None = None
    tensor_bytes: Array | None = None
    step_present: Array | None = None
    narrow_outputs: Array | None = None

    @property
    def weights(self) -> Array:
        return self.taps * self.inputs * self.outputs

    @property
    def coded_weights(self) -> Array:
        """Weights with the zeros that the NPU fills blocks up with."""
        return self.fan_in * self.kernel_share * self.padded_outputs

    @property
    def multiplied_weights(self) -> Array:
        return self.multiplied * self.kernel_share * self.padded_outputs


class CountMaps:
    """The matrices from z to `Counts`, side by side in one: a single product serves all.

    Args:
        plan: the decisions and layers.
        bit_tables: name -> bits -> value, for `Counts.by_bits`.
        unsearched_bits: bits of weights whose bitwidth is not searched.
        padding: how the NPU fills blocks of weights up.
        steps: whether the bytes of tensors and the presence of steps are counted as well.
    """

    def __init__(
        self,
        plan: Plan,
        bit_tables: Mapping[str, Mapping[int, float]] | None = None,
        unsearched_bits: int = 8,
        padding: Padding = ETHOS_U55,
        steps: bool = False,
    ):
        self.plan = plan
        self.options = max(len(d.options) for d in plan.decisions)
        self._unsearched_bits = unsearched_bits
        self._padding = padding
        layers, parts = plan.layers, plan.fixed
        searched = {s for layer in layers for s in layer.options.sparsities or ()}
        self.sparsities = np.asarray(sorted(searched - {1.0}), np.float32)
        self._tables = {"bits": {}, **(bit_tables or {})}
        maps = {
            "inputs": self._matrix(layers, self._inputs),
            "outputs": self._matrix(layers, lambda layer: self._channels(layer.outputs)),
            "taps": self._matrix(layers, self._taps),
            "nonzeros": self._matrix(layers, self._by_sparsity(lambda s: s)),
            "entropy": self._matrix(layers, self._by_sparsity(binary_entropy)),
            "dense": self._matrix(layers, self._by_sparsity(lambda s: float(s == 1.0))),
            "fan_in": self._matrix(layers, self._fan_in(padding.fan_in)),
            "multiplied": self._matrix(layers, self._fan_in(ETHOS_U55.fan_in)),
            "kernel_share": self._matrix(layers, self._kernel_share),
            "padded_outputs": self._matrix(layers, self._padded_outputs),
            "records": self._matrix(layers, self._records),
            "part_channels": self._matrix(parts, lambda p: self._channels(p.outputs)),
        }
        for name, table in self._tables.items():
            maps[f"by_bits/{name}"] = self._matrix(layers, self._by_bits(table))
        maps |= self._gate_maps("present", layers) | self._gate_maps("part_present", parts)
        if steps:
            maps["tensor_bytes"] = self._matrix(plan.tensors, self._tensor_bytes)
            maps["narrow_outputs"] = self._matrix(layers, self._narrow_outputs)
            maps |= self._gate_maps("step_present", plan.steps)
        self._hard = _SideBySide(maps)
        pruned = [self._matrix(layers, self._by_sparsity(_is(s))) for s in self.sparsities]
        if pruned:
            matrices, constants = zip(*pruned, strict=True)
            maps["pruned"] = np.concatenate(matrices, axis=-1), np.concatenate(constants, axis=-1)
        self._soft = _SideBySide(maps)

    def counts(self, z: Array, *, sparse: bool = True) -> Counts:
        """Counts of samples z, [..., decisions * options] (two axes if it is a tensor).

        Args:
            sparse: whether products may be sparse, which XLA has not.
        """
        return _assemble(self._soft.split(self._soft.of(z, sparse)))

    def counts_of_moves(self, chosen: np.ndarray) -> Counts:
        """Counts after each single change, [decisions, options, layers]."""
        matrix = self._hard.matrix.reshape(len(chosen), self.options, -1)
        now = matrix[np.arange(len(chosen)), chosen]
        moved = (now.sum(axis=0) + self._hard.constant) - now[:, None] + matrix
        return _assemble(self._hard.split(moved))

    def counts_of_pairs(self, chosen: np.ndarray, first: int, second: int) -> Counts:
        """Counts after every change of two decisions, [options, options, layers]."""
        matrix = self._hard.matrix.reshape(len(chosen), self.options, -1)
        rest = matrix[np.arange(len(chosen)), chosen].sum(axis=0) + self._hard.constant
        rest = rest - matrix[first, chosen[first]] - matrix[second, chosen[second]]
        return _assemble(self._hard.split(rest + matrix[first][:, None] + matrix[second][None]))

    def one_hot(self, chosen: np.ndarray) -> np.ndarray:
        """[..., decisions] option numbers -> [..., decisions * options]."""
        z = np.eye(self.options, dtype=np.float32)[chosen]
        return z.reshape(*chosen.shape[:-1], -1)

    # Each of these gives (constant, [(decision, values of its options), ...]) for one layer.
    def _channels(self, channels: ChannelMap) -> _Linear:
        constant, terms = 0.0, []
        for g in np.unique(channels.group):
            index = channels.index[channels.group == g]
            counts = self.plan.widths.get(int(g))
            if counts is None:
                constant += len(index)
                continue
            active = [float((index < n).sum()) for n in counts]
            decision = self.plan.decision_index("width", self.plan.groups[g].name)
            if decision is None:
                constant += active[0]
            else:
                terms.append((decision, active))
        return constant, terms

    def _inputs(self, layer: PricedLayer) -> _Linear:
        return (1.0, []) if layer.inputs is None else self._channels(layer.inputs)

    def _per_option(
        self,
        kind: str,
        layer: PricedLayer,
        options: tuple | None,
        values: list[float],
        unsearched: float,
    ) -> _Linear:
        if options is None:
            return unsearched, []
        decision = self.plan.decision_index(kind, layer.name)
        return (values[0], []) if decision is None else (0.0, [(decision, values)])

    def _taps(self, layer: PricedLayer) -> _Linear:
        kernels = layer.options.kernels
        values = [float(k ** len(layer.kernel_size)) for k in kernels or ()]
        return self._per_option("kernel", layer, kernels, values, float(layer.taps))

    def _by_bits(self, table: Mapping[int, float]) -> Callable[[PricedLayer], _Linear]:
        def value(bits: int) -> float:
            return float(table.get(bits, bits))

        def values(layer: PricedLayer) -> _Linear:
            options = layer.options.bits
            searched = [value(b) for b in options or ()]
            unsearched = value(self._unsearched_bits)
            return self._per_option("bits", layer, options, searched, unsearched)

        return values

    def _by_sparsity(self, function: Callable[[float], float]) -> Callable[[PricedLayer], _Linear]:
        def values(layer: PricedLayer) -> _Linear:
            options = layer.options.sparsities
            searched = [function(s) for s in options or ()]
            return self._per_option("sparsity", layer, options, searched, function(1.0))

        return values

    def _fan_in(self, of: Callable[..., int]) -> Callable[[PricedLayer], _Linear]:
        """Exact where at most one width decision is behind the inputs."""

        def values(layer: PricedLayer) -> _Linear:
            if layer.inputs is None:
                return float(of(None, layer.taps)), []
            fixed, terms = self._channels(layer.inputs)
            padded = functools.partial(of, taps=layer.taps, image=_is_image(layer))
            if not terms:
                return float(padded(round(fixed))), []
            if len(terms) == 1:
                ((decision, active),) = terms
                return 0.0, [(decision, [float(padded(round(fixed + n))) for n in active])]
            # Several groups side by side: as much filling as the widest has, in proportion.
            widest = fixed + sum(max(active) for _, active in terms)
            share = padded(round(widest)) / widest
            return fixed * share, [(d, [n * share for n in active]) for d, active in terms]

        return values

    def _kernel_share(self, layer: PricedLayer) -> _Linear:
        kernels = layer.options.kernels
        inputs = None if layer.inputs is None else len(layer.inputs)
        padded = functools.partial(self._padding.fan_in, inputs, image=_is_image(layer))
        sizes, full = [padded(k * k) for k in kernels or ()], padded(layer.taps)
        return self._per_option("kernel", layer, kernels, [n / full for n in sizes], 1.0)

    def _padded_outputs(self, layer: PricedLayer) -> _Linear:
        kind = {"image": _is_image(layer), "depthwise": layer.inputs is None}
        padded = functools.partial(self._padding.padded_outputs, **kind)
        return self._tabulated(layer.outputs, padded, self._padding.filling(**kind))

    def _records(self, layer: PricedLayer) -> _Linear:
        step = self._padding.records
        return self._tabulated(layer.outputs, lambda n: round_up(n, step), (step - 1) / 2)

    def _tensor_bytes(self, tensor: Tensor) -> _Linear:
        def size(channels: int) -> int:
            plain = not tensor.bricks or is_narrow(channels)
            return positions * (channels if plain else round_up(channels, _BRICK))

        positions = tensor.positions or 1
        on_average = positions * (_BRICK - 1) / 2 if tensor.bricks else 0.0
        return self._tabulated(tensor.channels, size, on_average, positions)

    def _narrow_outputs(self, layer: PricedLayer) -> _Linear:
        return self._tabulated(layer.outputs, lambda n: n if is_narrow(n) else 0, 0.0, 0)

    def _tabulated(
        self, channels: ChannelMap, value: Callable[[int], float], more: float, each: float = 1.0
    ) -> _Linear:
        """A function of the number of channels, exact where at most one decision is behind them.

        Else it is `each` for each of them, and `more`.
        """
        fixed, terms = self._channels(channels)
        if not terms:
            return float(value(round(fixed))), []
        if len(terms) > 1:
            return fixed * each + more, [(d, [n * each for n in active]) for d, active in terms]
        ((decision, active),) = terms
        return 0.0, [(decision, [float(value(round(fixed + n))) for n in active])]

    def _gate_maps(
        self, name: str, items: Sequence[PricedLayer | FixedPart | Step]
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        depth = max((len(i.gates) for i in items), default=0)
        return {
            f"{name}/{level}": self._matrix(items, self._gate(level))
            for level in range(max(depth, 1))
        }

    def _gate(self, level: int) -> Callable[[PricedLayer | FixedPart | Step], _Linear]:
        def gate(item: PricedLayer | FixedPart | Step) -> _Linear:
            if level >= len(item.gates):
                return 1.0, []
            choice, branch = item.gates[level].choice, item.gates[level].branch
            decision = self.plan.decision_index("choice", choice)
            if decision is None:
                return float(branch == 0), []
            size = len(self.plan.decisions[decision].options)
            return 0.0, [(decision, [float(k == branch) for k in range(size)])]

        return gate

    def _matrix(
        self, items: Sequence[Any], linear_of: Callable[[Any], _Linear]
    ) -> tuple[np.ndarray, np.ndarray]:
        matrix = np.zeros((len(self.plan.decisions), self.options, len(items)), np.float32)
        constant = np.zeros(len(items), np.float32)
        for column, item in enumerate(items):
            constant[column], terms = linear_of(item)
            for decision, values in terms:
                matrix[decision, : len(values), column] += values
        return matrix.reshape(len(self.plan.decisions) * self.options, len(items)), constant


class _SideBySide:
    """Maps next to each other in one matrix."""

    def __init__(self, maps: Mapping[str, tuple[np.ndarray, np.ndarray]]):
        self._names = tuple(maps)
        self._widths = [len(constant) for _, constant in maps.values()]
        self.matrix = np.concatenate([matrix for matrix, _ in maps.values()], axis=1)
        self.constant = np.concatenate([constant for _, constant in maps.values()])
        columns, rows = np.nonzero(self.matrix.T)
        self._nonzeros = np.stack([columns, rows], axis=1).astype(np.int64)
        self._values = self.matrix[rows, columns]

    def of(self, z: Array, sparse: bool) -> Array:
        """All maps of z. For tensors as a sparse product: each column follows few decisions."""
        if isinstance(z, np.ndarray):
            return z @ self.matrix + self.constant
        if not sparse:
            return tf.matmul(z, self.matrix) + self.constant
        transposed = tf.SparseTensor(self._nonzeros, self._values, self.matrix.shape[::-1])
        product = tf.sparse.sparse_dense_matmul(transposed, z, adjoint_b=True)
        return tf.transpose(product) + self.constant

    def split(self, columns: Array) -> dict[str, Array]:
        if isinstance(columns, np.ndarray):
            parts = np.split(columns, np.cumsum(self._widths)[:-1], axis=-1)
        else:
            parts = tf.split(columns, self._widths, axis=-1)
        return dict(zip(self._names, parts, strict=True))


def _assemble(values: Mapping[str, Array]) -> Counts:
    """Counts from the results of all maps, by name: `group/member` or `name`."""
    groups: dict[str, dict[str, Array]] = {}
    for name, value in values.items():
        group, _, member = name.partition("/")
        groups.setdefault(group, {})[member] = value
    by_bits = groups.pop("by_bits")
    product = {
        name: functools.reduce(operator.mul, groups.pop(name).values())
        for name in ("present", "part_present", "step_present")
        if name in groups
    }
    plain = {name: members[""] for name, members in groups.items()}
    if "pruned" in plain:
        columns, layers = plain["pruned"], plain["inputs"].shape[-1]
        reshape = np.reshape if isinstance(columns, np.ndarray) else tf.reshape
        shape = (*plain["inputs"].shape[:-1], columns.shape[-1] // layers, layers)
        plain["pruned"] = reshape(columns, shape)
    return Counts(**plain, **product, bits=by_bits["bits"], by_bits=by_bits)


def _is(value: float) -> Callable[[float], float]:
    return lambda s: float(np.float32(s) == value)


def _is_image(layer: PricedLayer) -> bool:
    """Whether it stays a convolution: Vela makes a dense layer of one with a single position."""
    return bool(layer.kernel_size) and layer.positions != 1


def column(items: Sequence[Any], value: Callable[[Any], float]) -> np.ndarray:
    """`value` of each item, as a vector."""
    return np.asarray([value(i) for i in items], np.float32)


def total(values: Array, axis: int = -1) -> Array:
    """The sum along an axis, of an array or a tensor."""
    return values.sum(axis) if isinstance(values, np.ndarray) else tf.reduce_sum(values, axis)
