"""One layer's weights for one option: which stay, on what levels, rounded how."""

import dataclasses

import numpy as np

from udc_tf.compress.input_moments import Moments
from udc_tf.compress.storage_options import Option
from udc_tf.quantize import masks, reconstruction
from udc_tf.quantize.reconstruction import Levels

_COLUMNS = 1 << 22  # numbers that are rounded together


@dataclasses.dataclass(frozen=True)
class Rounded:
    """Weights as they can be stored.

    Attributes:
        weights: [groups, inputs, columns].
        levels: what they can be.
        shift: where the levels begin.
        mask: which stay; None for all.
    """

    weights: np.ndarray
    levels: Levels
    shift: int
    mask: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A kernel, what it sees and what its outputs matter.

    Attributes:
        weights: [groups, inputs, columns].
        moments: of its inputs, damped.
        factor: `reconstruction.inverse_factor` of them.
        importance: of the outputs, [groups, columns].
        per_column: whether each column may have a step of its own: a batch norm takes it up.
    """

    weights: np.ndarray
    moments: np.ndarray
    factor: np.ndarray
    importance: np.ndarray
    per_column: bool

    @classmethod
    def of(
        cls,
        weights: np.ndarray,
        moments: Moments,
        importance: np.ndarray,
        per_column: bool,
        follow: bool = False,
    ) -> "Matrix":
        """
        Args:
            follow: change the weights to what gives the original's outputs from the inputs that the
                compressed network has.
        """
        damped = reconstruction.damped(moments.second)
        if follow:
            added = damped - moments.second
            wanted = (moments.cross + added) @ weights
            weights = np.linalg.solve(damped, wanted)
        importance = importance.reshape(weights.shape[0], weights.shape[2])
        # A channel without a gradient (of few examples) is not worth nothing.
        importance = np.maximum(importance, 1e-3 * max(float(importance.mean()), 1e-12))
        return cls(
            weights.astype(np.float32),
            damped,
            reconstruction.inverse_factor(damped),
            importance.astype(np.float32),
            per_column,
        )

    def error(self, rounded: np.ndarray) -> float:
        """What weights cost at the network's outputs, as far as this layer can tell."""
        errors = reconstruction.output_errors(self.weights, rounded, self.moments)
        return float((errors * self.importance).sum())

    def mask(self, nonzeros: float) -> np.ndarray | None:
        """The weights that are missed most."""
        if nonzeros >= 1:
            return None
        worth = reconstruction.saliencies(self.weights, self.factor) * self.importance[:, None]
        count = masks.kept(nonzeros, worth.size)
        return masks.largest(worth.astype(np.float32), count).astype(np.float32)

    def levels(self, option: Option, mask: np.ndarray | None) -> tuple[Levels, int]:
        diagonal = np.einsum("gkk->gk", self.moments).astype(np.float32)
        importance = diagonal[..., None] * self.importance[:, None]
        return reconstruction.fitted_levels(
            self.weights, mask, importance, option.deployed_bits, self.per_column
        )

    def nearest(self, option: Option) -> Rounded:
        """The largest weights, each at its nearest level."""
        mask = None
        if option.nonzeros < 1:
            count = masks.kept(option.nonzeros, self.weights.size)
            mask = masks.largest(np.abs(self.weights), count).astype(np.float32)
        levels, shift = self.levels(option, mask)
        return Rounded(levels.rounded(self.weights, mask), levels, shift, mask)

    def reconstructed(self, option: Option, sweeps: int) -> Rounded:
        """Weights that are chosen and rounded for their outputs."""
        mask = self.mask(option.nonzeros)
        levels, shift = self.levels(option, mask)
        found = reconstruction.round_in_order(self.weights, self.factor, levels, mask)
        if sweeps:
            found = reconstruction.polish(self.weights, found, self.moments, levels, mask, sweeps)
        return Rounded(found, levels, shift, mask)


def rounded_all(matrix: Matrix, options: tuple[Option, ...]) -> list[np.ndarray]:
    """The weights of every option, rounded in order; many options at a time."""
    size = matrix.weights.size
    together = max(1, _COLUMNS // size)
    masks_of = {share: matrix.mask(share) for share in {o.nonzeros for o in options}}
    found: list[np.ndarray] = []
    for start in range(0, len(options), together):
        some = options[start : start + together]
        levels = [matrix.levels(o, masks_of[o.nonzeros])[0] for o in some]
        shape = levels[0].steps.shape
        joined = Levels(
            np.concatenate([x.steps for x in levels], axis=-1),
            np.concatenate([np.full(shape, x.lowest, np.float32) for x in levels], axis=-1),
            np.concatenate([np.full(shape, x.highest, np.float32) for x in levels], axis=-1),
        )
        ones = np.ones_like(matrix.weights)
        kept = np.concatenate([masks_of[o.nonzeros] if o.nonzeros < 1 else ones for o in some], -1)
        weights = np.concatenate([matrix.weights] * len(some), axis=-1)
        rounded = reconstruction.round_in_order(weights, matrix.factor, joined, kept)
        found += np.split(rounded, len(some), axis=-1)
    return found
