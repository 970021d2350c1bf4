"""All runners on the same inputs, side by side: who is available, who agrees with the golden."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from udc_tf.export.npu import NpuError
from udc_tf.export.runners import RUNNERS, make_runner
from udc_tf.export.runners.base import (
    ESTIMATE_NOTE,
    RunFailedError,
    RunnerUnavailableError,
    RunResult,
)

_COLUMNS = ("runner", "state", "golden", "ms per run", "NPU cycles", "arena bytes")


@dataclasses.dataclass(frozen=True)
class Row:
    """One runner's line.

    Attributes:
        state: "ran", or why it did not.
        equal: whether the outputs are the golden ones, or without any those of the first runner
            that ran, for which it is None.
        golden: "equal", "as" the first runner, the first difference, or "-".
        notes: what a reader of the numbers should know.
        cycles_estimated: as in `RunResult`.
    """

    runner: str
    state: str
    equal: bool | None
    golden: str
    seconds: float | None
    cycles: int | None
    arena_bytes: int | None
    notes: tuple[str, ...] = ()
    cycles_estimated: bool = False


def compare(
    compiled: str | os.PathLike[str] | None,
    uncompiled: str | os.PathLike[str] | None,
    inputs: Sequence[np.ndarray],
    golden: Sequence[np.ndarray] | None,
    names: Sequence[str] = tuple(RUNNERS),
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Row]:
    """Runs `inputs` on every runner of `names`.

    Args:
        compiled: what Vela wrote, for `npu`, `qemu`, `arm` and `fvp`.
        uncompiled: its input, for `tflite` and `tflm`.
        golden: expected outputs; without any, the runners are compared with the first that ran.
        options: arguments of single runners, by name.
    """
    rows = []
    first: RunResult | None = None
    for name in names:
        extra = dict((options or {}).get(name, {}))
        if golden is not None and name in ("qemu", "fvp"):
            extra["golden"] = golden
        runner = make_runner(name, **extra)
        path = compiled if runner.takes_compiled else uncompiled
        if path is None:
            kind = "compiled" if runner.takes_compiled else "uncompiled"
            rows.append(_without(name, f"no {kind} .tflite was given"))
            continue
        try:
            runner.require()
            runner.load(path)
            result = runner.run(inputs)
        except RunnerUnavailableError as error:
            rows.append(_without(name, str(error).split(" because ", 1)[-1]))
            continue
        except (NpuError, RunFailedError, ValueError) as error:
            rows.append(_without(name, f"failed: {error}"))
            continue
        equal, said = _verdict(result, golden, first)
        first = first or result
        rows.append(
            Row(
                runner=name,
                state="ran",
                equal=equal,
                golden=said,
                seconds=result.seconds / len(inputs[0]),
                cycles=result.cycles,
                arena_bytes=result.arena_bytes,
                notes=result.notes,
                cycles_estimated=result.cycles_estimated,
            )
        )
    return rows


def _verdict(
    result: RunResult, golden: Sequence[np.ndarray] | None, first: RunResult | None
) -> tuple[bool | None, str]:
    """Whether a result is right, and in words; without a golden the first result is the measure."""
    if golden is not None:
        difference = first_difference(result.outputs, golden)
        return difference is None, difference or "equal"
    if first is None:
        return None, "-"
    difference = first_difference(result.outputs, first.outputs)
    return difference is None, f"as {first.runner}" if difference is None else difference


def first_difference(outputs: Sequence[np.ndarray], golden: Sequence[np.ndarray]) -> str | None:
    """Where `outputs` first differ from `golden`, in words; None if they are equal.

    Example:
        >>> first_difference([np.array([[1, 2]])], [np.array([[1, 3]])])
        'output 0 at (0, 1): 2, golden 3; 1 of 2 differ, by up to 1'
    """
    if len(outputs) != len(golden):
        return f"{len(outputs)} outputs, golden {len(golden)}"
    for number, (got, want) in enumerate(zip(outputs, golden, strict=True)):
        if got.size != np.size(want) or got.dtype != np.asarray(want).dtype:
            return (
                f"output {number}: {got.dtype} {got.shape}, golden "
                f"{np.asarray(want).dtype} {np.shape(want)}"
            )
        want = np.reshape(want, got.shape)
        wrong = np.argwhere(got != want)
        if len(wrong):
            place = tuple(int(i) for i in wrong[0])
            distance = np.abs(got.astype(np.int64) - want.astype(np.int64)).max()
            return (
                f"output {number} at {place}: {got[place]}, golden {want[place]}; "
                f"{len(wrong)} of {got.size} differ, by up to {distance}"
            )
    return None


def table(rows: Sequence[Row]) -> str:
    """The rows as text, in columns."""
    cells = [
        (
            row.runner,
            row.state,
            row.golden,
            "-" if row.seconds is None else f"{1000 * row.seconds:.1f}",
            "-" if row.cycles is None else f"{'~' * row.cycles_estimated}{row.cycles}",
            "-" if row.arena_bytes is None else f"{row.arena_bytes}",
        )
        for row in rows
    ]
    # A long reason would push the other columns off the screen: it goes below the table.
    notes = [f"{cell[0]}: {cell[1]}" for cell in cells if len(cell[1]) > 12]
    notes += [f"{row.runner}: {'; '.join(own)}" for row in rows if (own := _own_notes(row))]
    if any(row.cycles_estimated for row in rows):
        notes.append(f"~: {ESTIMATE_NOTE}")
    short = [(c[0], c[1] if len(c[1]) <= 12 else "see below", *c[2:]) for c in cells]
    widths = [max(len(line[i]) for line in (_COLUMNS, *short)) for i in range(len(_COLUMNS))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (_COLUMNS, tuple("-" * width for width in widths), *short)
    ]
    return "\n".join([*lines, *notes])


def _own_notes(row: Row) -> list[str]:
    """Notes that are not said once for all runners."""
    return [note for note in row.notes if note not in (ESTIMATE_NOTE, "PASS")]


def _without(name: str, state: str) -> Row:
    return Row(name, state, None, "-", None, None, None)
