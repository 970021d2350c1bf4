"""All runners on the same inputs, side by side: who is available, who agrees with the golden."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from udc_tf.export.npu import NpuError
from udc_tf.export.runners import RUNNERS, make_runner
from udc_tf.export.runners.base import RunFailedError, RunnerUnavailableError

_COLUMNS = ("runner", "state", "golden", "ms a run", "NPU cycles", "arena bytes")


@dataclasses.dataclass(frozen=True)
class Row:
    """One runner's line.

    Attributes:
        state: "ran", or why it did not.
        equal: True or False beside a golden, None without one.
        golden: "equal", the first difference, or "-".
    """

    runner: str
    state: str
    equal: bool | None
    golden: str
    seconds: float | None
    cycles: int | None
    arena_bytes: int | None


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
        compiled: what Vela wrote, for `npu`, `qemu` and `fvp`.
        uncompiled: its input, for `tflite` and `tflm`.
        golden: expected outputs, if there are any.
        options: arguments of single runners, by name.
    """
    rows = []
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
        difference = None if golden is None else first_difference(result.outputs, golden)
        rows.append(
            Row(
                runner=name,
                state="ran",
                equal=None if golden is None else difference is None,
                golden="-" if golden is None else difference or "equal",
                seconds=result.seconds / len(inputs[0]),
                cycles=result.cycles,
                arena_bytes=result.arena_bytes,
            )
        )
    return rows


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
            "-" if row.cycles is None else f"{row.cycles}",
            "-" if row.arena_bytes is None else f"{row.arena_bytes}",
        )
        for row in rows
    ]
    # A long reason would push the other columns off the screen: it goes below the table.
    notes = [f"{cell[0]}: {cell[1]}" for cell in cells if len(cell[1]) > 12]
    short = [(c[0], c[1] if len(c[1]) <= 12 else "see below", *c[2:]) for c in cells]
    widths = [max(len(line[i]) for line in (_COLUMNS, *short)) for i in range(len(_COLUMNS))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (_COLUMNS, tuple("-" * width for width in widths), *short)
    ]
    return "\n".join([*lines, *notes])


def _without(name: str, state: str) -> Row:
    return Row(name, state, None, "-", None, None, None)
