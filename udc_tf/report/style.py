"""How figures look: made narrow, so that they can be read on a phone and two fit on a page."""

import contextlib
from collections.abc import Iterator
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no screen is needed

INK, BLUE, ORANGE, GREY, GREEN, PALE = (
    "#1f2933", "#0b69a3", "#de6a26", "#9aa5b1", "#2f8132", "#dce6ef",
)  # fmt: skip
WIDTH = 5.4
_SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.dpi": 150,
    "savefig.facecolor": "white",
    "svg.hashsalt": "udc",
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    with matplotlib.rc_context(_SETTINGS):
        yield
