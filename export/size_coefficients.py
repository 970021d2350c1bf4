"""The coefficients of the size model that fit compiled files best, by least squares.

They are held near the defaults where the files say little.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from udc_tf.cost.flash import BoundFlash, SizeModel, operations

# How far coefficients may reasonably be from their defaults: absolute, or of the default.
_OVERHEAD_SPREAD = {"fixed": 1500.0, "per_operator": 150.0, "per_channel": 2.0}
_CODING_SPREAD = 0.08
_NOISE = 0.01  # of a file's size


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One configuration: what it counts and what its compiled file takes.

    Attributes:
        options: the number of the option of each decision.
        features: amount of each coefficient of the size model; `bit_cost/4` is one of a table.
        constant: bytes that no coefficient touches.
        weight_bytes: the encoded weights of the layers that are priced.
        flash_bytes: the file.
        sram_bytes, cycles: as Vela plans and estimates them.
        step_cycles: the estimate by operator.
        encoded_bytes: all encoded weights, each once.
    """

    options: tuple[int, ...]
    features: dict[str, float]
    constant: float
    weight_bytes: int
    flash_bytes: int
    sram_bytes: int = 0
    cycles: int = 0
    step_cycles: dict[str, int] = dataclasses.field(default_factory=dict)
    encoded_bytes: int = 0

    @property
    def overhead(self) -> int:
        """What the file takes besides weights."""
        return self.flash_bytes - self.weight_bytes

    def predicted_overhead(self, model: SizeModel) -> float:
        """What a size model says about that."""
        features = {name: self.features[name] for name in _OVERHEAD_SPREAD}
        return dataclasses.replace(self, features=features).predicted(model)

    def predicted(self, model: SizeModel) -> float:
        """What a size model says about it."""
        return self.constant + sum(
            amount * _coefficient(model, name) for name, amount in self.features.items()
        )


def features_of(bound: BoundFlash, chosen: np.ndarray) -> tuple[dict[str, float], float]:
    """How much of each coefficient a configuration has, and what it has besides."""
    plan, maps = bound.maps.plan, bound.maps
    counts = maps.counts(maps.one_hot(np.asarray(chosen)))
    present, parts = counts.present, counts.part_present
    operators = np.array([operations(p.price) for p in plan.fixed])
    features = {
        "fixed": 1.0,
        "per_operator": float(present.sum() + (parts * operators).sum()),
        "per_channel": float((present * counts.records).sum()),
    }
    for table, amount in bound.amounts(counts).items():
        stored = present * amount / 8
        if table == "mask_cost":
            features[table] = float(stored.sum())
            continue
        for i in np.flatnonzero(stored):
            name = f"{table}/{int(counts.bits[i])}"
            features[name] = features.get(name, 0.0) + float(stored[i])
    return features, float(bound.part_bytes(counts).sum())


def fit(rows: Sequence[Measurement]) -> SizeModel:
    """The coefficients of coding and of overheads."""
    default = SizeModel()
    sizes = np.array([row.flash_bytes for row in rows], float)
    names = sorted({name for row in rows for name in row.features} - set(_OVERHEAD_SPREAD))
    coding = _amounts(rows, names)
    prior = np.array([_coefficient(default, n) for n in names])
    streams = np.array([row.weight_bytes for row in rows], float)
    solved = _least_squares(coding, streams, prior, _CODING_SPREAD * prior, sizes)
    # What coding leaves, its own errors included, so that these do not add to the overheads'.
    overheads = _fit_overheads(rows, sizes - coding @ solved)
    return _with_coefficients({**dict(zip(names, solved, strict=True)), **overheads})


def fit_overheads(rows: Sequence[Measurement]) -> SizeModel:
    """The coefficients of overheads alone, for files of which the weights are known exactly."""
    return _with_coefficients(_fit_overheads(rows, np.array([row.overhead for row in rows], float)))


def _fit_overheads(rows: Sequence[Measurement], overheads: np.ndarray) -> dict[str, float]:
    """By what the files of `rows` take besides weights."""
    names = list(_OVERHEAD_SPREAD)
    sizes = np.array([row.flash_bytes for row in rows], float)
    prior = np.array([_coefficient(SizeModel(), n) for n in names])
    spread = np.array(list(_OVERHEAD_SPREAD.values()))
    rest = overheads - np.array([row.constant for row in rows])
    solved = _least_squares(_amounts(rows, names), rest, prior, spread, sizes)
    return dict(zip(names, solved, strict=True))


def _with_coefficients(found: dict[str, float]) -> SizeModel:
    values: dict = {}
    for name, value in found.items():
        field, _, bits = name.partition("/")
        if bits:
            values.setdefault(field, {})[int(bits)] = float(value)
        else:
            values[field] = float(value)
    return SizeModel(**values)


def _amounts(rows: Sequence[Measurement], names: list[str]) -> np.ndarray:
    return np.array([[row.features.get(n, 0.0) for n in names] for row in rows])


def _least_squares(
    amounts: np.ndarray,
    wanted: np.ndarray,
    prior: np.ndarray,
    spread: np.ndarray,
    sizes: np.ndarray,
) -> np.ndarray:
    """Coefficients in units of their spread from the prior, rows in units of the noise."""
    noise = _NOISE * sizes
    design = amounts * spread / noise[:, None]
    target = (wanted - amounts @ prior) / noise
    system = design.T @ design + np.eye(len(prior))
    return prior + spread * np.linalg.solve(system, design.T @ target)


def _coefficient(model: SizeModel, name: str) -> float:
    field, _, bits = name.partition("/")
    return float(model.tables[field][int(bits)] if bits else getattr(model, field))
