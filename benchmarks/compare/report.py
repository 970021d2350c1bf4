"""The table and the picture of the comparison, from its rows."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.compare.methods import INT8, RECIPES
from benchmarks.compare.plan import (
    FEW,
    FIRST_SEED,
    MANY,
    SEARCHES,
    SETTINGS,
    Sizes,
    chosen,
    stored_as,
)
from benchmarks.compare.runs import Run
from benchmarks.harness import Row, mean_and_deviation, picture, table, write

_SEEDS = range(16)
LABELS = {
    "udc": "UDC",
    "uniform": "best uniform",
    "int8_width": "int8, narrower",
    f"random {FEW}x": f"random search, {FEW} trials",
    f"random {MANY}x": f"random search, {MANY} trials",
    "tfmot": "TFMOT prune + PQAT",
    "dnas": "vanilla DNAS",
    "int8_full": "int8, full width",
}
COLOURS = dict(
    zip(
        LABELS,
        ("#0b69a3", "#de6a26", "#9aa5b1", "#a6d0a8", "#2f8132", "#8f4199", "#c9a227", "#1f2933"),
        strict=True,
    )
)
_UNREPEATED = ("udc", "int8_full")  # nothing is chosen


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of the table."""

    data: str
    budget: int | None
    method: str
    setting: str
    rows: tuple[Row, ...]  # one per seed
    tried: int  # runs of this length that the choice took

    @property
    def test(self) -> np.ndarray:
        return np.array([r["test_accuracy"] for r in self.rows])

    @property
    def deviation(self) -> float:
        return float(self.test.std(ddof=1)) if len(self.rows) > 1 else 0.0

    def mean(self, name: str) -> float:
        return float(np.mean([r[name] for r in self.rows]))


def entries(rows: Mapping[str, Row], sizes: Sizes) -> list[Entry]:
    """What the rows allow to say; methods whose choice is not complete yet are left out."""
    found = []
    for data, (epochs, images, budgets) in sizes.items():
        size = (epochs, images)
        for budget in budgets:
            for recipe in RECIPES:
                found.append(_entry(rows, data, budget, recipe, recipe, SEARCHES, 1, size))
            found.append(_entry(rows, data, budget, "int8_width", "uniform", INT8, 1, size))
            groups = {
                "uniform": SETTINGS["uniform"],
                f"random {FEW}x": SETTINGS["random"][:FEW],
                f"random {MANY}x": SETTINGS["random"],
                "tfmot": SETTINGS["tfmot"],
                "dnas": SETTINGS["dnas"],
            }
            for label, settings in groups.items():
                method = label.split()[0]
                best = chosen(rows, data, method, budget, *size, among=settings)
                if best is not None:
                    found.append(
                        _entry(rows, data, budget, label, method, best, len(settings), size)
                    )
        found.append(_entry(rows, data, None, "int8_full", "int8_full", INT8, 1, size))
    order = {label: i for i, label in enumerate(LABELS)}
    entries = [e for e in found if e is not None]
    return sorted(
        entries,
        key=lambda e: (
            *(list(sizes).index(e.data), e.budget or 2**40),
            *(order.get(e.method, -1), e.method),
        ),
    )


def _entry(rows, data, budget, label, method, setting, tried, size) -> Entry | None:
    keys = [Run(data, stored_as(method), setting, budget, s, *size).key for s in _SEEDS]
    met = tuple(rows[k] for k in keys if k in rows and rows[k]["budget_met"])
    return Entry(data, budget, label, setting, met, tried) if met else None


_HEAD = (
    *("data", "budget, bytes", "method", "chosen by validation", "test accuracy, %", "n"),
    *("compiled, bytes", "runs to choose from", "processor seconds per run"),
)


def summary(found: list[Entry]) -> str:
    lines = []
    for e in found:
        tightened = sum(bool(row.get("tightening_rounds")) for row in e.rows)
        tightened = f", {tightened} tightened" if tightened else ""
        lines.append(
            (
                *(e.data, e.budget or "none", LABELS.get(e.method, e.method), e.setting),
                *(mean_and_deviation(e.test, 100), len(e.rows)),
                *(f"{e.mean('flash_bytes'):,.0f}{tightened}", e.tried),
                f"{e.mean('cpu_seconds'):.0f}",
            )
        )
    return table(_HEAD, lines)


def _count(runs: int) -> str:
    return "one run" if runs == 1 else f"best of {runs} runs"


