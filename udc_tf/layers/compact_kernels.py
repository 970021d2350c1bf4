"""Layers of the compact network: one bitwidth, one fraction of non-zeros."""

import dataclasses
import zlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from udc_tf.layers.kernels import (
    Conv1DKernel,
    Conv1DTransposeKernel,
    Conv2DKernel,
    Conv2DTransposeKernel,
    DenseKernel,
    DepthwiseConv1DKernel,
    DepthwiseConv2DKernel,
    KernelLayer,
    Shape,
)
from udc_tf.quantize import masks, number_format, quantizers
from udc_tf.quantize.noise import stateless_uniform
from udc_tf.quantize.quantizers import FLOAT_BITS


@dataclasses.dataclass(frozen=True)
class IntegerKernel:
    """A kernel as it is deployed: `codes * step`."""

    codes: np.ndarray  # int8, the kernel's layout
    step: float

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.codes))


@dataclasses.dataclass(frozen=True)
class WeightTraining:
    """How the weights of a compact layer are trained; deployment knows none of it.

    Attributes:
        pruned_gradient: the share of its gradient that a pruned weight gets.
        random_quantization: whether the share `alpha` of weights that is quantized in a step may be
            below 1.
        clip_unquantized: whether the others are clipped to the range.
    """

    pruned_gradient: float = 0.0
    random_quantization: bool = False
    clip_unquantized: bool = True


