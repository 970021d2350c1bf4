"""What accuracy depends on: a linear fit to the networks that the comparison has trained.

    python -m benchmarks.compare.landscape      # from compare.json; writes compare_landscape.md

Of every network whose layers are known (uniform ones, and what UDC and plain search chose) the
features are means over its layers, each layer counting alike: halvings of its channels and of its
weights, shares of layers with few bits; and whether a search took an epoch of its training. What
the fit says of halvings is about what `udc_tf.search.start` takes for harm. Accuracies are those on
validation images.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import harness
from benchmarks.compare.methods import parse_uniform
from benchmarks.harness import Row, Rows, table, write

_METHODS = ("uniform", "int8_full", "udc", "dnas")
FEATURES = (
    "halved channels",
    "1/width - 1",
    "halved weights",
    "their square",
    "4 bits",
    "2 bits",
    "1 bit",
    "searched",
)


def layers_of(row: Row) -> np.ndarray:
    """Channels, bits and non-zeros of all layers; of uniform networks the ends are dense int8."""
    if "layers" in row:
        return np.asarray(row["layers"], float)
    inner, ends = parse_uniform(row["setting"]), (8, 1.0)
    last = len(row["channels"]) - 1
    return np.asarray(
        [(c, *(ends if i in (0, last) else inner)) for i, c in enumerate(row["channels"])], float
    )


def features(row: Row, widest: np.ndarray) -> np.ndarray:
    """Means over layers; `widest` has the channels of the network at full width.

    >>> uniform = {"method": "uniform", "setting": "4 bits, 50%", "channels": [2, 4, 4, 10]}
    >>> features(uniform, np.array([4, 8, 8, 10])).tolist()
    [1.0, 1.0, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0]
    """
    channels, bits, nonzeros = layers_of(row).T
    wider = (widest / channels)[:-1]  # the last layer's are the classes
    halved = np.log2(1 / nonzeros)
    columns = (np.log2(wider), wider - 1, halved, halved**2, bits == 4, bits == 2, bits == 1)
    searched = row["method"] in ("udc", "dnas")
    return np.array([*(np.mean(c) for c in columns), float(searched)])


def fit(rows: Mapping[str, Row], data: str, epochs: int = 12) -> dict:
    """Coefficients in points of accuracy, the first that of the network at full width, and errors.

    `error` is the root mean square of what is left if each network is told by the others.
    """
    like = [r for r in rows.values() if (r["data"], r["epochs"]) == (data, epochs)]
    like = [r for r in like if r["method"] in _METHODS and "validation_accuracy" in r]
    widest = next(layers_of(r)[:, 0] for r in like if r["method"] == "int8_full")
    inputs = np.stack([np.concatenate([[1.0], features(r, widest)]) for r in like])
    accuracies = np.array([100 * r["validation_accuracy"] for r in like])
    inverse = np.linalg.pinv(inputs)
    coefficients = inverse @ accuracies
    left = accuracies - inputs @ coefficients
    untold = left / (1 - np.einsum("ij,ji->i", inputs, inverse))
    return {
        "networks": len(like),
        "coefficients": coefficients,
        "explained": 1 - left.var() / accuracies.var(),
        "error": float(np.sqrt(np.mean(untold**2))),
        "seeds": _between_seeds(like),
    }


def _between_seeds(rows: list[Row]) -> float:
    """The standard deviation between runs that differ in their seed only, over all of them."""
    groups = {}
    for row in rows:
        key = row["method"], row["setting"], row["budget"]
        groups.setdefault(key, []).append(100 * row["validation_accuracy"])
    variances = [np.var(g, ddof=1) for g in groups.values() if len(g) > 1]
    return float(np.sqrt(np.mean(variances))) if variances else float("nan")


def cost(coefficients: np.ndarray, kind: str, halvings: float) -> float:
    """Points that so many halvings of all layers' channels or weights cost."""
    named = dict(zip(FEATURES, coefficients[1:], strict=True))
    if kind == "channels":
        return named["halved channels"] * halvings + named["1/width - 1"] * (2**halvings - 1)
    return named["halved weights"] * halvings + named["their square"] * halvings**2


def report(rows: Mapping[str, Row], names: Sequence[str] = ("fashion", "cifar")) -> str:
    found = [fit(rows, name) for name in names]
    coefficients = [f["coefficients"] for f in found]
    lines = [
        ("networks", *(str(f["networks"]) for f in found)),
        ("at full width, dense, 8 bits", *(f"{c[0]:.1f}" for c in coefficients)),
    ]
    for kind, share, halvings in (
        ("channels", "half of them", 1.0),
        ("channels", "a quarter", 2.0),
        ("weights", "half of them", 1.0),
        ("weights", "a fifth", np.log2(5)),
        ("weights", "a tenth", np.log2(10)),
    ):
        costs = (f"{cost(c, kind, halvings):+.1f}" for c in coefficients)
        lines.append((f"{kind} of all layers, {share}", *costs))
    for number, name in enumerate(FEATURES[4:], start=5):
        lines.append((name, *(f"{c[number]:+.1f}" for c in coefficients)))
    lines += [
        ("variance explained", *(f"{f['explained']:.0%}" for f in found)),
        ("error for networks left out", *(f"{f['error']:.1f}" for f in found)),
        ("standard deviation between seeds", *(f"{f['seeds']:.1f}" for f in found)),
    ]
    return table(("points of validation accuracy", *names), lines)


def run(rows: Rows) -> str:
    path = rows.path
    head = f"Made by `python -m benchmarks.compare.landscape` from `{path.name}`."
    text = f"# What accuracy depends on\n\n{head}\n\n{report(rows.read())}"
    return write(path.with_name(f"{path.stem}_landscape.md"), text)


if __name__ == "__main__":
    harness.main(run, "compare")
