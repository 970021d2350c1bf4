"""Layers that are linear in one kernel: their geometry, apart from how the kernel comes about.

`KernelLayer` owns the weights and the call; its subclasses know shapes and the operation. How
the kernel that is applied follows from `theta` is the business of whoever mixes in
`effective_kernel`: the search (many options at once) or the compact network (one).
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

Shape = tuple[Any, ...]  # of a tensor: numbers, and None where one is not known


def _sizes(value: int | Sequence[int], rank: int, name: str) -> tuple[int, ...]:
    """One number per spatial axis."""
    sizes = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(sizes) != rank or any(not isinstance(v, int) or v < 1 for v in sizes):
        wanted = "one or two positive integers" if rank == 2 else "a positive integer"
        raise ValueError(f"`{name}` must be {wanted}. Received: {value}")
    return sizes


class KernelLayer(keras.layers.Layer):
    """activation(f(x, kernel) + bias), with `kernel` from `effective_kernel(training)`."""

    in_axis: int | None = None  # of the kernel; None where inputs and outputs are the same channels
    out_axis: int = -1

    def __init__(
        self,
        *,
        use_bias: bool = True,
        activation: Any = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.use_bias = use_bias
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.bias = None
        self.positions: int | None = None

    # What a subclass knows.
    def kernel_shape(self, input_shape: Shape) -> tuple[int, ...]:
        raise NotImplementedError

    def output_channels(self, input_shape: Shape) -> int:
        raise NotImplementedError

    def apply_kernel(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    # What the search or the compact network adds.
    def effective_kernel(self, training: bool | None) -> tf.Tensor:
        return self.theta

    def build(self, input_shape: Shape) -> None:
        if input_shape[-1] is None:
            raise ValueError(
                f"The channels of the input of `{self.name}` must be known. Received: {input_shape}"
            )
        self.theta = self.add_weight(
            name="kernel",
            shape=self.kernel_shape(input_shape),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            autocast=False,  # what becomes of it is computed in float32, whatever the policy
        )
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.output_channels(input_shape),),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                autocast=False,
            )

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        kernel = ops.cast(self.effective_kernel(training), self.compute_dtype)
        if not training and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            outputs = self.apply_kernel(_never_empty(inputs), kernel)[: ops.shape(inputs)[0]]
        else:
            outputs = self.apply_kernel(inputs, kernel)
        self.positions = self.multiplied_positions(inputs.shape, outputs.shape)
        if self.bias is not None:
            outputs = ops.add(outputs, ops.cast(self.bias, outputs.dtype))
        return self.activation(outputs)

    def compute_output_spec(
        self, inputs: keras.KerasTensor, training: bool | None = None
    ) -> keras.KerasTensor:
        # From the shape of the kernel alone: tracing how it comes about takes most of the time that
        # a large network is built in.
        shape = list(self.theta.shape)
        if self.in_axis is not None:
            shape[self.in_axis] = inputs.shape[-1]  # of all groups together: Keras compares them
        kernel = keras.KerasTensor(shape, self.compute_dtype)
        outputs = self.apply_kernel(inputs, kernel)
        self.positions = self.multiplied_positions(inputs.shape, outputs.shape)
        return keras.KerasTensor(outputs.shape, outputs.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        kernel = keras.KerasTensor(self.kernel_shape(input_shape), self.compute_dtype)
        inputs = keras.KerasTensor(input_shape, self.compute_dtype)
        return tuple(self.apply_kernel(inputs, kernel).shape)

    @property
    def kernel(self) -> keras.Variable:
        """The weights that are trained, `theta`, by the name they have in Keras' own layers."""
        if not hasattr(self, "theta"):
            raise AttributeError(f"`{self.name}` has no kernel before it is built.")
        return self.theta

    def multiplied_positions(self, input_shape: Shape, output_shape: Shape) -> int | None:
        """How often each weight of a dense kernel is multiplied for one input."""
        spatial = tuple(output_shape)[1:-1]
        return None if None in spatial else math.prod(spatial)

    @property
    def taps(self) -> int:
        """Spatial positions of the kernel."""
        return math.prod(getattr(self, "kernel_size", ()))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
        }


def _never_empty(inputs: tf.Tensor) -> tf.Tensor:
    """`inputs`, or one example of zeros if there is none.

    Of several replicas, one may have no examples of a last batch that is evaluated, and oneDNN's
    convolutions (TensorFlow 2.21, processors with AVX512-VNNI) give an empty batch the shape of
    their inputs.
    """
    missing = tf.cast(tf.equal(tf.shape(inputs)[0], 0), tf.int32)
    return tf.pad(inputs, [[0, missing], *([[0, 0]] * (len(inputs.shape) - 1))])


class _SpatialKernel(KernelLayer):
    """What the convolutions share."""

    rank = 2  # spatial axes
    paddings: tuple[str, ...] = ("valid", "same")

    def __init__(
        self,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: str = "valid",
        dilation_rate: int | Sequence[int] = 1,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if padding not in self.paddings:
            known = " or ".join(map(repr, self.paddings))
            raise ValueError(f"`padding` must be {known}. Received: {padding!r}")
        self.kernel_size = _sizes(kernel_size, self.rank, "kernel_size")
        self.strides = _sizes(strides, self.rank, "strides")
        self.dilation_rate = _sizes(dilation_rate, self.rank, "dilation_rate")
        self.padding = padding

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kernel_size": self.kernel_size,
            "strides": self.strides,
            "padding": self.padding,
            "dilation_rate": self.dilation_rate,
        }