def _grid(rows: Mapping[str, Row], udc: Entry) -> list[float]:
    """Test accuracies of all uniform settings, first seed; empty unless all are run and fit."""
    like = {key: udc.rows[0][key] for key in ("data", "budget", "epochs", "images")}
    same = [r for r in rows.values() if r["method"] == "uniform" and r["seed"] == FIRST_SEED]
    found = {r["setting"]: r for r in same if like.items() <= r.items()}
    met = [r["test_accuracy"] for r in found.values() if r["budget_met"]]
    return met if len(met) == len(SETTINGS["uniform"]) else []


def verdicts(found: list[Entry], rows: Mapping[str, Row]) -> str:
    """UDC against the strongest of the others, any uniform one, and int8 at full width."""
    lines = []
    for udc in (e for e in found if e.method == "udc"):
        here = [e for e in found if (e.data, e.budget) == (udc.data, udc.budget)]
        rivals = [e for e in here if e.method in LABELS and e.method != "udc"]
        if rivals:
            # The strongest by validation and the first seed, as settings are chosen.
            rival = max(rivals, key=lambda e: e.rows[0]["validation_accuracy"])
            gap = 100 * (udc.test.mean() - rival.test.mean())
            noise = 100 * max(udc.deviation, rival.deviation)
            lines.append(
                f"- {udc.data}, {udc.budget:,} bytes: UDC {gap:+.2f} points against "
                f"{LABELS[rival.method]} ({rival.setting}, {_count(rival.tried)}); larger "
                f"standard deviation {noise:.2f}."
            )
        if grid := _grid(rows, udc):
            gap = 100 * (udc.test.mean() - np.mean(grid))
            lines.append(
                f"- {udc.data}, {udc.budget:,} bytes: UDC {gap:+.2f} points against the mean of "
                f"the {len(grid)} uniform settings, any of which takes one run as UDC does."
            )
        full = [e for e in found if e.data == udc.data and e.method == "int8_full"]
        if full:
            times = full[0].mean("flash_bytes") / udc.mean("flash_bytes")
            gap = 100 * (udc.test.mean() - full[0].test.mean())
            lines.append(
                f"- {udc.data}, {udc.budget:,} bytes: {times:.1f} times smaller than int8 at full "
                f"width, {gap:+.2f} points."
            )
    return "\n".join(lines) + "\n"


def write_report(rows: Mapping[str, Row], sizes: Sizes, beside: pathlib.Path) -> str:
    """Writes the .md and .png beside the rows; returns the text."""
    found = entries(rows, sizes)
    if found:
        names = list(dict.fromkeys(e.data for e in found))
        picture(
            beside.with_suffix(".png"),
            lambda axes: draw(found, dict(zip(names, axes[:, 0], strict=True))),
            shape=(len(names), 1),
            height=0.5 + 3.2 * len(names),
        )
    lengths = "; ".join(f"{d}: {e} epochs of {n:,} images" for d, (e, n, _) in sizes.items())
    return write(
        beside.with_suffix(".md"),
        "# Comparison at equal compiled flash and equal training\n\n"
        "Made by `python -m benchmarks.compare --only_report`, with the flags of its runs, from "
        f"`{beside.name}`, which has every run with its seed, epochs and seconds.\n\n"
        f"A run is as long as UDC's search and finetuning together ({lengths}). Accuracy is that "
        "of the int8 file on all test images, as mean and standard deviation over n seeds; "
        "settings were chosen on validation images, by the first seed. `runs to choose from` is "
        "what the choice cost in runs. `tightened`: so many runs were over the budget after their "
        "training, were pruned further and had two epochs more.\n\n"
        f"{summary(found)}\n{verdicts(found, rows)}",
    )


def draw(found: list[Entry], axes: Mapping[str, Any]) -> None:
    """Compiled flash against test accuracy, one colour per method, onto the axis of each task."""
    for name, axis in axes.items():
        for method, label in LABELS.items():
            points = [e for e in found if (e.data, e.method) == (name, method)]
            if points:
                axis.errorbar(
                    [e.mean("flash_bytes") / 1e3 for e in points],
                    [100 * e.test.mean() for e in points],
                    [100 * e.deviation for e in points],
                    color=COLOURS[method],
                    label=label,
                    marker="o",
                    markersize=4,
                    linewidth=2 if method == "udc" else 1,
                    capsize=2,
                    zorder=3 if method == "udc" else 2,
                )
        axis.set(title=name, xlabel="compiled file, kB", ylabel="test accuracy, %")
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("{x:g}")
        axis.legend(loc="lower right")
