"""Layers whose width, bits, sparsity and kernel size are open.

One theta serves all options. The kernel of a sample z is

    (sum_k z_q[k] Q(theta, b_k, r_k)) * m(z_s) * window(z_k) * inputs(z_w)

where the width mask is that of the channels the layer *reads*: on the outputs, in front of a batch
norm, a soft mask would be normalised away.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from udc_tf.layers.current_sample import current_sample
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
from udc_tf.layers.layer_options import LayerOptions
from udc_tf.layers.links import KernelLinks, Sampled
from udc_tf.layers.mixture import mixed_kernels
from udc_tf.quantize import masks, quantizers, ranking


class SearchableKernel(KernelLayer):
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
        *args: Any,
        widths: Sequence[float] | None = None,
        bits: Sequence[int] | None = None,
        sparsities: Sequence[float] | None = None,
        kernels: Sequence[int] | None = None,
        width_group: str | None = None,
        input_group: str | list[str] | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        wanted: tuple[Any, ...] = (widths, bits, sparsities, kernels)
        self.options = LayerOptions(*wanted)
        self.width_group = width_group
        self.input_group = input_group
        self.pruned_gradient = 0.0
        self.links: KernelLinks | None = None

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.log_ranges = self.buckets = None
        if self.options.bits is not None:
            # Not `trainable`: they have an optimizer of their own. Replicas compute them alike.
            self.log_ranges = self.add_weight(
                name="log_ranges",
                shape=(len(self.options.bits),),
                initializer="zeros",
                trainable=False,
                autocast=False,
                aggregation="only_first_replica",
            )
            self.initialize_ranges()
        if self.options.sparsities is not None:
            self.buckets = self.add_weight(
                name="buckets",
                shape=self.theta.shape,
                initializer="zeros",
                dtype="float32",  # GPUs hold no int32 variables, and workers exchange no int8
                trainable=False,
                autocast=False,
                aggregation="only_first_replica",
            )

    def follow(self, links: KernelLinks, pruned_gradient: float = 0.0) -> None:
        """Hands the layer the decisions that its kernel follows in a search.

        Args:
            links: where this layer's decisions stand among all of them.
            pruned_gradient: the share of the gradient that reaches weights masked to zero.
        """
        self.links = links
        self.pruned_gradient = pruned_gradient

    @property
    def _followed(self) -> KernelLinks:
        if self.links is None:
            raise ValueError(f"`{self.name}` follows no decisions: it is not part of a search.")
        return self.links

    def initialize_ranges(self) -> None:
        """Sets each option's range to what suits the present theta."""
        if self.log_ranges is None or self.options.bits is None:
            return
        theta = keras.ops.convert_to_numpy(self.theta)
        ranges = [quantizers.initial_range(theta, b) for b in self.options.bits]
        self.log_ranges.assign(np.log(ranges))

    def effective_kernel(self, training: bool | None) -> tf.Tensor:
        sample = current_sample()
        return self.theta if sample is None else sample.kernel_of(self)

    def kernels_of_samples(self, sampled: Sampled) -> list[tf.Tensor]:
        """The kernel under each of the samples."""
        samples, links = sampled.count, self._followed
        bits: tuple[int, ...]
        bits, z_bits, ranges = (quantizers.FLOAT_BITS,), tf.ones([samples, 1]), tf.ones([1])
        if self.log_ranges is not None and self.options.bits is not None:
            bits, ranges = self.options.bits, tf.exp(self.log_ranges)
        if links.bits is not None:
            z_bits = sampled.rows[links.bits][:, : len(bits)]
        scale = self._channel_and_window_masks(sampled)
        if links.bits is None and self.buckets is None and scale is None:
            kernel = mixed_kernels(tf.convert_to_tensor(self.theta), bits, ranges, z_bits[:1])
            return [kernel[0]] * samples
        masked = self.buckets is not None
        kernels = mixed_kernels(
            tf.convert_to_tensor(self.theta),
            bits,
            ranges,
            z_bits,
            buckets=tf.convert_to_tensor(self.buckets) if masked else None,
            tails=self._tails(sampled) if masked else None,
            scale=scale,
            pruned_gradient=self.pruned_gradient,
        )
        return tf.unstack(kernels)

    def _channel_and_window_masks(self, sampled: Sampled) -> tf.Tensor | None:
        """The factors of whole taps and input channels, [samples, ...]; None if all are 1."""
        samples, links, rank = sampled.count, self._followed, len(self.theta.shape)
        masks = []
        if links.window is not None:
            shape = [samples, *self.kernel_size, 1, 1]
            masks.append(tf.reshape(links.window.mask(sampled), shape))
        if self.in_axis is not None and links.inputs is not None and links.inputs.decided:
            shape = [samples] + [1] * rank
            shape[1 + self.in_axis] = self.theta.shape[self.in_axis]
            masks.append(tf.reshape(links.inputs.mask(sampled), shape))
        return functools.reduce(tf.multiply, masks) if masks else None

    def _tails(self, sampled: Sampled) -> tf.Tensor:
        row, options = self._followed.sparsity, len(self.options.sparsities or ())
        if row is None:
            return masks.tail_sums(tf.ones([sampled.count, 1]))
        return sampled.tails[row][:, : options + 1]

    def activity(self, pi: Sampled) -> tf.Tensor:
        """Probability that each weight is there, from the probabilities of all decisions."""
        shape, links = self.theta.shape, self._followed
        active = tf.ones(shape)
        if links.window is not None:
            active *= tf.reshape(links.window.mask(pi), [*self.kernel_size, 1, 1])
        outputs = links.outputs.mask(pi)
        if self.in_axis is None:
            return active * tf.reshape(outputs, shape[-2:])
        axes = [(self.out_axis, outputs)]
        if links.inputs is not None:
            axes.insert(0, (self.in_axis, links.inputs.mask(pi)))
        for axis, mask in axes:
            along = [1] * len(shape)
            along[axis] = shape[axis]
            active *= tf.reshape(mask, along)
        return active

    def ranked_buckets(self, pi: Sampled, sorting: bool) -> tf.Tensor:
        """Theta ranked anew, under the probabilities of all decisions."""
        return ranking.nested_buckets(
            tf.abs(tf.convert_to_tensor(self.theta)),
            self.activity(pi),
            self.options.sparsities or (),
            sorting=sorting,
        )

    def followed_ranges(self, share: float) -> tf.Tensor:
        """The logarithms of the ranges, moved by `share` towards what fits theta best.

        A weight beyond its range has no gradient, so a range must not stay behind.
        """
        best = quantizers.initial_ranges(tf.convert_to_tensor(self.theta), self.options.bits or ())
        return (1 - share) * tf.convert_to_tensor(self.log_ranges) + share * tf.math.log(best)

    def get_config(self) -> dict[str, Any]:
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
class UDCConv1D(SearchableKernel, Conv1DKernel):
    """`keras.layers.Conv1D` with searched width, bits, sparsity and kernel size.

    >>> y = UDCConv1D(16, 3, bits=(2, 4, 8), padding="causal")(keras.Input((20, 6)))
    >>> tuple(y.shape)
    (None, 20, 16)
    """


@keras.saving.register_keras_serializable("udc_tf")
class UDCDepthwiseConv1D(SearchableKernel, DepthwiseConv1DKernel):
    """`keras.layers.DepthwiseConv1D` with searched bits, sparsity and kernel size.

    >>> y = UDCDepthwiseConv1D(3, sparsities=(0.5, 1.0))(keras.Input((20, 6)))
    >>> tuple(y.shape)
    (None, 18, 6)
    """


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
class UDCConv1DTranspose(SearchableKernel, Conv1DTransposeKernel):
    """`keras.layers.Conv1DTranspose` with searched width, bits and sparsity.

    >>> y = UDCConv1DTranspose(4, 3, strides=2, bits=(4, 8))(keras.Input((10, 6)))
    >>> tuple(y.shape)
    (None, 21, 4)
    """


@keras.saving.register_keras_serializable("udc_tf")
class UDCDense(SearchableKernel, DenseKernel):
    """`keras.layers.Dense` with searched width, bits and sparsity.

    >>> tuple(UDCDense(4, bits=(1, 8))(keras.Input((16,))).shape)
    (None, 4)
    """