class Conv2DKernel(_SpatialKernel):
    """2D convolution, channels last."""

    in_axis, out_axis = 2, 3

    def __init__(
        self, filters: int, kernel_size: int | Sequence[int], *, groups: int = 1, **kwargs: Any
    ):
        super().__init__(kernel_size, **kwargs)
        self.filters, self.groups = filters, groups

    def kernel_shape(self, input_shape: Shape) -> tuple[int, ...]:
        return (*self.kernel_size, input_shape[-1] // self.groups, self.filters)

    def output_channels(self, input_shape: Shape) -> int:
        return self.filters

    def apply_kernel(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        if self.groups == self.taps == 1:
            return _at_each_position(inputs, kernel, self.strides)
        return ops.conv(
            inputs,
            kernel,
            strides=self.strides,
            padding=self.padding,
            data_format="channels_last",
            dilation_rate=self.dilation_rate,
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "filters": self.filters, "groups": self.groups}


def _at_each_position(inputs: tf.Tensor, kernel: tf.Tensor, strides: tuple[int, ...]) -> tf.Tensor:
    """A convolution of one tap, as a matrix product: a processor begins that far sooner."""
    if any(stride > 1 for stride in strides):
        inputs = inputs[:, *(slice(None, None, stride) for stride in strides)]
    matrix = ops.reshape(kernel, kernel.shape[-2:])
    positions = inputs.shape[1:-1]
    if None in positions:
        return ops.matmul(inputs, matrix)
    outputs = ops.matmul(ops.reshape(inputs, (-1, inputs.shape[-1])), matrix)
    return ops.reshape(outputs, (-1, *positions, matrix.shape[-1]))


class Conv1DKernel(Conv2DKernel):
    """1D convolution, channels last; "causal" padding sees nothing of the future."""

    in_axis, out_axis = 1, 2
    rank = 1
    paddings = ("valid", "same", "causal")

    def apply_kernel(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        if self.groups == self.taps == 1:
            return _at_each_position(inputs, kernel, self.strides)
        padding = self.padding
        if padding == "causal":
            before = (self.kernel_size[0] - 1) * self.dilation_rate[0]
            inputs, padding = ops.pad(inputs, ((0, 0), (before, 0), (0, 0))), "valid"
        return ops.conv(
            inputs,
            kernel,
            strides=self.strides,
            padding=padding,
            data_format="channels_last",
            dilation_rate=self.dilation_rate,
        )


class DepthwiseConv2DKernel(_SpatialKernel):
    """Depthwise 2D convolution: output channels are the input's, each `depth_multiplier` times."""

    in_axis, out_axis = None, 2

    def __init__(
        self, kernel_size: int | Sequence[int], *, depth_multiplier: int = 1, **kwargs: Any
    ):
        super().__init__(kernel_size, **kwargs)
        self.depth_multiplier = depth_multiplier

    def kernel_shape(self, input_shape: Shape) -> tuple[int, ...]:
        return (*self.kernel_size, input_shape[-1], self.depth_multiplier)

    def output_channels(self, input_shape: Shape) -> int:
        return input_shape[-1] * self.depth_multiplier

    def apply_kernel(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        if self._has_one_position(inputs.shape):
            return _by_the_middle_tap(inputs, kernel)
        return ops.depthwise_conv(
            inputs,
            kernel,
            strides=self.strides,
            padding=self.padding,
            data_format="channels_last",
            dilation_rate=self.dilation_rate,
        )

    def _has_one_position(self, input_shape: Shape) -> bool:
        """Whether all taps but one see nothing but padding."""
        one_position = set(input_shape[1:-1]) == {1}
        return one_position and self.padding == "same" and set(self.dilation_rate) == {1}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "depth_multiplier": self.depth_multiplier}


def _by_the_middle_tap(inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """A depthwise convolution of a single position, as a product: that is begun far sooner."""
    tap = kernel[tuple((size - 1) // 2 for size in kernel.shape[:-2])]
    outputs = ops.multiply(ops.expand_dims(inputs, -1), tap)
    return ops.reshape(outputs, (-1, *inputs.shape[1:-1], math.prod(tap.shape)))


class DepthwiseConv1DKernel(DepthwiseConv2DKernel):
    """Depthwise 1D convolution."""

    in_axis, out_axis = None, 1
    rank = 1


class Conv2DTransposeKernel(_SpatialKernel):
    """Transposed 2D convolution; its kernel is [height, width, out, in]."""

    in_axis, out_axis = 3, 2

    def __init__(self, filters: int, kernel_size: int | Sequence[int], **kwargs: Any):
        super().__init__(kernel_size, **kwargs)
        self.filters = filters

    def kernel_shape(self, input_shape: Shape) -> tuple[int, ...]:
        return (*self.kernel_size, self.filters, input_shape[-1])

    def output_channels(self, input_shape: Shape) -> int:
        return self.filters

    def apply_kernel(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return ops.conv_transpose(
            inputs,
            kernel,
            strides=self.strides,
            padding=self.padding,
            data_format="channels_last",
            dilation_rate=self.dilation_rate,
        )

    def multiplied_positions(self, input_shape: Shape, output_shape: Shape) -> int | None:
        return super().multiplied_positions(output_shape, input_shape)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "filters": self.filters}


class Conv1DTransposeKernel(Conv2DTransposeKernel):
    """Transposed 1D convolution; its kernel is [length, out, in]."""

    in_axis, out_axis = 2, 1
    rank = 1


class DenseKernel(KernelLayer):
    """Matrix product over the last axis."""

    in_axis, out_axis = 0, 1

    def __init__(self, units: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.units = units

    def kernel_shape(self, input_shape: Shape) -> tuple[int, ...]:
        return (input_shape[-1], self.units)

    def output_channels(self, input_shape: Shape) -> int:
        return self.units

    def apply_kernel(self, inputs: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return ops.matmul(inputs, kernel)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}
