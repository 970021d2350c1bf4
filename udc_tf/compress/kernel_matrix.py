"""Kernels as matrices, [groups, inputs, columns], and what they are multiplied with.

The columns of all groups, one group after the other, are the output channels.
"""

import numpy as np
import tensorflow as tf

from udc_tf.layers.kernels import (
    Conv2DKernel,
    Conv2DTransposeKernel,
    DenseKernel,
    DepthwiseConv2DKernel,
    KernelLayer,
)


def to_matrix(layer: KernelLayer, kernel: np.ndarray) -> np.ndarray:
    """A kernel in its layer's layout as [groups, inputs, columns].

    >>> from udc_tf.layers.compact_kernels import CompactDepthwiseConv2D
    >>> to_matrix(CompactDepthwiseConv2D(3), np.zeros((3, 3, 8, 1))).shape
    (8, 9, 1)
    """
    if isinstance(layer, DepthwiseConv2DKernel):
        channels, times = kernel.shape[-2:]
        return np.ascontiguousarray(kernel.reshape(-1, channels, times).swapaxes(0, 1))
    if isinstance(layer, Conv2DTransposeKernel):
        kernel = kernel.swapaxes(-1, -2)
    groups = getattr(layer, "groups", 1)
    flat = kernel.reshape(-1, groups, kernel.shape[-1] // groups)
    return np.ascontiguousarray(flat.swapaxes(0, 1))


def from_matrix(layer: KernelLayer, matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The counterpart of `to_matrix`."""
    if isinstance(layer, DepthwiseConv2DKernel):
        return matrix.swapaxes(0, 1).reshape(shape)
    flat = matrix.swapaxes(0, 1)
    if isinstance(layer, Conv2DTransposeKernel):
        return flat.reshape(*shape[:-2], shape[-1], shape[-2]).swapaxes(-1, -2)
    return flat.reshape(shape)


def rows_of(layer: KernelLayer, inputs: np.ndarray, most: int) -> np.ndarray:
    """What the kernel is multiplied with at some positions of each example, [rows, groups, inputs].

    Of a transposed convolution, whose taps see inputs one at a time: the inputs of one tap.

    Args:
        most: rows per example; positions are taken at equal distances.
    """
    if isinstance(layer, (DenseKernel, Conv2DTransposeKernel)):
        rows = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        return _some(rows, most).reshape(-1, 1, inputs.shape[-1])
    assert isinstance(layer, (Conv2DKernel, DepthwiseConv2DKernel))
    patches = _some(_patches(layer, inputs), most)
    patches = patches.reshape(-1, layer.taps, inputs.shape[-1])
    if isinstance(layer, DepthwiseConv2DKernel):
        return patches.swapaxes(1, 2)
    groups = layer.groups
    split = patches.reshape(len(patches), layer.taps, groups, -1).swapaxes(1, 2)
    return split.reshape(len(patches), groups, -1)


def _some(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many positions, the second axis, of each example."""
    count = rows.shape[1]
    if count <= most:
        return rows
    return rows[:, np.linspace(0, count - 1, most).round().astype(int)]


def _patches(layer: Conv2DKernel | DepthwiseConv2DKernel, inputs: np.ndarray) -> np.ndarray:
    """[examples, positions, taps * channels]"""
    sizes, strides, rates = layer.kernel_size, layer.strides, layer.dilation_rate
    padding = layer.padding
    if layer.rank == 1:
        if padding == "causal":
            before = (sizes[0] - 1) * rates[0]
            inputs, padding = np.pad(inputs, ((0, 0), (before, 0), (0, 0))), "valid"
        inputs = inputs[:, None]
        sizes, strides, rates = (1, *sizes), (1, *strides), (1, *rates)
    found = tf.image.extract_patches(
        inputs, (1, *sizes, 1), (1, *strides, 1), (1, *rates, 1), padding.upper()
    ).numpy()
    return found.reshape(len(inputs), -1, found.shape[-1])
