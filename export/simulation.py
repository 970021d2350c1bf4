"""Runs an `IntegerNetwork` in floating point: for calibration, and as the fake-quant reference.

With quantizations given, every tensor that the .tflite materialises is rounded to its 256 values;
that is what the network computes in quantization-aware training. Outputs of kernels, means and
products that the finetuned network rounds in two steps, as integers do, are rounded so here.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from udc_tf.export.integer_network import (
    INT8_MAX,
    INT8_MIN,
    IntegerNetwork,
    Quantization,
    Step,
)
from udc_tf.quantize import rounding


def run(
    network: IntegerNetwork,
    inputs: Sequence[np.ndarray],
    quantizations: Sequence[Quantization] | None = None,
    observe: Callable[[int, np.ndarray], None] | None = None,
) -> list[np.ndarray]:
    """Outputs for a batch of inputs.

    Args:
        inputs: one array per input of the network, real values, first axis the batch.
        quantizations: one per value of the network; None runs without rounding.
        observe: is called with each value's index and what it held.
    """
    held: dict[int, tf.Tensor] = {}

    def keep(index: int, tensor: tf.Tensor) -> None:
        held[index] = tensor
        if observe is not None:
            observe(index, tensor.numpy())

    def quantization(index: int) -> Quantization | None:
        return None if quantizations is None else quantizations[index]

    for index, array in zip(network.inputs, inputs, strict=True):
        keep(index, fake_quantize(tf.constant(array, tf.float32), quantization(index)))
    for step in network.steps:
        result = apply(network, step, held)
        if quantizations is not None and network.values[step.output].rounds_twice:
            result = scaled_twice(network, step, result, quantizations)
        keep(step.output, finish(step, result, quantization(step.output)))
    return [held[i].numpy() for i in network.outputs]


def apply(network: IntegerNetwork, step: Step, held: Mapping[int, tf.Tensor]) -> tf.Tensor:
    """A step's result in real numbers, before its fused activation."""
    shape = (-1, *network.values[step.output].shape[1:])
    return _OPERATIONS[step.kind](step, [held[i] for i in step.inputs], shape)


def finish(step: Step, result: tf.Tensor, quantization: Quantization | None) -> tf.Tensor:
    """The fused activation, the limits at which 8 bits saturate, and rounding to int8."""
    result = _FUSED[step.activation](result)
    if step.limits is not None:
        result = tf.clip_by_value(result, *step.limits)
    return fake_quantize(result, quantization)


def scaled_twice(
    network: IntegerNetwork, step: Step, result: tf.Tensor, quantizations: Sequence[Quantization]
) -> tf.Tensor:
    """The result of a kernel, mean or product rounded to what its multiplier's shift leaves, then
    to steps.

    Any other step's result stays.
    """
    output = float(quantizations[step.output].scale)
    units: np.ndarray | float
    fractions: np.ndarray | float
    if step.kernel is not None:
        source = float(quantizations[step.inputs[0]].scale)
        # In doubles: the file's scales are floats, but a runtime multiplies them as doubles.
        units = source * np.asarray(step.weights.scales, np.float32).astype(np.float64)
        fractions = rounding.first_roundings(units, output)
    elif step.kind == "MEAN":
        source = float(quantizations[step.inputs[0]].scale)
        shape = network.values[step.inputs[0]].shape
        count = math.prod(shape[axis] for axis in step.options["axes"])
        units = source / count
        fractions = rounding.first_rounding_of_mean(source, output, count)
    elif step.kind in _PRODUCTS:
        units = math.prod(float(quantizations[index].scale) for index in step.inputs)
        fractions = rounding.first_roundings(np.asarray(units), output)
    else:
        return result
    # Inputs are whole steps, and the file's bias is whole units: so are accumulators.
    accumulators = tf.round(tf.cast(result, tf.float64) / units)
    steps = rounding.round_twice(accumulators * (units / output), fractions)
    return tf.cast(steps, tf.float32) * output


def fake_quantize(tensor: tf.Tensor, quantization: Quantization | None) -> tf.Tensor:
    """Rounds to the values that int8 can hold, as `Quantization.quantize` does."""
    if quantization is None:
        return tensor
    low, high = (limit - quantization.zero_point for limit in (INT8_MIN, INT8_MAX))
    steps = rounding.round_half_up(tf.cast(tensor, tf.float64) / float(quantization.scale))
    return tf.cast(tf.clip_by_value(steps, low, high), tf.float32) * quantization.scale


_PRODUCTS = ("MUL", "BATCH_MATMUL")
_FUSED = {"NONE": tf.identity, "RELU": tf.nn.relu, "RELU6": tf.nn.relu6}


def _bias(step: Step) -> np.ndarray:
    return step.weights.bias.astype(np.float32)


