"""How the decisions reach each layer's kernel."""

import dataclasses
import functools

import numpy as np
import tensorflow as tf

from udc_tf.quantize import masks


class Sampled:
    """Samples of all decisions, taken apart once for all layers.

    Each layer's own slices, and their gradients, would be a good part of a small network's step.

    Args:
        z: [samples, decisions, options].
    """

    def __init__(self, z: tf.Tensor):
        self._z = z
        self.count = z.shape[0]

    @functools.cached_property
    def rows(self) -> list[tf.Tensor]:
        """Of each decision, [samples, options]."""
        return tf.unstack(self._z, axis=1)

    @functools.cached_property
    def tails(self) -> list[tf.Tensor]:
        """The same of `masks.tail_sums`, [samples, options + 1]."""
        return tf.unstack(masks.tail_sums(self._z), axis=1)


@dataclasses.dataclass(frozen=True)
class MaskLink:
    """A mask along one axis: constant + z[rows] @ matrix."""

    constant: np.ndarray  # [length]
    rows: tuple[int, ...]  # decisions
    matrix: np.ndarray  # [rows * options, length]

    @property
    def decided(self) -> bool:
        return bool(self.rows) or bool((self.constant < 1).any())

    def mask(self, sampled: Sampled) -> tf.Tensor:
        """[samples, length]."""
        if not self.rows:
            return tf.constant(np.tile(self.constant, (sampled.count, 1)))
        rows = [sampled.rows[r] for r in self.rows]
        flat = tf.concat(rows, axis=1) if len(rows) > 1 else rows[0]
        return tf.matmul(flat, self.matrix) + self.constant


@dataclasses.dataclass(frozen=True)
class KernelLinks:
    """The decisions that one layer follows."""

    bits: int | None  # row of the decision, None if there is nothing to decide
    sparsity: int | None
    inputs: MaskLink | None
    outputs: MaskLink
    window: MaskLink | None  # over the taps, row-major
