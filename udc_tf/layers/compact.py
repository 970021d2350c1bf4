"""Layers of the compact network: one bitwidth, one fraction of non-zeros."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from udc_tf import quantizers, sparsity
from udc_tf.layers.kernels import (
    Conv2DKernel,
    Conv2DTransposeKernel,
    DenseKernel,
    DepthwiseConv2DKernel,
)


@dataclasses.dataclass(frozen=True)
class IntegerKernel:
    """A kernel as it is deployed: `codes * step`."""

    codes: np.ndarray  # int8, the kernel's layout
    step: float

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.codes))


class CompactKernel:
    """Weights of `bits` bits of which a fraction of `nonzeros` are not zero.

    The mask keeps the largest |theta|; `refresh_mask` makes it follow theta. With 32 bits the
    weights stay float here and are deployed with 8.
    """

    def __init__(self, *args, bits: int = 8, nonzeros: float = 1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.bits = bits
        self.nonzeros = nonzeros

    def build(self, input_shape):
        super().build(input_shape)
        self.log_range = self.add_weight(
            name="log_range", shape=(), initializer="zeros", trainable=self.bits < 32
        )
        self.mask = self.add_weight(
            name="mask", shape=self.theta.shape, initializer="ones", trainable=False
        )
        self.initialize_range()

    @property
    def range(self) -> float:
        return float(np.exp(self.log_range.numpy()))

    def initialize_range(self) -> None:
        """Sets the range that suits the present theta."""
        r = quantizers.initial_range(keras.ops.convert_to_numpy(self.theta), self.bits)
        self.log_range.assign(np.log(r))

    def refresh_mask(self) -> None:
        """Keeps exactly the target fraction of theta's largest weights."""
        magnitude = np.abs(keras.ops.convert_to_numpy(self.theta))
        count = sparsity.kept(self.nonzeros, magnitude.size)
        self.mask.assign(sparsity.largest(magnitude, count))

    def effective_kernel(self, training):
        theta = keras.ops.convert_to_tensor(self.theta)
        quantized = quantizers.quantize(theta, self.bits, tf.exp(self.log_range))
        return quantized * tf.convert_to_tensor(self.mask)

    def integer_kernel(self) -> IntegerKernel:
        """The deployed integers; their product with the step is what training saw.

        One-bit and masked weights included: a zero code is a weight that is pruned or rounds to 0.
        """
        bits = min(self.bits, 8)
        theta = keras.ops.convert_to_numpy(self.theta).astype(np.float64)
        mask = keras.ops.convert_to_numpy(self.mask)
        levels = quantizers.integer_levels(bits)
        r = self.range
        if bits == 1:
            codes = np.where(theta >= 0, 1, -1)
        else:
            # In the precision of training, so that ties round to the same side.
            step = np.float32(r) / np.float32(levels)
            clipped = np.clip(theta.astype(np.float32), -np.float32(r), np.float32(r))
            codes = np.round(clipped / step)
        return IntegerKernel((codes * mask).astype(np.int8), r / levels)

    def get_config(self):
        return {**super().get_config(), "bits": self.bits, "nonzeros": self.nonzeros}


@keras.saving.register_keras_serializable("udc_tf")
class CompactConv2D(CompactKernel, Conv2DKernel):
    """`keras.layers.Conv2D` with few-bit, sparse weights."""


@keras.saving.register_keras_serializable("udc_tf")
class CompactDepthwiseConv2D(CompactKernel, DepthwiseConv2DKernel):
    """`keras.layers.DepthwiseConv2D` with few-bit, sparse weights."""


@keras.saving.register_keras_serializable("udc_tf")
class CompactConv2DTranspose(CompactKernel, Conv2DTransposeKernel):
    """`keras.layers.Conv2DTranspose` with few-bit, sparse weights."""


@keras.saving.register_keras_serializable("udc_tf")
class CompactDense(CompactKernel, DenseKernel):
    """`keras.layers.Dense` with few-bit, sparse weights."""
