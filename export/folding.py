"""Integer kernels with batch norm folded into their scales and bias.

    gamma * (codes*d * x + bias - mean) / sigma + beta  =  (codes*sign(a)) * (d*|a|) x + folded bias

with a = gamma/sigma per channel: the integers stay those of training, up to the sign of a channel.
"""

import dataclasses

import keras
import numpy as np

from udc_tf.export.errors import ConversionError
from udc_tf.export.integer_network import WEIGHT_MAX, Kernel
from udc_tf.graph import conversion
from udc_tf.graph.affine import Affine
from udc_tf.quantize import number_format

# Where a layer's output channels are, in Keras and in TFLite, and how to get from one to the other.
_TO_TFLITE = {
    "Conv2D": ((3, 0, 1, 2), 0),
    "Conv2DTranspose": ((2, 0, 1, 3), 0),
    "Dense": ((1, 0), 0),
}
_LARGEST_BIAS = 2**30
_SMALLEST_RATIO = 2.0**-26


def integers_of(layer: keras.layers.Layer, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """A layer's codes in TFLite's layout, and a step for each channel.

    A layer of the compact network says what its integers are; a plain Keras layer is rounded to 8
    bits with the largest weight of each channel (dense: of the layer).
    """
    if hasattr(layer, "integer_kernel"):
        kernel = layer.integer_kernel()
        codes, axis = to_tflite(kernel.codes, kind)
        return codes, np.full(codes.shape[axis], np.float64(kernel.step))
    weights, axis = to_tflite(conversion.layer_weights(layer)["kernel"].astype(np.float64), kind)
    others = tuple(i for i in range(weights.ndim) if i != axis)
    largest = np.abs(weights).max(axis=None if kind == "Dense" else others)
    # Zeros alone fit any step; a tiny one would leave no room for their bias.
    largest = np.where(largest > 0, largest, np.abs(weights).max() or 1.0)
    steps = np.broadcast_to(largest / WEIGHT_MAX, weights.shape[axis])
    shape = [1] * weights.ndim
    shape[axis] = -1
    codes = np.clip(np.round(weights / steps.reshape(shape)), -WEIGHT_MAX, WEIGHT_MAX)
    return codes.astype(np.int8), steps


def shift_of(layer: keras.layers.Layer) -> int:
    """How many steps away from zero a compact layer's levels begin; 0 in the plain format."""
    if not hasattr(layer, "integer_kernel"):
        return 0
    step = np.float32(layer.integer_kernel().step)
    return int(number_format.shift_of(layer.beta.numpy(), step, layer.deployed_bits))


def to_tflite(kernel: np.ndarray, kind: str) -> tuple[np.ndarray, int]:
    """A Keras kernel in TFLite's layout, and the axis of its output channels there.

    One of a single spatial axis is one of two with a height of 1.
    """
    if "1D" in kind:
        kernel, kind = kernel[None], kind.replace("1D", "2D")
    if kind == "DepthwiseConv2D":
        height, width, channels, times = kernel.shape
        return kernel.reshape(1, height, width, channels * times), 3
    order, axis = _TO_TFLITE[kind]
    return np.ascontiguousarray(kernel.transpose(order)), axis


def fold(
    layer: keras.layers.Layer, name: str, kind: str, affine: Affine | None, per_tensor: bool
) -> Kernel:
    """The kernel of `layer` followed by `affine`."""
    codes, steps = integers_of(layer, kind)
    axis = 3 if kind.startswith("Depthwise") else 0
    channels = codes.shape[axis]
    bias = conversion.layer_weights(layer).get("bias", np.zeros(channels)).astype(np.float64)
    if affine is None:
        scales = steps[:1] if per_tensor else steps
        bits = getattr(layer, "bits", None)
        return Kernel(name, codes, axis, scales, bias, bits, shift=shift_of(layer))
    shape = [1] * codes.ndim
    shape[axis] = -1
    signs = np.where(affine.factor < 0, -1, 1).astype(np.int8)
    return Kernel(
        layer=name,
        codes=codes * signs.reshape(shape),
        axis=axis,
        scales=steps * np.abs(affine.factor),
        bias=bias * affine.factor + affine.offset,
        bits=getattr(layer, "bits", None),
        shift=shift_of(layer),
    )


def affine_kernel(name: str, affine: Affine) -> Kernel:
    """An affine map that stands alone, as a 1x1 depthwise convolution: exact in its factors."""
    codes = np.where(affine.factor < 0, -WEIGHT_MAX, WEIGHT_MAX).astype(np.int8)
    scales = np.abs(affine.factor) / WEIGHT_MAX
    return Kernel(name, codes.reshape(1, 1, 1, -1), 3, scales, affine.offset)


def within_int32(kernel: Kernel, input_scale: np.float32, output_scale: np.float32) -> Kernel:
    """Gives channels whose bias would leave 32 bits a larger scale.

    That is a channel that batch norm all but switched off: its bias is more than 2^30 times what
    one unit of its accumulator is worth (or its scale a 2^26th of the layer's largest). Its weights
    stay where even with the larger scale they cannot move the output by a quarter of a step; else
    they become zeros, and the channel is `collapsed`.
    """
    scales = np.broadcast_to(kernel.scales, kernel.bias.shape).astype(np.float64)
    smallest = np.abs(kernel.bias) / (_LARGEST_BIAS * float(input_scale))
    smallest = np.maximum(smallest, max(float(scales.max()), 1e-12) * _SMALLEST_RATIO)
    dead = np.flatnonzero(scales < smallest)
    if not len(dead):
        return kernel
    if len(kernel.scales) < kernel.channels:
        # One scale for all: nothing to be done for single channels, and none was folded into it.
        raise ConversionError(
            f"The bias of the layer `{kernel.layer}` is too large for 32 bits beside weights of "
            f"step {kernel.scales[0]:g}. Received: {np.abs(kernel.bias).max():g}"
        )
    codes, scales = kernel.codes.copy(), scales.copy()
    scales[dead] = smallest[dead]
    others = tuple(i for i in range(codes.ndim) if i != kernel.axis)
    reach = np.abs(codes.astype(np.int64)).sum(axis=others) * 255.0 * float(input_scale) * scales
    moving = dead[reach[dead] > float(output_scale) / 4]
    index = [slice(None)] * codes.ndim
    index[kernel.axis] = moving
    codes[tuple(index)] = 0
    scales[moving] *= 2
    collapsed = tuple(int(c) for c in moving)
    return dataclasses.replace(kernel, codes=codes, scales=scales, collapsed=collapsed)
