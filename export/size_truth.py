"""What each layer's weights take, by theory and in fact, side by side.

- bound: s*b + H(s) bits per weight, what the search counts with;
- entropy: of the codes as they are, what an ideal coder that knows their histogram needs;
- coded: the mask through a real arithmetic coder plus the non-zeros at `b` bits each;
- vela: the encoded weight stream in the compiled file.
"""

import dataclasses

import numpy as np

from udc_tf.cost.counts import binary_entropy
from udc_tf.export.integer_network import IntegerNetwork, Kernel
from udc_tf.export.vela import VelaResult


@dataclasses.dataclass(frozen=True)
class LayerSize:
    """Bytes of one layer's weights.

    Attributes:
        coded_bytes: None where the package `constriction` is not installed.
        vela_bytes: None where Vela did not say.
    """

    layer: str
    kind: str
    weights: int
    nonzeros: int
    bits: int
    bound_bytes: float
    entropy_bytes: float
    coded_bytes: float | None
    vela_bytes: int | None

    @property
    def vela_bits_per_weight(self) -> float | None:
        return None if self.vela_bytes is None else 8 * self.vela_bytes / self.weights


def layer_sizes(network: IntegerNetwork, compiled: VelaResult | None = None) -> list[LayerSize]:
    """One entry per layer with weights, in the order of the network.

    Weights that several operators share, such as the steps of a recurrent layer, are in the file
    once, and so they are here; twice if Vela has coded them in two ways.
    """
    stored = {} if compiled is None else compiled.weight_bytes
    sizes, known = [], set[tuple[str, bytes, int | None]]()
    for index, step in enumerate(network.steps):
        if step.kernel is None:
            continue
        kernel = step.kernel
        identity = (kernel.layer, kernel.codes.tobytes(), stored.get(index))
        if identity in known:
            continue
        known.add(identity)
        bits = effective_bits(kernel)
        share = kernel.nonzeros / kernel.codes.size
        bound = kernel.codes.size * (share * bits + binary_entropy(share)) / 8
        mask = arithmetic_coded_bytes(kernel.codes != 0)
        sizes.append(
            LayerSize(
                layer=step.name,
                kind=step.kind,
                weights=kernel.codes.size,
                nonzeros=kernel.nonzeros,
                bits=bits,
                bound_bytes=round(bound, 1),
                entropy_bytes=round(empirical_entropy(kernel.codes) * kernel.codes.size / 8, 1),
                coded_bytes=None if mask is None else round(mask + kernel.nonzeros * bits / 8, 1),
                vela_bytes=stored.get(index),
            )
        )
    return sizes


def effective_bits(kernel: Kernel) -> int:
    """Bits that the layer was given, 8 for one that was never searched."""
    return min(kernel.bits or 8, 8)


def empirical_entropy(codes: np.ndarray) -> float:
    """Bits per symbol of the codes' own histogram.

    >>> empirical_entropy(np.array([1, -1, 1, -1]))
    1.0
    """
    _, counts = np.unique(codes, return_counts=True)
    shares = counts / codes.size
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def arithmetic_coded_bytes(mask: np.ndarray) -> float | None:
    """Bytes of a mask from a range coder that knows the share of ones; None without the package.

    The share itself takes 16 bits.
    """
    try:
        import constriction
    except ImportError:
        return None
    symbols = np.ascontiguousarray(mask, np.int32).ravel()
    share = float(symbols.mean())
    if share in (0.0, 1.0):
        return 2.0
    encoder = constriction.stream.queue.RangeEncoder()
    model = constriction.stream.model.Bernoulli(share, perfect=False)
    encoder.encode(symbols, model)
    return 2.0 + encoder.num_bits() / 8


def table(sizes: list[LayerSize]) -> str:
    """The sizes as text, in bits per weight, with totals in bytes."""
    rows: list[tuple[str, ...]] = [
        ("layer", "weights", "bits", "non-zeros", "s*b+H(s)", "entropy", "coded", "Vela")
    ]

    def bits(number: float | None, weights: int) -> str:
        return "-" if number is None else f"{8 * number / weights:.2f}"

    for s in sizes:
        numbers = (s.bound_bytes, s.entropy_bytes, s.coded_bytes, s.vela_bytes)
        rows.append(
            (
                s.layer,
                f"{s.weights:,}",
                str(s.bits),
                f"{s.nonzeros / s.weights:.1%}",
                *(bits(n, s.weights) for n in numbers),
            )
        )
    totals = [
        [getattr(s, name) or 0 for s in sizes]
        for name in ("bound_bytes", "entropy_bytes", "coded_bytes", "vela_bytes")
    ]
    rows.append(
        (
            "bytes in all",
            f"{sum(s.weights for s in sizes):,}",
            "",
            "",
            *(f"{sum(t):,.0f}" for t in totals),
        )
    )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(r, widths, strict=True))
        )
        for r in rows
    )
