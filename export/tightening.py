"""Makes a compact network a little smaller where that changes its kernels least.

Two kinds of moves: fewer non-zeros in a layer (the mask is recomputed), or one bit less. The harm
of a move is the share of the kernel's energy that it changes and, where a search left them, how
many nats less probable its options are; moves with the least harm for the bytes they save come
first. Bytes beyond those that are needed are a loss, not a gain, so that the budget stays in use.
"""

import dataclasses
from collections.abc import Collection, Mapping

import keras
import numpy as np

from udc_tf.export.size_truth import empirical_entropy
from udc_tf.layers.compact_kernels import CompactKernel

_JUMPS = (0.99, 0.96, 0.8, 0.5, 0.2)  # non-zeros that stay in one move
_FEWEST = 0.01  # fraction of non-zeros
_MOST_MOVES = 4000
_LEAST_PROBABILITY = 1e-6

Probabilities = Mapping[str, Mapping[float, float]]  # as `SearchModel.probabilities` gives them


@dataclasses.dataclass(frozen=True)
class Move:
    """One change of one layer."""

    layer: str
    nonzeros: float
    bits: int
    saves_bytes: float
    harm: float


def compact_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers that can be tightened."""
    return [layer for layer in model.layers if hasattr(layer, "integer_kernel")]


def tighten(
    model: keras.Model,
    bytes_to_save: float,
    efficiency: Mapping[str, float],
    probabilities: Probabilities | None = None,
    only: Collection[str] | None = None,
) -> list[Move]:
    """Changes `model` until it should have become smaller by `bytes_to_save`.

    Args:
        model: a compact network; its layers' bits, fractions of non-zeros and masks change.
        bytes_to_save: of encoded weights.
        efficiency: layer -> what Vela stored over the entropy of the codes, from the last compile.
        probabilities: decision -> option -> probability, from the search.
        only: names of the layers to change; all by default.

    Returns:
        What was done, layer by layer; empty if nothing smaller is possible.
    """
    layers = {x.name: x for x in compact_layers(model) if only is None or x.name in only}

    def moves_of(name: str) -> list[Move]:
        return _moves(layers[name], efficiency.get(name, 1.1), probabilities or {})

    candidates = {name: moves_of(name) for name in layers}
    done: dict[str, Move] = {}
    saved = 0.0
    for _ in range(_MOST_MOVES):
        needed = bytes_to_save - saved
        open_moves = [m for moves in candidates.values() for m in moves]
        if needed <= 0 or not open_moves:
            break
        move = min(open_moves, key=lambda m: (_price(m, needed), m.layer))
        _apply(layers[move.layer], move)
        saved += move.saves_bytes
        before = done.get(move.layer)
        done[move.layer] = dataclasses.replace(
            move,
            saves_bytes=move.saves_bytes + (before.saves_bytes if before else 0),
            harm=move.harm + (before.harm if before else 0),
        )
        candidates[move.layer] = moves_of(move.layer)
    return list(done.values())


def _price(move: Move, needed: float) -> float:
    """Harm for each byte; the larger, the more of the budget would be left unused."""
    return move.harm / min(move.saves_bytes, needed) * max(move.saves_bytes / needed, 1.0)


def _apply(layer: CompactKernel, move: Move) -> None:
    layer.bits, layer.nonzeros = move.bits, move.nonzeros
    layer.refresh_mask()


def preference(probabilities: Probabilities, layer: str, bits: int, nonzeros: float) -> float:
    """Log-probability of a layer's bits and non-zeros, between options along a line.

    >>> pi = {"sparsity/conv": {0.1: 0.2, 0.5: 0.8}}
    >>> [round(preference(pi, "conv", 4, s), 2) for s in (0.1, 0.3, 0.5)]
    [-1.61, -0.92, -0.22]
    """
    total = 0.0
    for kind, value in (("bits", bits), ("sparsity", nonzeros)):
        options = sorted(probabilities.get(f"{kind}/{layer}", {}).items())
        if options:
            values, shares = zip(*options, strict=True)
            logs = np.log(np.maximum(shares, _LEAST_PROBABILITY))
            total += float(np.interp(value, values, logs))
    return total


def _moves(layer: CompactKernel, efficiency: float, probabilities: Probabilities) -> list[Move]:
    """What could be done to a layer; it is left as it was."""
    old = layer.bits, layer.nonzeros
    state = {v.name: v.numpy() for v in (layer.mask, layer.beta, layer.log_range)}
    codes, kernel = _kernel(layer)
    size = empirical_entropy(codes) * codes.size / 8 * efficiency
    energy = float((kernel**2).sum()) or 1.0
    now = np.count_nonzero(codes) / codes.size
    liked = preference(probabilities, layer.name, min(old[0], 8), now)
    options = [(old[0], max(now * f, _FEWEST)) for f in _JUMPS if now * f * codes.size >= 1]
    if min(old[0], 8) > 1:
        options.append((min(old[0], 8) - 1, old[1]))
    moves = []
    for bits, nonzeros in options:
        layer.bits, layer.nonzeros = bits, nonzeros
        layer.refresh_mask()
        new_codes, new_kernel = _kernel(layer)
        saves = size - empirical_entropy(new_codes) * codes.size / 8 * efficiency
        harm = float(((new_kernel - kernel) ** 2).sum()) / energy
        less = liked - preference(probabilities, layer.name, min(bits, 8), nonzeros)
        harm += max(less, 0.0)
        if saves > 0.5:
            moves.append(Move(layer.name, nonzeros, bits, saves, harm))
        for variable in (layer.mask, layer.beta, layer.log_range):
            variable.assign(state[variable.name])
    layer.bits, layer.nonzeros = old
    return moves


def _kernel(layer: CompactKernel) -> tuple[np.ndarray, np.ndarray]:
    kernel = layer.integer_kernel()
    return kernel.codes, kernel.codes.astype(np.float64) * kernel.step
