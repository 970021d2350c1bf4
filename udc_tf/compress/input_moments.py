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
        mean: of the compressed network's, [groups, inputs].
    """

    second: np.ndarray
    cross: np.ndarray
    mean: np.ndarray


def measure(
    layer: KernelLayer,
    inputs: np.ndarray,
    original_inputs: np.ndarray | None = None,
    centred: bool = False,
) -> Moments:
    """The moments over all examples.

    Args:
        layer: whose kernel it is.
        inputs: of the compressed network, first axis the examples.
        original_inputs: of the original; None if they are the same.
        centred: without the means: what is left if a bias makes them good.
    """
    fan_in = int(np.prod(layer.theta.shape)) // layer.output_channels(inputs.shape)
    most = max(1, int(np.clip(_ROWS_PER_INPUT * fan_in, *_ROWS)) // len(inputs))
    count = 0
    sums: list[np.ndarray] = []
    near: tuple[np.ndarray, np.ndarray] | None = None
    for start in range(0, len(inputs), _BATCH):
        batch = slice(start, start + _BATCH)
        rows = rows_of(layer, inputs[batch], most)
        others = rows if original_inputs is None else rows_of(layer, original_inputs[batch], most)
        # Around about the mean: of large means, products in single precision would drown what
        # little an input varies.
        near = near or (rows.mean(axis=0), others.mean(axis=0))
        rows, others = rows - near[0], others - near[1]
        second = _products(rows, rows)
        cross = second if original_inputs is None else _products(rows, others)
        found = [second, cross, rows.sum(axis=0), others.sum(axis=0)]
        found = [np.asarray(f, np.float64) for f in found]
        sums = found if not sums else [a + b for a, b in zip(sums, found, strict=True)]
        count += len(rows)
    assert near is not None
    second, cross, rest, original_rest = (s / count for s in sums)
    centre, original_centre = (c.astype(np.float64) for c in near)
    mean, original_mean = centre + rest, original_centre + original_rest
    second -= _outer(rest, rest)
    cross -= _outer(rest, original_rest)
    if not centred:
        second += _outer(mean, mean)
        cross += _outer(mean, original_mean)
    if isinstance(layer, Conv2DTransposeKernel):
        # Each tap meets the inputs alone.
        blocks = np.eye(layer.taps)
        second, cross = (np.kron(blocks, m[0])[None] for m in (second, cross))
        mean = np.tile(mean, layer.taps)
    return Moments(second, cross, mean)


def _outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left[:, :, None] * right[:, None]


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left.transpose(1, 2, 0) @ right.transpose(1, 0, 2)
