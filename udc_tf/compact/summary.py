"""What a compact network's weights are, layer by layer."""

import dataclasses
from collections.abc import Callable

import keras
import numpy as np

from udc_tf.layers.inventory import kernel_layers


@dataclasses.dataclass(frozen=True)
class WeightSummary:
    """The deployed weights of one layer.

    Attributes:
        name: of the layer.
        bits: of a weight.
        weights: how many there are.
        nonzeros: how many are not zero.
        distinct: how many different values the non-zeros have.
        range: the width of the levels (beyond `beta`).
        beta: where the levels begin, the largest pruned |theta| in whole steps; 0 if plain.
        step: by which the integers are multiplied.
        entropy: of the integers, in bits per weight.
        predicted_bytes: weights * entropy / 8, what an ideal coder would make of them.
    """

    name: str
    bits: int
    weights: int
    nonzeros: int
    distinct: int
    range: float
    beta: float
    step: float
    entropy: float
    predicted_bytes: int


def entropy_of(codes: np.ndarray) -> float:
    """The empirical entropy of an array of integers, in bits per element.

    >>> entropy_of(np.array([0, 0, 1, -1]))
    1.5
    """
    _, counts = np.unique(codes, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def layer_summaries(network: keras.Model) -> list[WeightSummary]:
    """One entry for each layer with quantized weights."""
    summaries = []
    for layer in kernel_layers(network):
        integers = layer.integer_kernel()
        codes = integers.codes
        entropy = entropy_of(codes)
        magnitudes = np.abs(codes[codes != 0].astype(int))
        shifted = float(layer.beta.numpy()) > 0
        summaries.append(
            WeightSummary(
                name=layer.name,
                bits=layer.deployed_bits,
                weights=codes.size,
                nonzeros=integers.nonzeros,
                distinct=len(np.unique(codes[codes != 0])),
                range=layer.range,
                beta=float(magnitudes.min()) * integers.step if shifted else 0.0,
                step=integers.step,
                entropy=entropy,
                predicted_bytes=-(-int(np.ceil(codes.size * entropy)) // 8),
            )
        )
    return summaries


def summary_bits(network: keras.Model, print_fn: Callable[[str], None] = print) -> None:
    """Prints `layer_summaries` as a table, with a line for the whole network.

    Example:

    >>> from udc_tf.layers.compact_kernels import CompactDense
    >>> head = CompactDense(2, bits=1, kernel_initializer="ones", name="head")
    >>> summary_bits(keras.Sequential([keras.Input((3,)), head]))  # doctest: +ELLIPSIS
    layer  bits  weights  non-zeros  distinct  range  beta  step  bits/weight  bytes
    head      1        6          6         1      1     0     1         0.00      0
    total              6          6                                      0.00      0
    """
    summaries = layer_summaries(network)
    header = ["layer", "bits", "weights", "non-zeros", "distinct", "range", "beta", "step"]
    rows = [[*header, "bits/weight", "bytes"]]
    for s in summaries:
        numbers: list[int | str] = [s.bits, s.weights, s.nonzeros, s.distinct]
        numbers += [f"{v:.3g}" for v in (s.range, s.beta, s.step)]
        rows.append([s.name, *map(str, numbers), f"{s.entropy:.2f}", str(s.predicted_bytes)])
    weights, total = sum(s.weights for s in summaries), sum(s.predicted_bytes for s in summaries)
    nonzeros = sum(s.nonzeros for s in summaries)
    mean = sum(s.weights * s.entropy for s in summaries) / max(1, weights)
    rows.append(["total", "", str(weights), str(nonzeros), *[""] * 4, f"{mean:.2f}", str(total)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print_fn("  ".join(cells))
