"""What all benchmarks share: rows that survive an interruption, a stopwatch, tables and pictures.

A script asks `Rows.once(key, measure)` for each of its cases: what has a row is not measured again,
what another process is at is left to that one, and each new row is on disk before the next case.
`interleaved` times things in turns, so that whatever else the machine does meets all of them alike.
`main` gives a script its rows in `benchmarks/results/` and prints the report that it returns.
"""

import fcntl
import hashlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from absl import app, flags

from udc_tf.files import replaced_atomically

Row = dict[str, Any]
RESULTS = pathlib.Path(__file__).with_name("results")
SHARED = pathlib.Path(__file__).parents[2] / "shared"  # files that are not the repository's
_LOCKS = pathlib.Path(tempfile.gettempdir(), f"udc_tf_locks_{os.getuid()}")


class Rows:
    """The rows of one JSON file, by key; several processes may fill it together.

    Every change is made under a lock, on what the file then holds, and replaces the file whole.

    Args:
        path: of the file; it need not exist.
        only_report: no measurement is to begin.
        max_minutes: no measurement is to begin after so many.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        only_report: bool = False,
        max_minutes: float | None = None,
    ):
        self.path = pathlib.Path(path)
        self._end = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self.only_report = only_report

    def read(self) -> dict[str, Row]:
        return json.loads(self.path.read_text()) if self.path.is_file() else {}

    def add(self, key: str, row: Row) -> None:
        """Keeps a row; one that is there under this key is replaced."""
        with _lock_file(self.path, "rows") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            write(self.path, json.dumps({**self.read(), key: row}, indent=1) + "\n")

    def claim(self, key: str) -> IO | None:
        """Something to close when the work is done; None if it is not to begin here and now.

        The claim is a lock of the system, so it ends with its process, however that ends.
        """
        late = self._end is not None and time.monotonic() > self._end
        if self.only_report or late:
            return None
        file = _lock_file(self.path, key)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def once(self, key: str, measure: Callable[[], Row]) -> Row | None:
        """The row of that key, measured now if there is none; None if it could not be claimed."""
        if key in (rows := self.read()):
            return rows[key]
        claim = self.claim(key)
        if claim is None:
            return None
        with claim:
            if key not in self.read():  # another process may have been faster
                row = measure()
                self.add(key, row)
                print(f"{key}: {row}", flush=True)
        return self.read()[key]


def _lock_file(path: pathlib.Path, name: str) -> IO:
    _LOCKS.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha1(f"{path.resolve()} {name}".encode()).hexdigest()
    return open(_LOCKS / f"{digest}.lock", "w")


class Seconds(NamedTuple):
    """Processor time, that of child processes that have ended included, and wall time."""

    cpu: float
    wall: float


class Stopwatch:
    """Tells what has passed since it was made."""

    def __init__(self):
        self._begin = self._now()

    @staticmethod
    def _now() -> Seconds:
        children = sum(os.times()[2:4])
        return Seconds(time.process_time() + children, time.perf_counter())

    def read(self, digits: int = 1) -> Seconds:
        now = self._now()
        return Seconds(*(round(b - a, digits) for a, b in zip(self._begin, now, strict=True)))


def interleaved(
    actions: Mapping[str, Callable[[], object]], rounds: int, unmeasured: int = 1
) -> dict[str, np.ndarray]:
    """Seconds that each action takes, in turns: by name an array [rounds, (processor, wall)].

    Args:
        unmeasured: rounds before the first that counts, in which things are traced and cached.
    """
    seconds: dict[str, list[Seconds]] = {name: [] for name in actions}
    for _ in range(unmeasured + rounds):
        for name, action in actions.items():
            watch = Stopwatch()
            action()
            seconds[name].append(watch.read(digits=6))
    return {name: np.asarray(taken[unmeasured:]) for name, taken in seconds.items()}


def table(head: Sequence[object], lines: Iterable[Sequence[object]]) -> str:
    """A table in markdown.

    >>> print(table(("network", "ratio"), [("resnet8", 1.03)]), end="")
    | network | ratio |
    |---|---|
    | resnet8 | 1.03 |
    """

    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(map(str, cells)) + " |\n"

    return line(head) + "|" + "---|" * len(head) + "\n" + "".join(map(line, lines))


def mean_and_deviation(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """
    >>> mean_and_deviation([0.79, 0.80], 100), mean_and_deviation([79.0], digits=1)
    ('79.50 ± 0.71', '79.0')
    """
    found = np.asarray(values, float)
    spread = f" ± {scale * found.std(ddof=1):.{digits}f}" if len(found) > 1 else ""
    return f"{scale * found.mean():.{digits}f}{spread}"


def write(path: pathlib.Path, text: str) -> str:
    """Writes a text so that no half of it is ever seen; returns it."""
    with replaced_atomically(path) as partial:
        partial.write_text(text)
    return text


def picture(
    path: pathlib.Path,
    draw: Callable[[np.ndarray], None],
    shape: tuple[int, int] = (1, 1),
    height: float = 3.2,
) -> str:
    """Writes a .png; returns its name.

    Args:
        draw: onto an array of axes of that shape.
        height: in inches.
    """
    from udc_tf.report.style import WIDTH, styled  # chooses matplotlib's backend

    with styled():
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(*shape, figsize=(WIDTH, height), squeeze=False)
        draw(axes)
        figure.tight_layout()
        with replaced_atomically(path) as partial:
            # No version inside: the same numbers give the same file.
            figure.savefig(partial, format="png", metadata={"Software": None})
        plt.close(figure)
    return path.name


def define_flags(name: str) -> None:
    """The flags of every benchmark; its rows are in results/NAME.json unless --results says so."""
    flags.DEFINE_string(
        "results", str(RESULTS / f"{name}.json"), "The rows; tables and pictures go beside it."
    )
    flags.DEFINE_bool("only_report", False, "Nothing is measured.")
    flags.DEFINE_float("max_minutes", None, "No measurement begins after that.")


def rows_of(given) -> Rows:
    """The rows that the flags, or an object like them, name."""
    return Rows(given.results, given.only_report, given.max_minutes)


def main(run: Callable[[Rows], str], name: str) -> None:
    """Runs a benchmark: `run` fills the rows that it is given and returns the report."""
    define_flags(name)
    app.run(lambda _: print(run(rows_of(flags.FLAGS))))
