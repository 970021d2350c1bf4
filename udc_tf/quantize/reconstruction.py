"""Rounding and pruning of a layer's weights that look at the layer's inputs.

The error that counts is not that of the weights but that of the outputs,

    sum over columns of (w - q)' H (w - q),      H the second moments of the inputs,

so an error in one weight can be made good in others that see similar inputs. `round_in_order` fixes
the weights one after the other and lets those to come take over the error (as Optimal Brain
Compression and GPTQ do: Frantar and Alistarh, arXiv:2208.11580, 2210.17323); `polish` then moves
single weights wherever that lowers the error. Both keep to the levels that the deployed format has
(`udc_tf.quantize.number_format`).

All arrays are [groups, inputs, columns]: one group for a convolution or a dense layer, one for each
channel of a depthwise convolution. Moments are [groups, inputs, inputs].
"""

import dataclasses

import numpy as np

from udc_tf.quantize.number_format import LARGEST_CODE
from udc_tf.quantize.quantizers import integer_levels

_DAMPING = 0.01  # of the mean of the diagonal: what keeps moments of few examples invertible
_DEAD = 1e-6  # of the largest group's mean: what a group counts at least
_BLOCK = 64
_SHRINKS = np.linspace(0.4, 1.0, 13)  # of the range that reaches the largest weight
_SMALLEST = 1e-12


