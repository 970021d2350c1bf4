"""First and second moments of what a kernel is multiplied with."""

import dataclasses

import numpy as np

from udc_tf.compress.kernel_matrix import rows_of
from udc_tf.layers.kernels import Conv2DTransposeKernel, KernelLayer

_ROWS = (4_096, 16_384)  # in all, at least and at most; each example gives its share
_ROWS_PER_INPUT = 16
_BATCH = 64


@dataclasses.dataclass(frozen=True)
class Moments:
    """Of the inputs that the compressed network gives, and of those that the original had.

    Attributes:
        second: of the compressed network's, [groups, inputs, inputs].
        cross: of both, the compressed network's first.
        mean, original_mean: [groups, inputs].
    """

    second: np.ndarray
    cross: np.ndarray
    mean: np.ndarray
    original_mean: np.ndarray

    def centred(self) -> "Moments":
        """Without the means: what is left if a bias makes them good."""
        second = self.second - self.mean[:, :, None] * self.mean[:, None]
        cross = self.cross - self.mean[:, :, None] * self.original_mean[:, None]
        return dataclasses.replace(self, second=second, cross=cross)


def measure(
    layer: KernelLayer, inputs: np.ndarray, original_inputs: np.ndarray | None = None
) -> Moments:
    """The moments over all examples.

    Args:
        layer: whose kernel it is.
        inputs: of the compressed network, first axis the examples.
        original_inputs: of the original; None if they are the same.
    """
    fan_in = int(np.prod(layer.theta.shape)) // layer.output_channels(inputs.shape)
    most = max(1, int(np.clip(_ROWS_PER_INPUT * fan_in, *_ROWS)) // len(inputs))
    count = 0
    sums: list[np.ndarray] = []
    for start in range(0, len(inputs), _BATCH):
        batch = slice(start, start + _BATCH)
        rows = rows_of(layer, inputs[batch], most)
        others = rows if original_inputs is None else rows_of(layer, original_inputs[batch], most)
        second = _products(rows, rows)
        cross = second if original_inputs is None else _products(rows, others)
        found = [second, cross, rows.sum(axis=0), others.sum(axis=0)]
        sums = found if not sums else [a + b for a, b in zip(sums, found, strict=True)]
        count += len(rows)
    second, cross, mean, original_mean = (np.asarray(s, np.float64) / count for s in sums)
    if isinstance(layer, Conv2DTransposeKernel):
        # Each tap meets the inputs alone.
        blocks = np.eye(layer.taps)
        second, cross = (np.kron(blocks, m[0])[None] for m in (second, cross))
        mean, original_mean = (np.tile(m, layer.taps) for m in (mean, original_mean))
    return Moments(second, cross, mean, original_mean)


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left.transpose(1, 2, 0) @ right.transpose(1, 0, 2)
