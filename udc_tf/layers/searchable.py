"""Layers whose width, bits, sparsity and kernel size are open.

One theta serves all options. The kernel of a sample z is

    (sum_k z_q[k] Q(theta, b_k, r_k)) * m(z_s) * window(z_k) * inputs(z_w)

where the width mask is that of the channels the layer *reads*: on the outputs, in front of a batch
norm, a soft mask would be normalised away.
"""

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
from udc_tf.links import KernelLinks
from udc_tf.sampling import current_sample
from udc_tf.space import LayerOptions, SearchSpace


class SearchableKernel:
    """Adds the options to a kernel layer.

    Outside a search the layer applies theta as it is: the largest options, without quantization.

    Args:
        widths, bits, sparsities, kernels: this layer's options, as in `udc_tf.SearchSpace`; None
            leaves them to the search space that `make_searchable` is given.
        width_group: name of the group of channels that this layer's outputs belong to. Only needed
            in subclassed models, whose graph cannot be read.
        input_group: name of the group the layer reads, or a list of names where groups are
            concatenated. In subclassed models only; None for channels that stay.
    """

    def __init__(
        self,
        *args,
        widths=None,
        bits=None,
        sparsities=None,
        kernels=None,
        width_group: str | None = None,
        input_group: str | list[str] | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        # Through SearchSpace for its checks.
        own = SearchSpace(widths=widths, bits=bits, sparsities=sparsities, kernels=kernels)
        self.options = LayerOptions(own.widths, own.bits, own.sparsities, own.kernels)
        self.width_group = width_group
        self.input_group = input_group
        self.pruned_gradient = 0.0
        self.links: KernelLinks | None = None

    def build(self, input_shape):
        super().build(input_shape)
        self.log_ranges = self.buckets = None
        if self.options.bits is not None:
            # Not `trainable`: they have an optimizer of their own.
            self.log_ranges = self.add_weight(
                name="log_ranges",
                shape=(len(self.options.bits),),
                initializer="zeros",
                trainable=False,
                aggregation="mean",
            )
            self.initialize_ranges()
        if self.options.sparsities is not None:
            self.buckets = self.add_weight(
                name="buckets",
                shape=self.theta.shape,
                initializer="zeros",
                dtype="int8",
                trainable=False,
                aggregation="only_first_replica",
            )

    def initialize_ranges(self) -> None:
        """Sets each option's range to what suits the present theta."""
        if self.log_ranges is None:
            return
        theta = keras.ops.convert_to_numpy(self.theta)
        ranges = [quantizers.initial_range(theta, b) for b in self.options.bits]
        self.log_ranges.assign(np.log(ranges))

    def effective_kernel(self, training):
        sample = current_sample()
        return self.theta if sample is None else sample.kernel_of(self)

    def kernels_of_samples(self, z: tf.Tensor) -> list[tf.Tensor]:
        """The kernel under each of the samples z, [samples, decisions, options]."""
        samples, links = z.shape[0], self.links
        theta = tf.convert_to_tensor(self.theta)
        kernels = self._quantized(theta, z)
        if self.buckets is not None:
            mask = sparsity.look_up(self._tails(z), tf.convert_to_tensor(self.buckets))
            kernels = sparsity.apply_mask(
                tf.broadcast_to(kernels, [samples, *theta.shape]), mask, self.pruned_gradient
            )
        if links.window is not None:
            window = tf.reshape(links.window.mask(z), [samples, *self.kernel_size, 1, 1])
            kernels = kernels * window
        if links.inputs is not None and links.inputs.decided:
            shape = [samples] + [1] * theta.shape.rank
            shape[1 + self.in_axis] = theta.shape[self.in_axis]
            kernels = kernels * tf.reshape(links.inputs.mask(z), shape)
        if kernels.shape[0] == 1:
            return [kernels[0]] * samples
        return tf.unstack(kernels)

    def _quantized(self, theta, z):
        if self.log_ranges is None:
            return theta[None]
        options = self.options.bits
        levels = quantizers.quantize_options(theta, options, tf.exp(self.log_ranges))
        if self.links.bits is None:
            return levels
        z_bits = z[:, self.links.bits, : len(options)]
        flat = tf.matmul(z_bits, tf.reshape(levels, [len(options), -1]))
        return tf.reshape(flat, [z.shape[0], *theta.shape])

    def _tails(self, z):
        options = len(self.options.sparsities)
        if self.links.sparsity is None:
            return sparsity.tail_sums(tf.ones([z.shape[0], 1]))
        return sparsity.tail_sums(z[:, self.links.sparsity, :options])

    def activity(self, pi: tf.Tensor) -> tf.Tensor:
        """Probability that each weight is there, from the probabilities of all decisions."""
        shape, links = self.theta.shape, self.links
        active = tf.ones(shape)
        if links.window is not None:
            active *= tf.reshape(links.window.mask(pi[None]), [*self.kernel_size, 1, 1])
        outputs = links.outputs.mask(pi[None])
        if self.in_axis is None:
            return active * tf.reshape(outputs, [1, 1, shape[2], shape[3]])
        for axis, mask in ((self.in_axis, links.inputs.mask(pi[None])), (self.out_axis, outputs)):
            along = [1] * len(shape)
            along[axis] = shape[axis]
            active *= tf.reshape(mask, along)
        return active

    def ranked_buckets(self, pi: tf.Tensor) -> tf.Tensor:
        """Theta ranked anew. In numpy: sorting there takes a fifth of what `tf.sort` does."""
        fractions = self.options.sparsities

        def rank(theta, activity):
            return sparsity.nested_buckets(np.abs(theta), activity, fractions)

        theta = tf.convert_to_tensor(self.theta)
        ranked = tf.numpy_function(rank, [theta, self.activity(pi)], tf.int8)
        return tf.ensure_shape(ranked, theta.shape)

    def followed_ranges(self, share: float) -> tf.Tensor:
        """The logarithms of the ranges, moved by `share` towards what fits theta best.

        A weight beyond its range has no gradient, so a range must not stay behind.
        """

        def follow(theta, now):
            best = [quantizers.initial_range(theta, b) for b in self.options.bits]
            return ((1 - share) * now + share * np.log(best)).astype(np.float32)

        now = tf.convert_to_tensor(self.log_ranges)
        theta = tf.convert_to_tensor(self.theta)
        return tf.ensure_shape(tf.numpy_function(follow, [theta, now], tf.float32), now.shape)

    def get_config(self):
        return {
            **super().get_config(),
            "widths": self.options.widths,
            "bits": self.options.bits,
            "sparsities": self.options.sparsities,
            "kernels": self.options.kernels,
            "width_group": self.width_group,
            "input_group": self.input_group,
        }


@keras.saving.register_keras_serializable("udc_tf")
class UDCConv2D(SearchableKernel, Conv2DKernel):
    """`keras.layers.Conv2D` with searched width, bits, sparsity and kernel size.

    >>> y = UDCConv2D(16, 3, bits=(2, 4, 8), padding="same")(keras.Input((8, 8, 3)))
    >>> tuple(y.shape)
    (None, 8, 8, 16)
    """


@keras.saving.register_keras_serializable("udc_tf")
class UDCDepthwiseConv2D(SearchableKernel, DepthwiseConv2DKernel):
    """`keras.layers.DepthwiseConv2D` with searched bits, sparsity and kernel size.

    >>> y = UDCDepthwiseConv2D(3, sparsities=(0.5, 1.0))(keras.Input((8, 8, 3)))
    >>> tuple(y.shape)
    (None, 6, 6, 3)
    """


@keras.saving.register_keras_serializable("udc_tf")
class UDCConv2DTranspose(SearchableKernel, Conv2DTransposeKernel):
    """`keras.layers.Conv2DTranspose` with searched width, bits and sparsity."""


@keras.saving.register_keras_serializable("udc_tf")
class UDCDense(SearchableKernel, DenseKernel):
    """`keras.layers.Dense` with searched width, bits and sparsity.

    >>> tuple(UDCDense(4, bits=(1, 8))(keras.Input((16,))).shape)
    (None, 4)
    """