def _convolution(step: Step, inputs: Sequence[tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
    weights = step.weights.real().transpose(1, 2, 3, 0)
    options = step.options
    convolved = tf.nn.convolution(
        inputs[0],
        weights,
        strides=options["strides"],
        padding=options["padding"],
        dilations=options["dilation"],
    )
    return convolved + _bias(step)


def _depthwise(step: Step, inputs: Sequence[tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
    options = step.options
    _, height, width, channels = step.weights.codes.shape
    times = options["multiplier"]
    weights = step.weights.real().reshape(height, width, channels // times, times)
    convolved = tf.nn.depthwise_conv2d(
        inputs[0],
        weights,
        strides=(1, *_square(options["strides"]), 1),
        padding=options["padding"],
        dilations=options["dilation"],
    )
    return convolved + _bias(step)


def _square(strides: tuple[int, int]) -> tuple[int, int]:
    if strides[0] != strides[1]:
        raise NotImplementedError(f"TensorFlow's depthwise strides are square. Received: {strides}")
    return strides


def _transposed(step: Step, inputs: Sequence[tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
    weights = step.weights.real().transpose(1, 2, 0, 3)
    batch = tf.shape(inputs[0])[0]
    convolved = tf.nn.conv2d_transpose(
        inputs[0],
        weights,
        tf.stack([batch, *shape[1:]]),
        strides=step.options["strides"],
        padding=step.options["padding"],
    )
    return convolved + _bias(step)


def _dense(step: Step, inputs: Sequence[tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
    return tf.linalg.matmul(inputs[0], step.weights.real(), transpose_b=True) + _bias(step)


def _pool(step: Step, inputs: Sequence[tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
    pool = tf.nn.max_pool2d if step.kind == "MAX_POOL_2D" else tf.nn.avg_pool2d
    options = step.options
    return pool(inputs[0], options["size"], options["strides"], options["padding"])


def _mean(step: Step, inputs: Sequence[tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
    return tf.reduce_mean(inputs[0], axis=step.options["axes"], keepdims=step.options["keep"])


def _slice(step: Step, inputs: Sequence[tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
    bounds = zip(step.options["begin"][1:], step.options["end"][1:], strict=True)
    return inputs[0][(slice(None), *(slice(begin, end) for begin, end in bounds))]


def _prelu(step: Step, inputs: Sequence[tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
    slopes = step.options["slopes"]
    return tf.where(inputs[0] < 0, inputs[0] * slopes.real(), inputs[0])


def _resize(step: Step, inputs: Sequence[tf.Tensor], shape: tuple[int, ...]) -> tf.Tensor:
    method = "nearest" if step.kind == "RESIZE_NEAREST_NEIGHBOR" else "bilinear"
    return tf.image.resize(inputs[0], step.options["size"], method)


_OPERATIONS = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transposed,
    "FULLY_CONNECTED": _dense,
    "MAX_POOL_2D": _pool,
    "AVERAGE_POOL_2D": _pool,
    "MEAN": _mean,
    "STRIDED_SLICE": _slice,
    "TRANSPOSE": lambda step, inputs, shape: tf.transpose(inputs[0], step.options["order"]),
    "MAXIMUM": lambda step, inputs, shape: tf.maximum(*inputs),
    "MINIMUM": lambda step, inputs, shape: tf.minimum(*inputs),
    "BATCH_MATMUL": lambda step, inputs, shape: tf.linalg.matmul(*inputs),
    "RSQRT": lambda step, inputs, shape: tf.math.rsqrt(
        tf.maximum(inputs[0], step.options["least"])
    ),
    "ABS": lambda step, inputs, shape: tf.abs(inputs[0]),
    "ELU": lambda step, inputs, shape: tf.nn.elu(inputs[0]),
    "PRELU": _prelu,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "RESIZE_BILINEAR": _resize,
    "RESHAPE": lambda step, inputs, shape: tf.reshape(inputs[0], shape),
    "PAD": lambda step, inputs, shape: tf.pad(inputs[0], step.options["padding"]),
    "CONCATENATION": lambda step, inputs, shape: tf.concat(inputs, step.options["axis"]),
    "QUANTIZE": lambda step, inputs, shape: inputs[0],
    "ADD": lambda step, inputs, shape: inputs[0] + inputs[1],
    "SUB": lambda step, inputs, shape: inputs[0] - inputs[1],
    "MUL": lambda step, inputs, shape: inputs[0] * inputs[1],
    "RELU": lambda step, inputs, shape: tf.nn.relu(inputs[0]),
    "RELU6": lambda step, inputs, shape: tf.nn.relu6(inputs[0]),
    "LOGISTIC": lambda step, inputs, shape: tf.sigmoid(inputs[0]),
    "TANH": lambda step, inputs, shape: tf.tanh(inputs[0]),
    "SOFTMAX": lambda step, inputs, shape: tf.nn.softmax(inputs[0]),
    "LEAKY_RELU": lambda step, inputs, shape: tf.nn.leaky_relu(inputs[0], step.options["alpha"]),
    "HARD_SWISH": lambda step, inputs, shape: inputs[0] * tf.nn.relu6(inputs[0] + 3) / 6,
}
