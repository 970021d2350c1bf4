"""Active channels, taps, bits and non-zeros of every layer as linear functions of the decisions.

A soft sample z flattened to [decisions * options] times a constant matrix gives the numbers that a
cost needs for all layers at once; a cost is then a few products, cheap in every search step and
differentiable.
"""

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from udc_tf.channels import ChannelMap
from udc_tf.plan import Plan

Array = Any  # a numpy array, or a TensorFlow tensor of the same shape


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
    """Per layer [..., layers], and per unsearched part [..., parts]."""

    inputs: Array
    outputs: Array
    taps: Array
    bits: Array
    density: Array
    entropy: Array
    present: Array
    part_channels: Array
    part_present: Array

    @property
    def weights(self) -> Array:
        return self.taps * self.inputs * self.outputs


class CountMaps:
    """The matrices from z to `Counts`.

    Args:
        plan: the decisions and layers.
        bit_cost: what a weight of so many bits counts as; the number of bits itself by default.
        unsearched_bits: bits of weights whose bitwidth is not searched.
    """

    def __init__(
        self,
        plan: Plan,
        bit_cost: Mapping[int, float] | None = None,
        unsearched_bits: int = 8,
    ):
        self.plan = plan
        self.options = max(len(d.options) for d in plan.decisions)
        self._bit_cost = bit_cost or {}
        self._unsearched_bits = unsearched_bits
        layers, parts = plan.layers, plan.fixed
        self._maps = {
            "inputs": self._matrix(layers, self._inputs),
            "outputs": self._matrix(layers, lambda layer: self._channels(layer.outputs)),
            "taps": self._matrix(layers, self._taps),
            "bits": self._matrix(layers, self._bits),
            "density": self._matrix(layers, self._density),
            "entropy": self._matrix(layers, self._entropy),
            "part_channels": self._matrix(parts, lambda p: self._channels(p.outputs)),
        }
        self._gates = self._gate_maps(layers)
        self._part_gates = self._gate_maps(parts)

    def counts(self, z: Array, multiply=np.matmul) -> Counts:
        """Counts of samples z, [..., decisions * options]."""

        def linear(pair):
            return multiply(z, pair[0]) + pair[1]

        return self._assemble(linear)

    def _assemble(self, evaluate) -> Counts:
        """Counts from a way to evaluate one (matrix, constant) pair."""

        def product(pairs):
            return functools.reduce(operator.mul, map(evaluate, pairs))

        return Counts(
            **{name: evaluate(pair) for name, pair in self._maps.items()},
            present=product(self._gates),
            part_present=product(self._part_gates),
        )

    def counts_of_moves(self, chosen: np.ndarray) -> Counts:
        """Counts after each single change, [decisions, options, layers]."""
        decisions = np.arange(len(chosen))

        def moved(pair):
            matrix = pair[0].reshape(len(chosen), self.options, -1)
            now = matrix[decisions, chosen]
            return (now.sum(axis=0) + pair[1]) - now[:, None] + matrix

        return self._assemble(moved)

    def counts_of_pairs(self, chosen: np.ndarray, first: int, second: int) -> Counts:
        """Counts after every change of two decisions, [options, options, layers]."""
        decisions = np.arange(len(chosen))

        def moved(pair):
            matrix = pair[0].reshape(len(chosen), self.options, -1)
            rest = matrix[decisions, chosen].sum(axis=0) + pair[1]
            rest = rest - matrix[first, chosen[first]] - matrix[second, chosen[second]]
            return rest + matrix[first][:, None] + matrix[second][None]

        return self._assemble(moved)

    def one_hot(self, chosen: np.ndarray) -> np.ndarray:
        """[..., decisions] option numbers -> [..., decisions * options]."""
        z = np.eye(self.options, dtype=np.float32)[chosen]
        return z.reshape(*chosen.shape[:-1], -1)

    # Each of these gives (constant, [(decision, values of its options), ...]) for one layer.
    def _channels(self, channels: ChannelMap):
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

    def _inputs(self, layer):
        return (1.0, []) if layer.inputs is None else self._channels(layer.inputs)

    def _per_option(self, kind, layer, options, values, unsearched):
        if options is None:
            return unsearched, []
        decision = self.plan.decision_index(kind, layer.name)
        return (values[0], []) if decision is None else (0.0, [(decision, values)])

    def _taps(self, layer):
        kernels = layer.options.kernels
        values = [float(k * k) for k in kernels or ()]
        return self._per_option("kernel", layer, kernels, values, float(layer.taps))

    def _bits(self, layer):
        def cost(b):
            return float(self._bit_cost.get(b, b))

        bits = layer.options.bits
        values = [cost(b) for b in bits or ()]
        return self._per_option("bits", layer, bits, values, cost(self._unsearched_bits))

    def _density(self, layer):
        fractions = layer.options.sparsities
        return self._per_option("sparsity", layer, fractions, list(fractions or ()), 1.0)

    def _entropy(self, layer):
        fractions = layer.options.sparsities
        values = [binary_entropy(s) for s in fractions or ()]
        return self._per_option("sparsity", layer, fractions, values, 0.0)

    def _gate_maps(self, items):
        depth = max((len(i.gates) for i in items), default=0)
        return [self._matrix(items, self._gate(level)) for level in range(max(depth, 1))]

    def _gate(self, level):
        def gate(item):
            if level >= len(item.gates):
                return 1.0, []
            choice, branch = item.gates[level].choice, item.gates[level].branch
            decision = self.plan.decision_index("choice", choice)
            if decision is None:
                return float(branch == 0), []
            size = len(self.plan.decisions[decision].options)
            return 0.0, [(decision, [float(k == branch) for k in range(size)])]

        return gate

    def _matrix(self, items, linear_of):
        matrix = np.zeros((len(self.plan.decisions), self.options, len(items)), np.float32)
        constant = np.zeros(len(items), np.float32)
        for column, item in enumerate(items):
            constant[column], terms = linear_of(item)
            for decision, values in terms:
                matrix[decision, : len(values), column] += values
        return matrix.reshape(len(self.plan.decisions) * self.options, len(items)), constant