@dataclasses.dataclass(frozen=True)
class Levels:
    """What a weight can be: zero where it is pruned, else sign * (lowest ... highest) * step.

    Attributes:
        steps: [groups, 1, columns].
        lowest, highest: whole numbers, of the same shape or one for all.
    """

    steps: np.ndarray
    lowest: np.ndarray | int
    highest: np.ndarray | int

    @classmethod
    def of(cls, steps: np.ndarray, bits: int, shift: int = 0) -> "Levels":
        """The levels of `bits` bits that begin `shift` steps away from zero.

        >>> levels = Levels.of(np.ones((1, 1, 1)), bits=2, shift=3)
        >>> levels.lowest, levels.highest
        (3, 4)
        """
        lowest = 1 if bits == 1 else shift
        return cls(steps, lowest, min(shift + integer_levels(bits), LARGEST_CODE))

    def codes(self, weights: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """The nearest whole numbers, as floats.

        >>> levels = Levels.of(np.full((1, 1, 1), 0.5), bits=2, shift=2)
        >>> levels.codes(np.array([[[-1.6], [0.2]]]))[0, :, 0].tolist()
        [-3.0, 2.0]
        """
        return self.rows(weights, mask, self.steps, self.lowest, self.highest)

    @staticmethod
    def rows(
        weights: np.ndarray,
        mask: np.ndarray | None,
        steps: np.ndarray,
        lowest: np.ndarray | int,
        highest: np.ndarray | int,
    ) -> np.ndarray:
        found = np.clip(np.rint(np.abs(weights) / steps), lowest, highest)
        found = np.where(weights < 0, -found, found)
        return found if mask is None else found * mask

    def rounded(self, weights: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        return self.codes(weights, mask) * self.steps


def damped(moments: np.ndarray) -> np.ndarray:
    """Moments with something added to the diagonal, in doubles; a dead input counts a little."""
    moments = np.asarray(moments, np.float64)
    diagonal = np.einsum("gkk->gk", moments)
    mean = diagonal.mean(axis=1, keepdims=True)
    largest = float(mean.max())
    added = _DAMPING * np.maximum(mean, _DEAD * largest if largest > 0 else 1.0)
    return moments + added[..., None] * np.eye(moments.shape[-1])


def inverse_factor(moments: np.ndarray) -> np.ndarray:
    """The upper triangle U with U'U the inverse of (damped) moments."""
    inverse = np.linalg.inv(moments)
    inverse = (inverse + inverse.swapaxes(1, 2)) / 2
    return np.linalg.cholesky(inverse).swapaxes(1, 2)


def output_errors(weights: np.ndarray, rounded: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """The mean squared error of each column's output, [groups, columns].

    >>> one = np.ones((1, 2, 1))
    >>> output_errors(one, 0 * one, np.eye(2)[None]).tolist()
    [[2.0]]
    """
    difference = weights - rounded
    return np.einsum("gkn,gkn->gn", difference, moments.astype(difference.dtype) @ difference)


def saliencies(weights: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """How much the outputs lose at least if a weight goes: w^2 over the inverse's diagonal."""
    diagonal = np.einsum("gjk,gjk->gk", factor, factor)
    return np.square(weights) / diagonal[..., None]


def fitted_levels(
    weights: np.ndarray,
    mask: np.ndarray | None,
    importance: np.ndarray,
    bits: int,
    per_column: bool,
) -> tuple[Levels, int]:
    """The levels with the least error, and their shift.

    Args:
        weights: [groups, inputs, columns].
        mask: which are kept, 1 or 0; None for all.
        importance: of a squared error of each weight, of the same shape.
        per_column: whether each column may have a step of its own.
    """
    best: tuple[float, Levels, int] | None = None
    for shift in _shifts(weights, mask, bits):
        levels, error = _fitted_steps(weights, mask, importance, bits, shift, per_column)
        if best is None or error < best[0]:
            best = error, levels, shift
    assert best is not None
    return best[1], best[2]


def _shifts(weights: np.ndarray, mask: np.ndarray | None, bits: int) -> list[int]:
    """Where levels may begin: at zero, or about where the kept weights do."""
    if mask is None or bits == 1:
        return [0]
    if bits == 8:
        return [0, 1]
    magnitude = np.where(mask > 0, np.abs(weights), np.nan)
    columns = magnitude.reshape(-1, magnitude.shape[-1])
    columns = columns[:, ~np.isnan(columns).all(axis=0)]
    ratio = float(np.median(np.nanmin(columns, axis=0) / np.nanmax(columns, axis=0)))
    found = {0, 1}
    for shrink in (0.6, 0.8, 1.0):
        if ratio < shrink:
            found.add(round(integer_levels(bits) * ratio / (shrink - ratio)))
    return sorted(s for s in found if s + integer_levels(bits) <= LARGEST_CODE)


def _fitted_steps(
    weights: np.ndarray,
    mask: np.ndarray | None,
    importance: np.ndarray,
    bits: int,
    shift: int,
    per_column: bool,
) -> tuple[Levels, float]:
    axes = (1,) if per_column else (0, 1, 2)
    largest = np.abs(weights if mask is None else weights * mask).max(axis=axes, keepdims=True)
    largest = np.where(largest > _SMALLEST, largest, max(float(largest.max()), _SMALLEST))
    errors, steps = [], []
    top = shift + integer_levels(bits)
    for shrink in _SHRINKS if bits < 8 else (1.0,):
        step = np.broadcast_to(
            largest * shrink / top, (*weights.shape[:1], 1, weights.shape[2])
        ).astype(weights.dtype)
        rest = weights - Levels.of(step, bits, shift).rounded(weights, mask)
        errors.append((importance * rest * rest).sum(axis=axes, keepdims=True))
        steps.append(step)
    chosen = np.argmin(errors, axis=0)
    stacked = np.stack(steps)
    index = np.broadcast_to(chosen, stacked.shape[1:])[None]
    found = np.take_along_axis(stacked, index, axis=0)[0]
    return Levels.of(found, bits, shift), float(np.min(errors, axis=0).sum())


def round_in_order(
    weights: np.ndarray, factor: np.ndarray, levels: Levels, mask: np.ndarray | None = None
) -> np.ndarray:
    """Rounds one input after the other; those to come take over the error.

    Args:
        weights: what the outputs should be computed with.
        factor: `inverse_factor` of the moments.
        levels: what a weight can be; there may be more columns than outputs, of several levels.
        mask: 1 for weights that are kept.

    Example:

    >>> moments = damped(np.array([[[1.0, 0.99], [0.99, 1.0]]]))
    >>> levels = Levels.of(np.ones((1, 1, 1)), bits=3)
    >>> weights = np.array([[[1.4], [1.4]]])
    >>> round_in_order(weights, inverse_factor(moments), levels)[0, :, 0].tolist()
    [1.0, 2.0]
    """
    factor = factor.astype(weights.dtype)
    waiting, done = weights.copy(), np.empty_like(weights)
    inputs = weights.shape[1]
    steps = levels.steps[:, 0]
    lowest, highest = (
        bound if isinstance(bound, int) else bound[:, 0]
        for bound in (levels.lowest, levels.highest)
    )
    for start in range(0, inputs, _BLOCK):
        end = min(start + _BLOCK, inputs)
        errors = np.empty_like(waiting[:, start:end])
        for k in range(start, end):
            row = waiting[:, k]
            kept = None if mask is None else mask[:, k]
            done[:, k] = Levels.rows(row, kept, steps, lowest, highest) * steps
            error = (row - done[:, k]) / factor[:, k, k, None]
            errors[:, k - start] = error
            waiting[:, k + 1 : end] -= factor[:, k, k + 1 : end, None] * error[:, None]
        if end < inputs:
            waiting[:, end:] -= factor[:, start:end, end:].swapaxes(1, 2) @ errors
    return done


def polish(
    weights: np.ndarray,
    rounded: np.ndarray,
    moments: np.ndarray,
    levels: Levels,
    mask: np.ndarray | None = None,
    sweeps: int = 4,
) -> np.ndarray:
    """Moves single weights to the level that is best beside all others, until none moves.

    The error never rises.
    """
    moments = moments.astype(weights.dtype)
    found = rounded.copy()
    slope = moments @ (found - weights)
    steps = levels.steps[:, 0]
    for _ in range(sweeps):
        moved = 0
        for k in range(weights.shape[1]):
            best = found[:, k] - slope[:, k] / moments[:, k, k, None]
            kept = None if mask is None else mask[:, k]
            new = Levels.rows(best, kept, steps, levels.lowest, levels.highest) * steps
            change = new - found[:, k]
            if not change.any():
                continue
            moved += 1
            found[:, k] = new
            slope += moments[:, :, k, None] * change[:, None]
        if not moved:
            break
    return found
