"""Bytes of flash: the size model of what Vela writes.

Weights cost about s*b + H(s) bits each (only non-zeros carry b bits, the mask its entropy),
counted over active input and output channels and what the NPU pads them with; scales, commands and
container come on top.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from udc_tf.cost.accelerators import family, require_accelerator
from udc_tf.cost.counts import CountMaps, Counts, column, total
from udc_tf.cost.padding import Padding
from udc_tf.cost.priced_network import Plan
from udc_tf.graph.layer_rules import Price
from udc_tf.quantize.quantizers import FLOAT_BITS

# What Vela's coder takes for bell-shaped weights, in bits: a non-zero, besides the mask.
BIT_COST = {1: 1.09, 2: 1.96, 3: 2.91, 4: 3.79, 5: 4.62, 6: 5.66, 7: 6.94, 8: 7.37}
# Weights of a layer that is not pruned: rounding makes some of them zero.
DENSE_BITS = {1: 0.95, 2: 0.56, 3: 1.97, 4: 3.12, 5: 4.18, 6: 5.47, 7: 6.73, 8: 6.98}
DENSE_SHARE = {1: 1.0, 2: 0.545, 3: 0.742, 4: 0.863, 5: 0.921, 6: 0.958, 7: 0.978, 8: 0.987}
# Any weight, zero or not, where zeros are too scattered for runs: 75% to 90% are not zero.
DIRECT_BITS = {1: 1.60, 2: 2.04, 3: 2.88, 4: 3.75, 5: 4.53, 6: 5.72, 7: 6.84, 8: 7.28}


@dataclasses.dataclass(frozen=True)
class SizeModel:
    """Coefficients of the compiled size in bytes.

    fixed + sum over operators of
        per_operator + per_channel * records + (payload + mask_cost * coded * M(p)) / 8

    - records: of scales, one per output channel and what the NPU adds to them;
    - coded: weights with the zeros that the NPU pads blocks with (`udc_tf.cost.padding`);
    - p: the share of them that is not zero, M(p) about H(p) bits each (`mask_bits`);
    - payload: bit_cost[b] for each non-zero of a pruned layer; dense_bits[b] for each weight of one
      that is not pruned, of which the share dense_share[b] is not rounded to zero.

    Where most zeros stand alone (`zeros_stand_alone`) the coder has no runs of them: instead of
    payload and mask, each coded weight then takes direct_bits[b].

    The defaults are measured on Vela's coder; `udc_tf.export.fit_size_model` fits them to a
    network. Tables may be partial: bits that are not named have the default.
    """

    fixed: float = 1500.0
    per_operator: float = 300.0
    per_channel: float = 10.0
    mask_cost: float = 1.0
    bit_cost: Mapping[int, float] = dataclasses.field(default_factory=dict)
    dense_bits: Mapping[int, float] = dataclasses.field(default_factory=dict)
    dense_share: Mapping[int, float] = dataclasses.field(default_factory=dict)
    direct_bits: Mapping[int, float] = dataclasses.field(default_factory=dict)

    @property
    def tables(self) -> dict[str, dict[int, float]]:
        """The tables over bits, complete."""
        return {name: {**table, **getattr(self, name)} for name, table in _TABLES.items()}

    def to_dict(self) -> dict[str, Any]:
        tables = {n: {str(b): v for b, v in getattr(self, n).items()} for n in _TABLES}
        return {**dataclasses.asdict(self), **tables}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SizeModel":
        tables = {n: {int(b): float(v) for b, v in values.get(n, {}).items()} for n in _TABLES}
        return cls(**{**values, **tables})


_TABLES = {
    "bit_cost": BIT_COST,
    "dense_bits": DENSE_BITS,
    "dense_share": DENSE_SHARE,
    "direct_bits": DIRECT_BITS,
}


def mask_bits(share: Any) -> Any:
    """Bits for each coded weight to say where the non-zeros are: the entropy H(share).

    Runs of zeros have a shortest code, which takes over where non-zeros are rarer than 1 in 20.

    >>> [round(float(mask_bits(np.float64(p))), 2) for p in (0.01, 0.2, 0.5, 1.0)]
    [0.16, 0.72, 1.0, 0.0]
    """
    numeric, clip = (tf.math, tf.clip_by_value) if tf.is_tensor(share) else (np, np.clip)
    share = clip(share, 1e-6, 1 - 1e-6)
    rest = 1.0 - share
    nats = share * numeric.log(share) + rest * numeric.log(rest)
    return 0.11 * rest**30 - nats / np.log(2.0)


def zeros_stand_alone(filled: Any, nonzeros: Any) -> Any:
    """1 where most zeros of a pruned layer have no zero beside them, else 0.

    Vela codes runs of zeros only if at least half of the zeros are in runs of two or more. A zero
    among random others is alone with probability `nonzeros` squared; padding comes in runs. This
    is a step, of gradient 0: the search sees it where options of a decision are on either side.

    Args:
        filled: the share of the coded weights that is not padding.
        nonzeros: the share of these that is not zero.

    >>> [float(zeros_stand_alone(1.0, s)) for s in (0.7, 0.8)], float(zeros_stand_alone(0.9, 0.8))
    ([0.0, 1.0], 0.0)
    """
    alone = filled * (1.0 - nonzeros) * nonzeros**2
    stands_alone = 2.0 * alone > 1.0 - filled * nonzeros
    if tf.is_tensor(stands_alone):
        return tf.cast(stands_alone, filled.dtype)
    return np.asarray(stands_alone, np.float32)


@dataclasses.dataclass(frozen=True)
class FlashCost:
    """Bytes of the compiled file, on an accelerator and by a size model.

    Args:
        accelerator: Vela's name of the NPU.
        size_model: coefficients, if better ones are known than the defaults.
    """

    accelerator: str = "ethos-u55-128"
    size_model: SizeModel = SizeModel()

    def __post_init__(self) -> None:
        require_accelerator(self.accelerator)
        if not isinstance(self.size_model, SizeModel):
            raise ValueError(f"`size_model` must be a SizeModel. Received: {self.size_model!r}")

    def bind(self, plan: Plan) -> "BoundFlash":
        for layer in plan.layers:
            if FLOAT_BITS in (layer.options.bits or ()):
                raise ValueError(
                    f"An Ethos-U has no {FLOAT_BITS}-bit weights. Take bits up to 8. Received: "
                    f"bits={layer.options.bits} for the layer `{layer.name}`"
                )
        padding = Padding.of(self.accelerator)
        maps = CountMaps(plan, self.size_model.tables, padding=padding)
        return BoundFlash(maps, self.size_model, family(self.accelerator) != "ethos-u85")


@dataclasses.dataclass(frozen=True)
class BoundFlash:
    """The flash of one network's configurations.

    Attributes:
        written_out: whether transpositions and matrix products are many small operations, as they
            are for all but an Ethos-U85, which has them.
    """

    maps: CountMaps
    model: SizeModel
    written_out: bool = True

    def layer_bytes(self, counts: Counts) -> Any:
        """Bytes of each layer, [..., layers]."""
        overhead = self.model.per_channel * counts.records + self.model.per_operator
        return self.weight_bytes(counts) + counts.present * overhead

    def weight_bytes(self, counts: Counts) -> Any:
        """Bytes of each layer's encoded weights, [..., layers]."""
        amounts = self.amounts(counts)
        bits = self.model.mask_cost * amounts.pop("mask_cost")
        for table, amount in amounts.items():
            bits += counts.by_bits[table] * amount
        return counts.present * bits / 8

    def amounts(self, counts: Counts) -> dict[str, Any]:
        """How much each layer has of each coefficient of the coding, [..., layers]."""
        coded, dense = counts.coded_weights, counts.dense
        filled = counts.weights / (coded + 1e-6)  # an option that a decision lacks counts nothing
        dense_share = counts.by_bits["dense_share"]
        if counts.pruned is None:
            direct = (1.0 - dense) * zeros_stand_alone(filled, counts.nonzeros)
            nonzeros = (1.0 - direct) * (counts.nonzeros - dense)
            share = counts.nonzeros - dense * (1.0 - dense_share)
            mask = (1.0 - direct) * mask_bits(filled * share)
        else:
            # Each option by itself, not the mask of a mixture: that is what z weighs.
            sparsities, filled_options = self.maps.sparsities[:, None], filled[..., None, :]
            directly = counts.pruned * zeros_stand_alone(filled_options, sparsities)
            in_runs = counts.pruned - directly
            direct = total(directly, axis=-2)
            nonzeros = total(in_runs * sparsities, axis=-2)
            mask = total(in_runs * mask_bits(filled_options * sparsities), axis=-2)
            mask += dense * mask_bits(filled * dense_share)
        return {
            "mask_cost": coded * mask,
            "bit_cost": counts.weights * nonzeros,
            "dense_bits": counts.weights * dense,
            "direct_bits": coded * direct,
        }

    def cost(self, counts: Counts) -> Any:
        operators = column(self.maps.plan.fixed, lambda p: operations(p.price))
        parts = self.part_bytes(counts)
        parts += self.model.per_operator * operators * counts.part_present
        return self.model.fixed + total(self.layer_bytes(counts)) + total(parts)

    def part_bytes(self, counts: Counts) -> Any:
        """Bytes of each part besides those of its operators, [..., parts]."""
        alone = column(self.maps.plan.fixed, lambda p: p.constants + self._commands(p.commands))
        per_channel = column(self.maps.plan.fixed, lambda p: self._per_channel(p.price))
        return counts.part_present * (alone + per_channel * counts.part_channels)

    def _per_channel(self, price: Price) -> float:
        scales = float(price.weights > 0) if price.scales is None else price.scales
        weights = price.weights * price.bits / 8
        return scales * _SCALE_RECORD + weights + self._commands(price.commands)

    def _commands(self, written_out: float) -> float:
        return written_out if self.written_out else 0.0


# Vela makes some thirty small operations and two tables of a softmax: about 3 kB, or ten. What is
# written as several operators has no weights in most of them, so that it counts as fewer.
_OPERATIONS: dict[str | None, int] = {
    None: 0,
    **{"SOFTMAX": 10, "RESIZE_BILINEAR": 3},
    **{"SILU": 2, "TANH_SHRINK": 2, "SPARSE_PLUS": 2},
    **{"SOFT_SHRINK": 2, "CELU": 2, "GELU": 3, "SELU": 3, "SOFTSIGN": 3, "SQUAREPLUS": 3},
    **{"SOFTPLUS": 4, "LOG_SIGMOID": 4, "MISH": 5},
}
_ON_VECTOR = 0.23  # of the bytes of others: the 13 operations of an LSTM's step take 850
_SCALE_RECORD = 10.0  # bytes per channel of an operation with weights


def operations(price: Price) -> float:
    """NPU operations of an operator, as far as its bytes go."""
    return _OPERATIONS.get(price.operator, 1) * (_ON_VECTOR if price.on_vector else 1.0)
