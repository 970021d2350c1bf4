"""The ablation's tables and figures, from its rows."""

import collections
import pathlib
from collections.abc import Mapping

import numpy as np

from benchmarks import step_overhead
from benchmarks.harness import RESULTS, Row, Rows, mean_and_deviation, picture, table, write

PERMUTATIONS = 100
_COLOURS = ("#0b69a3", "#de6a26", "#2f8132", "#8f4199", "#9aa5b1", "#c9a227")


def write_report(rows: Mapping[str, Row], path: pathlib.Path, compared: pathlib.Path) -> str:
    """Writes the .md and the figures beside the rows; returns the text."""
    pieces = [
        f"# Ablation\n\nMade by `python -m benchmarks.ablation --only_report` from `{path.name}`, "
        "which has the epochs, seed and seconds of every run. Fashion-MNIST at 14x14.",
        parts_table(rows),
        random_text(Rows(compared).read(), path, compared.name),
        format_text(rows, path),
        variance_text(rows, path),
        cost_text(),
    ]
    text = "\n\n".join(p.rstrip() for p in pieces if p) + "\n"
    return write(path.with_suffix(".md"), text)


def _grouped(rows, method: str) -> dict[str, list[Row]]:
    groups = collections.defaultdict(list)
    for row in rows.values():
        if row["method"] == method:
            groups[row["setting"]].append(row)
    return dict(groups)


def _mean(found: list[Row], name: str, scale: float = 1.0, digits: int = 2) -> str:
    values = [r[name] for r in found if r.get(name) is not None]
    return mean_and_deviation(values, scale, digits) if values else "-"


def parts_table(rows) -> str:
    groups = _grouped(rows, "part")
    if not groups:
        return ""
    head = (
        *("search", "E(argmax) / e* before repair", "within the budget before repair"),
        *("shared weights, validation %", "finetuned, test %", "n", "search, processor seconds"),
    )
    lines = []
    for name, found in groups.items():
        met = sum(r["met_before_repair"] for r in found)
        lines.append(
            (
                *(name, _mean(found, "argmax_ratio", digits=3), f"{met} of {len(found)}"),
                *(_mean(found, "shared_accuracy", 100), _mean(found, "test_accuracy", 100)),
                *(len(found), _mean(found, "search_cpu_seconds", digits=0)),
            )
        )
    return f"## Parts of the search\n\n{table(head, lines)}"


def best_so_far(validation: np.ndarray, test: np.ndarray, seed: int = 0) -> np.ndarray:
    """Test accuracy of the best trial by validation among the first n, permuted and averaged.

    >>> best_so_far(np.array([0.5, 0.5]), np.array([0.7, 0.7])).round(6).tolist()
    [0.7, 0.7]
    """
    rng = np.random.default_rng(seed)
    total = np.zeros(len(validation))
    for _ in range(PERMUTATIONS):
        order = rng.permutation(len(validation))
        best = [order[: n + 1][validation[order[: n + 1]].argmax()] for n in range(len(order))]
        total += test[best]
    return total / PERMUTATIONS


def random_text(rows, path: pathlib.Path, source: str) -> str:
    trials = collections.defaultdict(list)
    udc = collections.defaultdict(list)
    for row in rows.values():
        if row["method"] == "random" and row["seed"] == 0:
            trials[row["data"], row["budget"]].append(row)
        elif row["budget_met"] and row["method"] == "udc":
            udc[row["data"], row["budget"]].append(row["test_accuracy"])
    places = sorted(p for p in trials if len(trials[p]) > 1)
    if not places:
        return ""

    def accuracies(place, part: str) -> np.ndarray:
        # A trial that failed was paid for all the same.
        return np.array([row.get(f"{part}_accuracy", 0.0) for row in trials[place]])

    def draw(axes):
        for axis, data in zip(axes[0], dict.fromkeys(data for data, _ in places), strict=True):
            here = [place for place in places if place[0] == data]
            for colour, place in zip(_COLOURS, here, strict=False):
                curve = best_so_far(accuracies(place, "validation"), accuracies(place, "test"))
                label = f"{place[1]:,} bytes"
                axis.plot(1 + np.arange(len(curve)), 100 * curve, color=colour, label=label)
                if udc[place]:
                    axis.plot(1, 100 * np.mean(udc[place]), "*", color=colour, markersize=10)
            axis.set(title=data, xlabel="trials, each as long as a run of UDC")
            axis.legend()
        axes[0, 0].set(ylabel="test accuracy, %")

    panels = len({data for data, _ in places})
    name = picture(_figure(path, "random"), draw, (1, panels))
    said = (
        f"The runs of `{source}`, permuted {PERMUTATIONS} times: the best of so many trials "
        "(lines), UDC at its cost (stars)."
    )
    return f"## Random search\n\n{said}\n\n![random search]({name})"


def format_text(rows, path: pathlib.Path) -> str:
    groups = _grouped(rows, "format")
    if not groups:
        return ""
    curves = collections.defaultdict(list)
    for setting, found in groups.items():
        name, bits, density = setting.split(", ")
        scores = [100 * r["test_accuracy"] for r in found]
        curves[name, bits].append((float(density.rstrip("%")), np.mean(scores), np.std(scores)))

    def draw(axes):
        axis = axes[0, 0]
        colours = dict(zip(dict.fromkeys(bits for _, bits in curves), _COLOURS, strict=False))
        for (name, bits), points in curves.items():
            x, y, spread = zip(*sorted(points), strict=True)
            style = "-" if name == "Q^" else "--"
            axis.errorbar(
                x, y, spread, label=f"{name}, {bits}", color=colours[bits], linestyle=style
            )
        axis.set(
            title="Number format",
            xlabel="non-zero weights, %",
            ylabel="test accuracy, %",
            xscale="log",
        )
        axis.set_xticks(x, [f"{density:g}" for density in x])
        axis.minorticks_off()
        axis.legend()

    return f"## Number format\n\n![number format]({picture(_figure(path, 'format'), draw)})"


def variance_text(rows, path: pathlib.Path) -> str:
    found = _grouped(rows, "variance")
    if not found:
        return ""
    (row, *_), *_ = found.values()
    curves = collections.defaultdict(list)
    for name, value in row["largest_variance"].items():
        samples, tau = name.split(" samples, tau ")
        curves[tau].append((int(samples), value))

    def draw(axes):
        axis = axes[0, 0]
        for colour, (tau, points) in zip(_COLOURS, curves.items(), strict=False):
            x, y = zip(*sorted(points), strict=True)
            axis.plot(x, y, marker="o", color=colour, label=f"temperature {tau}")
        axis.set(
            title="Largest variance of the logits' gradient",
            xlabel="Monte-Carlo samples a step",
            ylabel="variance",
            xscale="log",
            yscale="log",
        )
        axis.set_xticks(x, [str(n) for n in x])
        axis.minorticks_off()
        axis.legend()

    name = picture(_figure(path, "variance"), draw)
    return f"## Gradient variance\n\n![gradient variance]({name})"


def cost_text() -> str:
    rows = Rows(RESULTS / "step_overhead.json").read()
    if not rows:
        return ""
    said = "Ratios of seconds, from `step_overhead.json`."
    return f"## Cost of a search step\n\n{said}\n\n{step_overhead.report(rows)}"


def _figure(path: pathlib.Path, kind: str) -> pathlib.Path:
    return path.with_name(f"{path.stem}_{kind}.png")
