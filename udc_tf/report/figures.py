"""The figures of a report, each from plain numbers to a matplotlib figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from udc_tf.report.style import BLUE, GREEN, GREY, INK, ORANGE, PALE, WIDTH

_ROW = 0.24  # inches per layer
_MOST_HISTOGRAMS = 12
_NAMED_TENSORS = 3
_MOST_OPERATORS, _NAME = 40, 24  # with names below them, and of how many letters
_BUFFER = "WB_"  # as Vela names what it fetches weights into


def budget_figure(sizes: Mapping[str, float], budget: float | None) -> Figure:
    """Bytes as bars, against the budget."""
    figure = Figure(figsize=(WIDTH, 0.55 + 0.34 * len(sizes)), layout="constrained")
    axes = figure.subplots()
    names, values = list(sizes), np.array(list(sizes.values())) / 1024
    # The last bar is the file that goes into flash.
    colours = [PALE] * (len(values) - 1) + [BLUE]
    axes.barh(names, values, color=colours, height=0.62)
    _label(axes, values.tolist(), [f"{v:,.1f} KiB" for v in values], (budget or 0) / 1024)
    if budget is not None:
        axes.axvline(budget / 1024, color=ORANGE, linewidth=1.6)
        axes.set_title(f"budget {budget / 1024:,.1f} KiB", color=ORANGE)
    axes.set_xlim(0, 1.22 * max(values.max(), (budget or 0) / 1024))
    axes.set_xlabel("KiB")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


def shares_figure(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """What each budget is used to, as shares of it."""
    figure = Figure(figsize=(WIDTH, 0.6 + 0.34 * len(lines)), layout="constrained")
    axes = figure.subplots()
    shares = [100 * line["need"] / line["have"] for line in lines]
    colours = [BLUE if line["need"] <= line["have"] else ORANGE for line in lines]
    names = [line["what"].replace("sram", "SRAM") for line in lines]
    axes.barh(names, shares, color=colours, height=0.62)
    _label(axes, shares, [f"{line['need']:,} of {line['have']:,.0f}" for line in lines], 100)
    axes.axvline(100, color=ORANGE, linewidth=1.6)
    axes.set_xlim(0, 1.5 * max(100, *shares))
    axes.set_xlabel("% of the budget")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


def _label(axes: Axes, values: Sequence[float], texts: Sequence[str], line: float) -> None:
    """Texts behind horizontal bars and behind a line at the budget, which they leave to be seen."""
    for row, (value, text) in enumerate(zip(values, texts, strict=True)):
        end = (max(value, line), row)
        axes.annotate(text, end, (5, 0), textcoords="offset points", va="center", fontsize=8)


def memory_figure(tensors: Sequence[Mapping[str, Any]], budget: float | None) -> Figure:
    """Bytes of SRAM that are in use, operator by operator, and what is there at the peak."""
    times = np.arange(max(t["end"] for t in tensors) + 2)
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()

    def use(tensor: Mapping[str, Any]) -> np.ndarray:
        there = (tensor["start"] <= times) & (times <= tensor["end"])
        return there * tensor["bytes"] / 1024

    maps = [t for t in tensors if not t["name"].startswith(_BUFFER)]
    buffers = [t for t in tensors if t["name"].startswith(_BUFFER)]
    rows = [use(t) for t in (*maps, *buffers)]
    # Neighbours in two shades, so that one tensor can be told from the next.
    colours = [(BLUE, "#6aa5cd")[i % 2] for i in range(len(maps))] + [GREEN] * len(buffers)
    axes.stackplot(times / 2, *rows, colors=colours, step="post", linewidth=0)
    total = np.sum(rows, axis=0)
    peak = int(total.argmax())
    there = sorted((t for t in maps if t["start"] <= peak <= t["end"]), key=lambda t: -t["bytes"])[
        :_NAMED_TENSORS
    ]
    names = ", ".join(t["name"][-28:] for t in there)
    axes.set_title(f"SRAM in use: at most {total[peak]:,.1f} KiB, with {names}", fontsize=7.5)
    axes.set_ylabel("KiB")
    shown: list[Artist] = [
        Patch(color=BLUE, label="feature maps"),
        Patch(color=GREEN, label="buffered weights"),
    ]
    if budget is not None:
        shown.append(axes.axhline(budget / 1024, color=ORANGE, linewidth=1.6, label="budget"))
    axes.set_xlim(0, times[-1] / 2)
    axes.set_ylim(0, 1.12 * max(total[peak], (budget or 0) / 1024))
    makers = _makers(maps)
    if len(makers) <= _MOST_OPERATORS:
        places = [number + 0.5 for number in makers]
        axes.set_xticks(places, list(makers.values()), rotation=40, ha="right", fontsize=7)
        axes.grid(axis="x", visible=False)
    axes.set_xlabel("operator, in the order in which they run")
    figure.legend(handles=shown, loc="outside lower center", ncols=len(shown), fontsize=7)
    return figure


def _makers(maps: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """The numbers of operators whose results are in SRAM, and their names.

    >>> _makers([dict(name="image", start=0, end=1), dict(name="conv", start=0, end=3)])
    {0: 'conv'}
    """
    latest: dict[int, Mapping[str, Any]] = {}
    for tensor in maps:
        if tensor["start"] % 2 == 0:  # between them there is only what is fetched
            other = latest.get(tensor["start"] // 2)
            # An operator's result outlives what else is there from its beginning.
            if other is None or tensor["end"] >= other["end"]:
                latest[tensor["start"] // 2] = tensor
    return {number: tensor["name"][-_NAME:] for number, tensor in latest.items()}


def front_figure(points: Sequence[tuple[float, float]], label: str) -> Figure:
    """Score against bytes of flash, one point per budget."""
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes = figure.subplots()
    flash, score = zip(*sorted(points), strict=True)
    axes.plot(np.array(flash) / 1024, score, "o-", color=BLUE, linewidth=1.5, markersize=6)
    axes.set_xlabel("flash, KiB")
    axes.set_title(label)
    axes.margins(x=0.08, y=0.15)
    return figure


def scatter_figure(points: Mapping[str, tuple[float, float]], label: str) -> Figure:
    """Score against bytes of flash, one named point per run."""
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, (flash, score) in points.items():
        axes.plot(flash / 1024, score, "o", color=BLUE, markersize=6)
        axes.annotate(name, (flash / 1024, score), (5, 4), textcoords="offset points", fontsize=7)
    axes.set_xlabel("flash, KiB")
    axes.set_title(label)
    axes.margins(x=0.15, y=0.15)
    return figure


def decisions_figure(layers: Sequence[Mapping]) -> Figure:
    """Width, bits and non-zeros of each layer, as in the figures of the UDC paper."""
    names = [layer["name"] for layer in layers]
    figure = Figure(figsize=(WIDTH, 0.75 + _ROW * len(layers)), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    widths = [100 * layer["outputs"] / layer["original_outputs"] for layer in layers]
    bits = [layer["bits"] for layer in layers]
    nonzeros = [100 * layer["nonzeros"] for layer in layers]
    for axes, title, values, full in (
        (panels[0], "width, %", widths, 100),
        (panels[1], "bits", bits, 8),
        (panels[2], "non-zeros, %", nonzeros, 100),
    ):
        axes.barh(names, [full] * len(names), color=PALE, height=0.68)
        bars = axes.barh(names, values, color=BLUE, height=0.68)
        axes.bar_label(bars, [f"{v:.0f}" for v in values], padding=2, fontsize=7)
        axes.set_title(title)
        axes.set_xlim(0, full * 1.18)
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
    panels[0].invert_yaxis()
    panels[0].tick_params(axis="y", labelsize=8)
    return figure


def bytes_figure(rows: Sequence[tuple[str, float, float | None]]) -> Figure:
    """Predicted bytes of each layer's weights beside what Vela stores."""
    names = [name for name, _, _ in rows]
    compiled = any(vela is not None for _, _, vela in rows)
    figure = Figure(figsize=(WIDTH, 0.8 + _ROW * 1.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    at = np.arange(len(rows))
    shift = 0.2 if compiled else 0.0
    predicted = [p for _, p, _ in rows]
    axes.barh(at - shift, predicted, 0.38, color=GREY, label="predicted")
    if compiled:
        values = [v or 0 for _, _, v in rows]
        axes.barh(at + shift, values, 0.38, color=BLUE, label="Vela")
    axes.set_yticks(at, names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("bytes")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    return figure


def histograms_figure(layers: Sequence[Mapping]) -> Figure:
    """Weights before quantization, with the levels they go to and the pruned zone.

    Args:
        layers: for each its `name`, `bits`, `theta` (flat), `levels` and `beta`.
    """
    shown = list(layers)[:_MOST_HISTOGRAMS]
    rows = -(-len(shown) // 2)
    figure = Figure(figsize=(WIDTH, 1.5 * rows), layout="constrained")
    panels = np.atleast_1d(figure.subplots(rows, 2, squeeze=False)).ravel()
    for axes in panels[len(shown) :]:
        axes.axis("off")
    for axes, layer in zip(panels, shown, strict=False):
        theta, levels = np.asarray(layer["theta"]), np.asarray(layer["levels"])
        reach = max(np.abs(theta).max(), np.abs(levels).max(), 1e-9) * 1.05
        axes.hist(theta, bins=61, range=(-reach, reach), color=PALE, edgecolor="none")
        if layer["beta"] > 0:
            axes.axvspan(-layer["beta"], layer["beta"], color=ORANGE, alpha=0.18, linewidth=0)
        top = axes.get_ylim()[1]
        axes.vlines(levels, 0, top * 0.12, color=BLUE, linewidth=1.0)
        axes.set_title(f"{layer['name']}: {layer['bits']} bits", fontsize=8)
        axes.set_yticks([])
        axes.tick_params(axis="x", labelsize=7)
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
    return figure


def search_figure(history: Sequence[Mapping[str, float]], metric: str, label: str) -> Figure:
    """How a search went: the task, the size, and how decided it is."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    task, size, entropy = figure.subplots(3, 1, sharex=True)
    _curve(task, history, metric, BLUE, "training")
    _curve(task, history, f"val_{metric}", ORANGE, "validation, most likely network", marker=".")
    task.set_title(label)
    task.legend(loc="best")
    _curve(size, history, "expected_ratio", GREY, "on average")
    _curve(size, history, "argmax_ratio", BLUE, "most likely network")
    size.axhline(1, color=ORANGE, linewidth=1.2)
    size.set_title("size / budget")
    size.legend(loc="best")
    _curve(entropy, history, "entropy", GREEN, None)
    entropy.set_title("entropy of the decisions")
    entropy.set_xlabel("epoch of the search")
    return figure


def finetune_figure(history: Sequence[Mapping[str, float]], metric: str, label: str) -> Figure:
    """How finetuning went, stage by stage."""
    figure = Figure(figsize=(WIDTH, 2.2), layout="constrained")
    axes = figure.subplots()
    _curve(axes, history, metric, BLUE, "training")
    _curve(axes, history, f"val_{metric}", ORANGE, "validation")
    epochs = [row["epoch"] + 1 for row in history]
    stages = [row.get("stage") for row in history]
    for before, after, epoch in zip(stages, stages[1:], epochs[1:], strict=False):
        if before != after:
            axes.axvline(epoch - 0.5, color=INK, linewidth=0.8, linestyle=":")
    axes.set_title(f"{label}, dotted: next stage")
    axes.set_xlabel("epoch of finetuning")
    axes.legend(loc="best")
    return figure


def probabilities_figure(probabilities: Mapping[str, tuple[list, list]]) -> Figure:
    """How sure the search was: the probability of each option, the chosen ones outlined."""
    kinds: dict[str, list[tuple[str, list, list]]] = {}
    for name, (options, values) in probabilities.items():
        kind, _, subject = name.partition("/")
        kinds.setdefault(kind, []).append((subject, options, values))
    heights = [len(rows) for rows in kinds.values()]
    figure = Figure(figsize=(WIDTH, 0.6 * len(kinds) + _ROW * sum(heights)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(kinds), 1, height_ratios=heights))
    for axes, (kind, rows) in zip(panels, kinds.items(), strict=True):
        columns = max(len(values) for _, _, values in rows)
        table = np.full((len(rows), columns), np.nan)
        for i, (_, _, values) in enumerate(rows):
            table[i, : len(values)] = values
        axes.imshow(table, aspect="auto", cmap="Blues", vmin=0, vmax=1)
        axes.set_yticks(range(len(rows)), [subject for subject, _, _ in rows], fontsize=7)
        longest = max((options for _, options, _ in rows), key=len)
        axes.set_xticks(range(columns), [f"{o:.2g}" for o in longest], fontsize=7)
        best = [int(np.argmax(values)) for _, _, values in rows]
        axes.plot(best, range(len(rows)), "o", color=ORANGE, markersize=3)
        axes.set_title(kind)
        axes.grid(visible=False)
    return figure


def _curve(
    axes: Axes,
    history: Sequence[Mapping[str, float]],
    name: str,
    colour: str,
    label: str | None,
    **style: Any,
) -> None:
    points = [(row["epoch"] + 1, row[name]) for row in history if name in row]
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=colour, label=label, linewidth=1.5, **style)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
