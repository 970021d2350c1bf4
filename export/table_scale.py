"""Input scales of sigmoid and tanh at which TFLM and Vela agree on all 256 codes.

TFLM computes both in fixed point at each call, Vela 5.2 tabulates them in doubles. Some tables have
a value so close to a half that the two round it differently, and what goes round in a recurrent
layer would carry the difference on. A scale a few steps of float32 away moves that value off the
half. TFLM itself is asked: nothing here repeats its arithmetic.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from udc_tf.export import tflite_writer, tflm_check
from udc_tf.export.integer_network import (
    INT8_MAX,
    INT8_MIN,
    IntegerNetwork,
    Quantization,
    Step,
    Value,
)

_CODES = np.arange(INT8_MIN, INT8_MAX + 1, dtype=np.int8)
_STEPS = tuple(2**n for n in range(13))  # of float32, at most 1/2048 of the scale


@dataclasses.dataclass(frozen=True)
class Table:
    """A function of int8 codes."""

    kind: str
    input: Quantization
    output: Quantization


def settle(network: IntegerNetwork, quantizations: list[Quantization]) -> None:
    """Moves the scales of values whose sigmoid or tanh TFLM and Vela have differently."""
    readers: dict[Quantization, set[tuple[str, Quantization]]] = {}
    for step in network.steps:
        if step.kind in _FUNCTIONS:
            own = quantizations[step.inputs[0]]
            readers.setdefault(own, set()).add((step.kind, quantizations[step.output]))
    for own in _in_dispute(readers):
        values = [i for i, other in enumerate(quantizations) if other == own]
        if any(network.values[i].prescribed for i in values):
            continue  # it cannot be moved
        near = [own.scale + np.float32(n) * np.spacing(own.scale) for n in _STEPS]
        moved = [Quantization(np.float32(scale), own.zero_point) for scale in near]
        disputed = _in_dispute(dict.fromkeys(moved, readers[own]))
        found = next((other for other in moved if other not in disputed), own)
        for index in values:
            quantizations[index] = found


def _in_dispute(
    readers: Mapping[Quantization, Collection[tuple[str, Quantization]]],
) -> set[Quantization]:
    """The inputs of which some table is not the same for TFLM and Vela."""
    tables = [Table(kind, own, output) for own, read in readers.items() for kind, output in read]
    return {table.input for table, same in agree(tables).items() if not same}


def agree(tables: Sequence[Table]) -> dict[Table, bool]:
    """Whether TFLM and Vela have the same 256 codes, table by table."""
    golden = _tflm(tables) if tables else []
    return {t: bool((_vela(t) == codes).all()) for t, codes in zip(tables, golden, strict=True)}


def _tflm(tables: Sequence[Table]) -> list[np.ndarray]:
    shape, count = (1, len(_CODES)), len(tables)
    values = [Value(f"value_{n}", shape) for n in range(2 * count)]
    steps = [Step(t.kind, f"table_{n}", (2 * n,), 2 * n + 1) for n, t in enumerate(tables)]
    ends = tuple(range(0, 2 * count, 2)), tuple(range(1, 2 * count, 2))
    network = IntegerNetwork("tables", values, steps, *ends)
    content = tflite_writer.write(network, [q for t in tables for q in (t.input, t.output)])
    return [np.ravel(codes) for codes in tflm_check.run(content, [_CODES[None]] * count)]


def _vela(table: Table) -> np.ndarray:
    """As Vela 5.2 tabulates it: in doubles, halves away from zero."""
    scale, zero = float(table.output.scale), table.output.zero_point
    reals = float(table.input.scale) * (_CODES.astype(np.float64) - table.input.zero_point)
    exact = np.array([_FUNCTIONS[table.kind](real) for real in reals]) / scale + zero
    rounded = np.trunc(exact + np.where(exact < 0, -0.5, 0.5))
    return np.clip(rounded, INT8_MIN, INT8_MAX).astype(np.int8)


def _sigmoid(x: float) -> float:
    return float(x > 0) if abs(x) >= 8 else 1 / (1 + math.exp(-x))


_FUNCTIONS: Mapping[str, Callable[[float], float]] = {"LOGISTIC": _sigmoid, "TANH": math.tanh}