class CompactKernel(KernelLayer):
    """Weights of `bits` bits of which a fraction of `nonzeros` are not zero.

    The mask keeps the largest |theta|; `refresh_mask` makes it follow theta. A new layer has the
    plain number format (`beta` is 0); finetuning moves it to the one of `number_format`. With 32
    bits the weights stay float here until `deployed` is 1, then they have 8.

    Args:
        bits: 1 to 8, or 32.
        nonzeros: the fraction of weights that are kept, in (0, 1].
    """

    def __init__(self, *args: Any, bits: int = 8, nonzeros: float = 1.0, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if bits not in (*range(1, 9), FLOAT_BITS):
            raise ValueError(f"`bits` must be 1 to 8, or 32. Received: {bits}")
        if not 0 < nonzeros <= 1:
            raise ValueError(f"`nonzeros` must be in (0, 1]. Received: {nonzeros}")
        self.bits = bits
        self.nonzeros = nonzeros
        self.weight_training = WeightTraining()

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.log_range = self.add_weight(
            name="log_range",
            shape=(),
            initializer="zeros",
            autocast=False,
            aggregation="only_first_replica",
        )
        self.mask = self._state("mask", 1.0, self.theta.shape)
        self.beta = self._state("beta", 0.0)
        self.alpha = self._state("alpha", 1.0)
        self.deployed = self._state("deployed", 0.0)
        self.draws = self.add_weight(
            name="draws",
            shape=(),
            initializer="zeros",
            dtype="int32",
            trainable=False,
            aggregation="only_first_replica",
        )
        self.initialize_range()

    def _state(self, name: str, value: float, shape: Shape = ()) -> keras.Variable:
        initializer = keras.initializers.Constant(value)
        return self.add_weight(
            name=name, shape=shape, initializer=initializer, trainable=False, autocast=False
        )

    @property
    def deployed_bits(self) -> int:
        return min(self.bits, 8)

    @property
    def range(self) -> float:
        """The width of the levels: the largest weight, or what it has beyond `beta`."""
        return float(tf.exp(tf.convert_to_tensor(self.log_range)))

    @property
    def target_nonzeros(self) -> int:
        """How many weights the mask keeps in the end."""
        return masks.kept(self.nonzeros, int(np.prod(self.theta.shape)))

    def initialize_range(self) -> None:
        """Sets the range that suits the present theta in the plain format."""
        r = quantizers.initial_range(keras.ops.convert_to_numpy(self.theta), self.bits)
        self.log_range.assign(np.log(r))
        self.beta.assign(0.0)

    def fit_range(self, share: float = 1.0) -> None:
        """Moves the range towards the one with the least error on the weights that are kept.

        Weights beyond the range have no gradient. Pruning keeps just the largest, so a range that
        lags behind would freeze most of what is left.

        Args:
            share: how far, in the logarithm: 1 takes the new range, 0.5 goes half the way.
        """
        theta, mask = keras.ops.convert_to_numpy(self.theta), self.mask.numpy() > 0
        magnitude = np.abs(theta[mask])
        if self.deployed_bits < 8:
            magnitude = np.maximum(magnitude - self.beta.numpy(), 0)
        r = quantizers.initial_range(magnitude, self.deployed_bits)
        self.log_range.assign((1 - share) * self.log_range.numpy() + share * np.log(r))

    def refresh_mask(self, nonzeros: float | None = None, shifted: bool | None = None) -> None:
        """Keeps exactly the largest weights of theta, and sets `beta` to the largest other one.

        Args:
            nonzeros: the fraction to keep; the layer's target if None.
            shifted: whether the levels begin beyond the pruned zone (`number_format`) or at zero;
                None leaves that as it is.
        """
        magnitude = np.abs(keras.ops.convert_to_numpy(self.theta))
        count = masks.kept(self.nonzeros if nonzeros is None else nonzeros, magnitude.size)
        mask = masks.largest(magnitude, count)
        self.mask.assign(mask)
        old_beta = float(self.beta.numpy())
        if shifted is None:
            shifted = old_beta > 0
        beta = 0.0
        if shifted and count < magnitude.size:
            beta = max(float(magnitude[~mask].max()), 1e-12)
        self.beta.assign(beta)
        if 1 < self.deployed_bits < 8 and beta != old_beta:
            r = number_format.range_above(beta, old_beta, self.range)
            self.log_range.assign(np.log(max(r, 1e-12)))

    def effective_kernel(self, training: bool | None) -> tf.Tensor:
        theta, r = tf.convert_to_tensor(self.theta), tf.exp(tf.convert_to_tensor(self.log_range))
        mask, beta = tf.convert_to_tensor(self.mask), tf.convert_to_tensor(self.beta)
        how = self.weight_training
        kernel = number_format.low_bit_kernel(
            theta,
            r,
            mask,
            beta,
            self.deployed_bits,
            pruned_gradient=how.pruned_gradient,
            quantized=self._draw() if training and how.random_quantization else None,
            clip_unquantized=how.clip_unquantized,
        )
        if self.bits == FLOAT_BITS:
            deployed = tf.convert_to_tensor(self.deployed) > 0.5
            kernel = tf.where(deployed, kernel, theta * mask)
        return kernel

    def _draw(self) -> tf.Tensor:
        """1 for the weights that this step quantizes. All randomness is in `draws`: it resumes."""
        seed = tf.stack([zlib.crc32(self.name.encode()) % 2**31, tf.convert_to_tensor(self.draws)])
        self.draws.assign_add(1)
        uniform = stateless_uniform(self.theta.shape, seed)
        return tf.cast(uniform < tf.convert_to_tensor(self.alpha), tf.float32)

    def integer_kernel(self) -> IntegerKernel:
        """The deployed integers; `codes * float32(step)` is the kernel of the forward pass."""
        bits = self.deployed_bits
        step = number_format.step_of(tf.exp(tf.convert_to_tensor(self.log_range)), bits)
        shift = number_format.shift_of(tf.convert_to_tensor(self.beta), step, bits)
        codes = number_format.codes_of(tf.convert_to_tensor(self.theta), step, shift, bits)
        codes = (codes * tf.convert_to_tensor(self.mask)).numpy()
        return IntegerKernel(codes.astype(np.int8), float(step))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bits": self.bits, "nonzeros": self.nonzeros}


@keras.saving.register_keras_serializable("udc_tf")
class CompactConv1D(CompactKernel, Conv1DKernel):
    """`keras.layers.Conv1D` with few-bit, sparse weights."""


@keras.saving.register_keras_serializable("udc_tf")
class CompactDepthwiseConv1D(CompactKernel, DepthwiseConv1DKernel):
    """`keras.layers.DepthwiseConv1D` with few-bit, sparse weights."""


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
class CompactConv1DTranspose(CompactKernel, Conv1DTransposeKernel):
    """`keras.layers.Conv1DTranspose` with few-bit, sparse weights."""


@keras.saving.register_keras_serializable("udc_tf")
class CompactDense(CompactKernel, DenseKernel):
    """`keras.layers.Dense` with few-bit, sparse weights."""
