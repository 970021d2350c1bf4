"""Fits working memory and cycles to what Vela plans and estimates for configurations of a network.

Vela says how many cycles each operator takes. Each gets a factor and an offset to what the formula
says about it, held near the usual ones where the sample says little; of working memory, of which
only the peak counts, the whole gets a factor.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from udc_tf.compact.build import GATE
from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.flash import SizeModel
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.sram import SramCost
from udc_tf.cost.steps import StepCosts
from udc_tf.cost.vela_ini import default_mode, kind_of
from udc_tf.export.integer_network import IntegerNetwork
from udc_tf.export.vela import System, VelaResult

_FACTOR, _FACTOR_SPREAD = 1.15, 0.3
_OFFSET_SPREAD = 0.05  # of the whole network's cycles
_NOISE = 0.01  # of the whole network's cycles


class Measured(Protocol):
    """One compiled configuration."""

    @property
    def options(self) -> tuple[int, ...]: ...

    @property
    def sram_bytes(self) -> int: ...

    @property
    def cycles(self) -> int: ...

    @property
    def step_cycles(self) -> Mapping[str, int]: ...


def step_cycles(network: IntegerNetwork, compiled: VelaResult) -> dict[str, int]:
    """Layer -> cycles that Vela estimates for its operators."""
    found: dict[str, int] = {}
    for operator in compiled.operators:
        name = network.steps[operator.index].name
        found[name] = found.get(name, 0) + operator.cycles
    return found


def fit_device(
    rows: Sequence[Measured], plan: Plan, system: System, size: SizeModel
) -> DeviceModel:
    """The coefficients that fit best, by least squares; the defaults where steps are not known."""
    model = DeviceModel(size=size, fitted=True)
    if not plan.steps:
        return model
    options = np.array([row.options for row in rows])
    costs = StepCosts(plan, system.accelerator, model)
    counts = costs.maps.counts(costs.maps.one_hot(options))
    formula, present = costs.formula(counts), np.asarray(counts.step_present)
    totals = np.array([row.cycles for row in rows], float)
    named: dict[str, list[int]] = {}
    for i, step in enumerate(plan.steps):
        named.setdefault(step.name, []).append(i)
    steps, known = {}, np.zeros(len(rows))
    for name, numbers in named.items():
        measured = np.array([_cycles_of(row, name) for row in rows], float)
        base = (formula * present)[:, numbers].sum(1)
        there = present[:, numbers].sum(1)
        steps[name] = _line(base, there, measured, totals)
        known += steps[name][0] * base + steps[name][1] * there
    model = dataclasses.replace(model, steps=steps, rest=float((totals - known).mean()))
    mode = system.memory_mode or default_mode(system.accelerator)
    bound = SramCost(system.accelerator, kind_of(mode, system.config), model).bind(plan)
    predicted = bound.cost(bound.maps.counts(bound.maps.one_hot(options)))
    ratios = np.array([row.sram_bytes for row in rows]) / predicted
    return dataclasses.replace(model, sram=float(np.median(ratios)))


def _cycles_of(row: Measured, name: str) -> int:
    """Those of a layer's operators; the sigmoid of a swish has a name of its own."""
    return row.step_cycles.get(name, 0) + row.step_cycles.get(f"{name}{GATE}", 0)


def _line(
    base: np.ndarray, there: np.ndarray, measured: np.ndarray, totals: np.ndarray
) -> tuple[float, float]:
    """Factor and offset, in units of their spread from the usual ones."""
    noise, offset = _NOISE * totals, _OFFSET_SPREAD * totals.mean()
    design = np.stack([base * _FACTOR_SPREAD / noise, there * offset / noise], axis=1)
    wanted = (measured - _FACTOR * base) / noise
    solved = np.linalg.solve(design.T @ design + np.eye(2), design.T @ wanted)
    return float(_FACTOR + _FACTOR_SPREAD * solved[0]), float(offset * solved[1])
