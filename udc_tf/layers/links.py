"""How the decisions reach each layer's kernel."""

import dataclasses

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class MaskLink:
    """A mask along one axis: constant + z[rows] @ matrix."""

    constant: np.ndarray  # [length]
    rows: tuple[int, ...]  # decisions
    matrix: np.ndarray  # [rows * options, length]

    @property
    def decided(self) -> bool:
        return bool(self.rows) or bool((self.constant < 1).any())

    def mask(self, z: tf.Tensor) -> tf.Tensor:
        """z is [samples, decisions, options]; the mask [samples, length]."""
        samples = z.shape[0]
        if not self.rows:
            return tf.constant(np.tile(self.constant, (samples, 1)))
        flat = tf.reshape(tf.gather(z, self.rows, axis=1), [samples, -1])
        return tf.matmul(flat, self.matrix) + self.constant


@dataclasses.dataclass(frozen=True)
class KernelLinks:
    """The decisions that one layer follows."""

    bits: int | None  # row of the decision, None if there is nothing to decide
    sparsity: int | None
    inputs: MaskLink | None
    outputs: MaskLink
    window: MaskLink | None  # over the taps, row-major
