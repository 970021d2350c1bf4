"""Gives a compact network more bits or non-zeros where that brings its kernels nearest to theta.

The opposite of `tightening`: what is left of a flash budget goes to the layers whose kernels it
improves most for each byte. Weights that were pruned come back as they last were; a short finetune
afterwards makes use of them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from udc_tf.export.size_truth import empirical_entropy
from udc_tf.export.tightening import Move, compact_layers
from udc_tf.layers.compact_kernels import CompactKernel

_MORE = (1.1, 1.3, 1.6, 2.0)  # times the non-zeros
_MOST_BITS = 8
_MOST_MOVES = 1000


def grow(model: keras.Model, bytes_to_use: float, efficiency: Mapping[str, float]) -> list[Move]:
    """Changes `model` until it should have become larger by nearly `bytes_to_use`.

    Args:
        model: a compact network; its layers' bits, fractions of non-zeros and masks change.
        bytes_to_use: of encoded weights.
        efficiency: layer -> what Vela stored over the entropy of the codes, from the last compile.

    Returns:
        What was done, layer by layer; `saves_bytes` and `harm` are negative.
    """
    layers = {layer.name: layer for layer in compact_layers(model)}
    candidates = {n: _moves(layer, efficiency.get(n, 1.1)) for n, layer in layers.items()}
    done: dict[str, Move] = {}
    for _ in range(_MOST_MOVES):
        open_moves = [
            m for moves in candidates.values() for m in moves if -m.saves_bytes <= bytes_to_use
        ]
        if not open_moves:
            break
        move = min(open_moves, key=lambda m: (m.harm / -m.saves_bytes, m.layer))
        layer = layers[move.layer]
        layer.bits, layer.nonzeros = move.bits, move.nonzeros
        layer.refresh_mask()
        bytes_to_use += move.saves_bytes
        before = done.get(move.layer)
        done[move.layer] = dataclasses.replace(
            move,
            saves_bytes=move.saves_bytes + (before.saves_bytes if before else 0),
            harm=move.harm + (before.harm if before else 0),
        )
        candidates[move.layer] = _moves(layer, efficiency.get(move.layer, 1.1))
    return list(done.values())


def advice(moves: Sequence[Move]) -> str:
    """What would use the bytes that are left, in a sentence."""
    if not moves:
        return "No layer can take more bits or non-zeros: search with a wider network or space."
    named = ", ".join(f"{m.layer} {m.bits} bits and {m.nonzeros:.0%}" for m in moves[:3])
    return (
        "Fit the size model before the search (udc_tf.export.fit_size_model), or export with "
        f"grow_rounds=2 and recover=: {named} non-zeros would use them."
    )


def _moves(layer: CompactKernel, efficiency: float) -> list[Move]:
    """What could be done to a layer; it is left as it was."""
    old = layer.bits, layer.nonzeros
    state = {v.name: v.numpy() for v in (layer.mask, layer.beta, layer.log_range)}
    theta = layer.theta.numpy().astype(np.float64)
    energy = float((theta**2).sum()) or 1.0

    def size_and_error() -> tuple[float, float]:
        kernel = layer.integer_kernel()
        values = kernel.codes.astype(np.float64) * kernel.step
        size = empirical_entropy(kernel.codes) * kernel.codes.size / 8 * efficiency
        return size, float(((values.reshape(theta.shape) - theta) ** 2).sum()) / energy

    size, error = size_and_error()
    options = [(old[0], min(old[1] * more, 1.0)) for more in _MORE if old[1] < 1]
    if old[0] < _MOST_BITS:
        options.append((old[0] + 1, old[1]))
    moves = []
    for bits, nonzeros in options:
        layer.bits, layer.nonzeros = bits, nonzeros
        layer.refresh_mask()
        larger, nearer = size_and_error()
        if larger > size + 0.5 and nearer < error:
            moves.append(Move(layer.name, nonzeros, bits, size - larger, nearer - error))
        for variable in (layer.mask, layer.beta, layer.log_range):
            variable.assign(state[variable.name])
    layer.bits, layer.nonzeros = old
    return moves
