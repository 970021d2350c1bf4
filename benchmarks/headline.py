"""How much flash the same accuracy takes, and how accurate the same flash is: UDC beside int8.

    python -m benchmarks.headline       # what has no row yet

Networks at full size, images and sounds not pooled. UDC's are those of `benchmarks.take_home`, all
seeds; the int8 networks are of the same family, dense and of several widths, trained for as many
epochs on the same data. What int8 takes for an accuracy is read off the line through its widths,
over the logarithm of the flash; beyond its ends nothing is read.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import harness, take_home, zoo_cards
from benchmarks.harness import RESULTS, Row, Rows, mean_and_deviation, table
from benchmarks.zoo_networks import NETWORKS

SEEDS = {"spoken_digits_conv1d": (0, 1, 2), "cifar10": (0,)}
WIDTHS = (1.0, 0.5, 0.25, 0.15, 0.08)


def flash_for(accuracy: float, line: Sequence[tuple[float, float]]) -> float | None:
    """The flash at which a line of (flash, accuracy) reaches an accuracy; None beyond its ends.

    A wider network that is less accurate is worth what the narrower one is.

    >>> flash_for(0.85, [(1000, 0.8), (4000, 0.9)])
    2000.0
    >>> flash_for(0.95, [(1000, 0.8), (4000, 0.9)])
    """
    flash, accuracies = np.asarray(sorted(line)).T
    best = np.maximum.accumulate(accuracies)
    if not best[0] <= accuracy <= best[-1]:
        return None
    rises = np.r_[True, np.diff(best) > 0]
    return round(float(np.exp(np.interp(accuracy, best[rises], np.log(flash[rises])))), 3)


def accuracy_at(flash: float, line: Sequence[tuple[float, float]]) -> float | None:
    """The accuracy of a line of (flash, accuracy) at a flash; None below its smallest.

    >>> round(accuracy_at(2000, [(1000, 0.8), (4000, 0.9)]), 3)
    0.85
    """
    sizes, accuracies = np.asarray(sorted(line)).T
    if flash < sizes[0]:
        return None
    best = np.maximum.accumulate(accuracies)
    return float(np.interp(np.log(flash), np.log(sizes), best))


def report(int8: Mapping[str, Row]) -> str:
    parts, found = [], Rows(RESULTS / "take_home.json").read()
    for name in SEEDS:
        line = _line(int8, name)
        if line:
            parts.append(f"## {NETWORKS[name].title}\n\n{_table(int8, found, name, line)}")
    return "\n".join(parts)


def _line(int8: Mapping[str, Row], name: str) -> list[tuple[float, float]]:
    """(flash, accuracy) of each width, means over seeds."""
    line = []
    for width in WIDTHS:
        of = [row for key, row in int8.items() if key.startswith(f"{name}/int8 {width}/")]
        if of:
            flash, test = (float(np.mean([row[what] for row in of])) for what in ("flash", "test"))
            line.append((flash, test))
    return line


def _table(
    int8: Mapping[str, Row],
    found: Mapping[str, Row],
    name: str,
    line: Sequence[tuple[float, float]],
) -> str:
    head = ("network", "flash", "test, %", "int8 of equal flash, %", "flash of equal int8", "ratio")
    lines: list[Sequence[object]] = []
    for width in WIDTHS:
        of = [row for key, row in int8.items() if key.startswith(f"{name}/int8 {width}/")]
        if of:
            lines.append((f"int8, width {width}", *_means(of), "", "", ""))
    for budget in NETWORKS[name].budgets:
        of = [row["budgets"][budget] for row in zoo_cards.seeds_of(found, name)]
        if not of:
            continue
        flash, test = (float(np.mean([row[what] for row in of])) for what in ("flash", "test"))
        equal, needed = accuracy_at(flash, line), flash_for(test, line)
        lines.append(
            (
                f"UDC, {budget}",
                *_means(of),
                "" if equal is None else f"{equal:.1%}".rstrip("%"),
                "beyond" if needed is None else f"{needed:,.0f}",
                "" if needed is None else f"{needed / flash:.2f}",
            )
        )
    return table(head, lines)


def _means(rows: Sequence[Row]) -> tuple[str, str]:
    flash = np.mean([row["flash"] for row in rows])
    return f"{flash:,.0f}", mean_and_deviation([row["test"] for row in rows], 100, 1)


def _int8(found: Mapping[str, Row], name: str, seed: int, width: float) -> Row:
    """The row of `benchmarks.take_home` where it is the same network, else one of its own."""
    whole = found.get(f"{name}/int8") if (seed, width) == (0, 1.0) else None
    return whole or take_home.measure_int8(name, seed, width)


def run(rows: Rows) -> str:
    found = Rows(RESULTS / "take_home.json").read()
    for name, width in itertools.product(SEEDS, WIDTHS):
        if not rows.only_report:
            take_home.prepare(NETWORKS[name], take_home.workdir(name, 0).parent)
        for seed in SEEDS[name]:
            rows.once(
                f"{name}/int8 {width}/{seed}", functools.partial(_int8, found, name, seed, width)
            )
    return harness.write(rows.path.with_suffix(".md"), report(rows.read()))


if __name__ == "__main__":
    take_home.define_work()
    harness.main(run, "headline")
