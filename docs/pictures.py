"""Draws the pictures of the explanations with the package's own functions: docs/pictures.py."""

import json
import pathlib

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from udc_tf.quantize.number_format import codes_of, shift_of, step_of
from udc_tf.quantize.quantizers import quantize
from udc_tf.report.style import BLUE, GREY, ORANGE, PALE, WIDTH, styled
from udc_tf.search.settings import SearchSettings
from udc_tf.training.schedules import exponential, linear

ROOT = pathlib.Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
MOBILENET_V2_WEIGHTS = 3_469_760  # in kernels, 1,000 classes


def levels() -> Figure:
    """Weights and the levels they are deployed as: plain, and beyond the pruned zone."""
    theta = np.random.default_rng(0).normal(0.0, 0.3, 4000).astype(np.float32)
    beta, r, bits = float(np.quantile(np.abs(theta), 0.5)), 0.9, 3
    kept = np.abs(theta) > beta
    step = step_of(tf.constant(r - beta), bits)
    shift = shift_of(tf.constant(beta), step, bits)
    beyond = codes_of(tf.constant(theta[kept]), step, shift, bits) * step
    plain = quantize(tf.constant(theta[kept]), bits, tf.constant(r))
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    rows = figure.subplots(2, 1, sharex=True)
    titles = ("3 bits, plain: levels fall where no weight is left", "3 bits beyond the pruned zone")
    for axes, title, values in zip(rows, titles, (plain, beyond), strict=True):
        axes.axvspan(-beta, beta, color=ORANGE, alpha=0.15, linewidth=0)
        axes.hist(theta, bins=80, color=PALE)
        axes.vlines(np.unique(np.round(values, 5)), 0, 60, color=BLUE, linewidth=2)
        axes.set_title(title)
        axes.set_yticks([])
        axes.grid(visible=False)
    rows[1].set_xlabel("weight; orange: pruned; blue: levels")
    return figure


def schedules() -> Figure:
    """How temperature, rejection and projection change over the steps after the warm-up."""
    paper = SearchSettings()
    progress = tf.linspace(0.0, 1.0, 50)
    figure = Figure(figsize=(WIDTH, 1.9), layout="constrained")
    curves = (
        ("softness of samples, tau", exponential(*paper.tau, progress)),
        ("most likely wins, vartheta", linear(*paper.vartheta, progress)),
        ("room above 1/K, xi", linear(*paper.xi, progress)),
    )
    for axes, (title, values) in zip(figure.subplots(1, 3), curves, strict=True):
        axes.plot(progress, values, color=BLUE)
        axes.set_title(title, fontsize=7)
        axes.set_ylim(0, 1.05 * float(np.max(values)))
        axes.set_xticks([0, 1], ["warm-up", "end"])
    return figure


def sizes() -> Figure:
    """MobileNetV2's compiled file by bits and non-zeros: Vela's bytes and s*b + H(s)."""
    rows = json.loads((ROOT / "benchmarks/results/size_mobilenet_v2.json").read_text())
    share = np.linspace(0.005, 0.999, 200)
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    axes = figure.subplots()
    rest = rows["1 bits, 1%"]["bytes"] - _bound(0.01, 1)  # scales, commands, container
    for bits in (1, 2, 4, 8):
        text = "s·b + H(s), and the rest of the file" if bits == 1 else None
        axes.plot(share, (rest + _bound(share, bits)) / 2**20, color=GREY, label=text)
        points = {
            s: rows[f"{bits} bits, {s}%"]["bytes"] / 2**20 for s in (1, 5, 10, 25, 50, 75, 100)
        }
        text = "compiled by Vela" if bits == 1 else None
        axes.plot(np.array(list(points)) / 100, points.values(), "o", color=ORANGE, label=text)
        axes.annotate(
            f"{bits} bit" + "s" * (bits > 1),
            (1.0, points[100]),
            (6, -3),
            textcoords="offset points",
        )
    axes.set_xlim(0, 1.12)
    axes.set_ylim(0, None)
    axes.set_xlabel("s, the share of weights that are not zero")
    axes.set_title("MobileNetV2 in flash, MiB")
    axes.legend(loc="upper left")
    return figure


def _bound(share, bits):
    """Bytes of MobileNetV2's kernels by s*b + H(s)."""
    entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    return MOBILENET_V2_WEIGHTS * (share * bits + entropy) / 8


def main() -> None:
    for name, draw in (
        ("levels", levels), ("schedules", schedules), ("sizes", sizes),
    ):  # fmt: skip
        with styled():
            draw().savefig(IMAGES / f"{name}.png", metadata={"Software": None})


if __name__ == "__main__":
    main()
