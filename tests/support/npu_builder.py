"""Writes small int8 TFLite networks operator by operator, without training.

Quantized so that its values spread over int8, a drawn network finds wrong rounding and wrong
geometry as well as a trained one does, and takes milliseconds to make.
"""

from __future__ import annotations

import math

import flatbuffers
import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

SAME, VALID = 0, 1
NONE, RELU, RELU6 = 0, 1, 3
_OPS = schema.BuiltinOperator
_INT8, _INT32 = schema.TensorType.INT8, schema.TensorType.INT32


class NetworkBuilder:
    """Writes a TFLite graph operator by operator; tensors are numbers, spread is in int8 steps."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.buffers = [schema.BufferT()]
        self.buffers[0].data = []
        self.tensors: list[schema.TensorT] = []
        self.operators: list[schema.OperatorT] = []
        self.codes: dict[int, int] = {}
        self.inputs: list[int] = []

    def shape(self, tensor: int) -> tuple[int, ...]:
        return tuple(self.tensors[tensor].shape)

    def scale(self, tensor: int) -> float:
        return float(self.tensors[tensor].quantization.scale[0])

    def tensor(self, shape, scale, zero=0, data=None, kind=_INT8, axis=0) -> int:
        made = schema.TensorT()
        made.shape = [int(n) for n in shape]
        made.type = kind
        made.name = f"t{len(self.tensors)}"
        made.buffer = 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            made.buffer = len(self.buffers)
            self.buffers.append(buffer)
        if scale is not None:
            made.quantization = schema.QuantizationParametersT()
            scales = np.atleast_1d(np.asarray(scale, np.float32))
            made.quantization.scale = scales
            made.quantization.zeroPoint = np.broadcast_to(np.int64(zero), scales.shape).copy()
            made.quantization.quantizedDimension = axis
        self.tensors.append(made)
        return len(self.tensors) - 1

    def constant(self, values) -> int:
        values = np.asarray(values, np.int32)
        return self.tensor(values.shape, None, data=values, kind=_INT32)

    def input(self, *shape: int) -> int:
        zero = int(self.rng.integers(-128, 128))
        self.inputs.append(self.tensor((1, *shape), self.rng.uniform(0.005, 0.1), zero))
        return self.inputs[-1]

    def activation(self, shape, spread: float, low: float | None = None) -> int:
        """A tensor whose values reach about 3 `spread`; from `low` upwards if given.

        Drawn, not fixed: with round ratios of scales many results are exact halves, and there the
        multipliers decide, which Vela computes in float32 and TFLM in float64.
        """
        reach = self.rng.uniform(2.5, 3.5) * max(spread, 1e-6)
        bottom = -reach if low is None else low
        scale = (reach - bottom) / 255
        zero = int(np.clip(round(-128 - bottom / scale), -128, 127))
        return self.tensor(shape, scale, zero)

    def operator(self, code, inputs, output, options=None, kind=None) -> int:
        made = schema.OperatorT()
        made.opcodeIndex = self.codes.setdefault(code, len(self.codes))
        made.inputs, made.outputs = list(inputs), [output]
        if options is not None:
            made.builtinOptions = options
            made.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
        self.operators.append(made)
        return output

    def spread(self, tensor: int) -> float:
        return 64 * self.scale(tensor)

    def _low(self, activation: int) -> float | None:
        return None if activation == NONE else 0.0

    def _window(self, tensor, kernel, stride, dilation, padding) -> tuple[int, int]:
        _, height, width, _ = self.shape(tensor)
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        if padding == SAME:
            return -(-height // stride[0]), -(-width // stride[1])
        return (height - reach[0]) // stride[0] + 1, (width - reach[1]) // stride[1] + 1

    def _weights(self, shape, axis, density) -> tuple[int, np.ndarray]:
        """Random int8 weights, some of them of few levels or mostly zero; scales per channel."""
        levels = int(self.rng.choice([1, 7, 31, 127]))
        values = self.rng.integers(-levels, levels + 1, shape)
        values = (values * (self.rng.random(shape) < density)).astype(np.int8)
        scales = self.rng.uniform(0.5, 1.5, shape[axis]) / max(levels, 1) * 0.1
        return self.tensor(shape, scales, data=values, axis=axis), scales

    def conv(
        self,
        x,
        channels,
        kernel=(3, 3),
        stride=(1, 1),
        dilation=(1, 1),
        padding=SAME,
        act=NONE,
        groups=1,
    ) -> int:
        depth = self.shape(x)[3] // groups
        density = float(self.rng.choice([0.1, 0.5, 1.0]))
        weights, scales = self._weights((channels, *kernel, depth), 0, density)
        bias = self.rng.integers(-2000, 2000, channels).astype(np.int32)
        bias = self.tensor((channels,), scales * self.scale(x), data=bias, kind=_INT32)
        options = schema.Conv2DOptionsT()
        options.padding, options.fusedActivationFunction = padding, act
        options.strideH, options.strideW = stride
        options.dilationHFactor, options.dilationWFactor = dilation
        spread = self.spread(x) * 0.06 * math.sqrt(density * kernel[0] * kernel[1] * depth)
        size = self._window(x, kernel, stride, dilation, padding)
        out = self.activation((1, *size, channels), spread, self._low(act))
        return self.operator(_OPS.CONV_2D, [x, weights, bias], out, options, "Conv2DOptions")

    def depthwise(
        self, x, kernel=(3, 3), stride=(1, 1), dilation=(1, 1), padding=SAME, act=NONE
    ) -> int:
        depth = self.shape(x)[3]
        weights, scales = self._weights((1, *kernel, depth), 3, 1.0)
        bias = self.rng.integers(-500, 500, depth).astype(np.int32)
        bias = self.tensor((depth,), scales * self.scale(x), data=bias, kind=_INT32)
        options = schema.DepthwiseConv2DOptionsT()
        options.padding, options.fusedActivationFunction = padding, act
        options.strideH, options.strideW = stride
        options.dilationHFactor, options.dilationWFactor = dilation
        options.depthMultiplier = 1
        size = self._window(x, kernel, stride, dilation, padding)
        spread = self.spread(x) * 0.06 * math.sqrt(kernel[0] * kernel[1])
        out = self.activation((1, *size, depth), spread, self._low(act))
        return self.operator(
            _OPS.DEPTHWISE_CONV_2D, [x, weights, bias], out, options, "DepthwiseConv2DOptions"
        )

    def pool(self, x, kernel=(2, 2), stride=(2, 2), padding=VALID, average=True) -> int:
        options = schema.Pool2DOptionsT()
        options.padding, options.fusedActivationFunction = padding, NONE
        options.strideH, options.strideW = stride
        options.filterHeight, options.filterWidth = kernel
        size = self._window(x, kernel, stride, (1, 1), padding)
        code = _OPS.AVERAGE_POOL_2D if average else _OPS.MAX_POOL_2D
        out = self._like(x, (1, *size, self.shape(x)[3]))
        return self.operator(code, [x], out, options, "Pool2DOptions")

    def _like(self, x, shape) -> int:
        quantization = self.tensors[x].quantization
        return self.tensor(shape, quantization.scale, int(quantization.zeroPoint[0]))

    def binary(self, name, x, y, act=NONE) -> int:
        options = getattr(schema, f"{name.capitalize()}OptionsT")()
        options.fusedActivationFunction = act
        spreads = self.spread(x), self.spread(y)
        spread = spreads[0] * spreads[1] if name == "mul" else math.hypot(*spreads)
        shape = np.broadcast_shapes(self.shape(x), self.shape(y))
        out = self.activation(shape, spread, self._low(act))
        code = getattr(_OPS, name.upper())
        return self.operator(code, [x, y], out, options, f"{name.capitalize()}Options")

    def extremum(self, name, x, y) -> int:
        """MINIMUM or MAXIMUM; both operands share their quantization."""
        kind = "MaximumMinimumOptions"
        out = self._like(x, self.shape(x))
        code = getattr(_OPS, name)
        return self.operator(code, [x, y], out, schema.MaximumMinimumOptionsT(), kind)

    def concat(self, tensors, axis=3) -> int:
        options = schema.ConcatenationOptionsT()
        options.axis = axis
        shape = list(self.shape(tensors[0]))
        shape[axis] = sum(self.shape(t)[axis] for t in tensors)
        out = self._like(tensors[0], shape)
        return self.operator(_OPS.CONCATENATION, tensors, out, options, "ConcatenationOptions")

    def dense(self, x, units, act=NONE) -> int:
        size = math.prod(self.shape(x))
        if len(self.shape(x)) != 2:
            x = self.reshape(x, (1, size))
        values = self.rng.integers(-127, 128, (units, size)).astype(np.int8)
        scale = 0.001
        weights = self.tensor((units, size), scale, data=values)
        bias = self.rng.integers(-500, 500, units).astype(np.int32)
        bias = self.tensor((units,), scale * self.scale(x), data=bias, kind=_INT32)
        options = schema.FullyConnectedOptionsT()
        options.fusedActivationFunction = act
        spread = self.spread(x) * 0.07 * math.sqrt(size)
        out = self.activation((1, units), spread, self._low(act))
        kind = "FullyConnectedOptions"
        return self.operator(_OPS.FULLY_CONNECTED, [x, weights, bias], out, options, kind)

    def reshape(self, x, shape) -> int:
        options = schema.ReshapeOptionsT()
        options.newShape = [int(n) for n in shape]
        out = self._like(x, shape)
        return self.operator(
            _OPS.RESHAPE, [x, self.constant(list(shape))], out, options, "ReshapeOptions"
        )

    def mean(self, x) -> int:
        options = schema.ReducerOptionsT()
        options.keepDims = True
        _, _, _, depth = self.shape(x)
        out = self.activation((1, 1, 1, depth), self.spread(x) / 2)
        return self.operator(_OPS.MEAN, [x, self.constant([1, 2])], out, options, "ReducerOptions")

    def softmax(self, x) -> int:
        options = schema.SoftmaxOptionsT()
        options.beta = 1.0
        out = self.tensor(self.shape(x), 1 / 256, -128)
        return self.operator(_OPS.SOFTMAX, [x], out, options, "SoftmaxOptions")

    def unary(self, name, x) -> int:
        fixed = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
        if name in fixed:
            out = self.tensor(self.shape(x), *fixed[name])
        else:
            low = {"ELU": -1.0, "HARD_SWISH": -0.375}.get(name, 0.0)
            out = self.activation(self.shape(x), self.spread(x), low)
        if name == "LEAKY_RELU":
            options = schema.LeakyReluOptionsT()
            options.alpha = float(self.rng.uniform(0.05, 0.5))
            out = self.activation(self.shape(x), self.spread(x))
            return self.operator(_OPS.LEAKY_RELU, [x], out, options, "LeakyReluOptions")
        return self.operator(getattr(_OPS, name), [x], out)

    def rsqrt(self, x) -> int:
        """Of the squares of `x`, which cannot be negative."""
        options = schema.MulOptionsT()
        square = self.activation(self.shape(x), self.spread(x) ** 2, 0.0)
        square = self.operator(_OPS.MUL, [x, x], square, options, "MulOptions")
        out = self.activation(self.shape(x), self.rng.uniform(0.5, 4) / self.spread(x), 0.0)
        return self.operator(_OPS.RSQRT, [square], out)

    def matmul(self, x) -> int:
        """The product of each plane with its own transposed, as attention has it."""
        order = [0, 1, 3, 2]
        turned = self._like(x, [self.shape(x)[axis] for axis in order])
        options = schema.TransposeOptionsT()
        inputs = [x, self.constant(order)]
        turned = self.operator(_OPS.TRANSPOSE, inputs, turned, options, "TransposeOptions")
        _, rows, columns, depth = self.shape(x)
        spread = self.spread(x) ** 2 * math.sqrt(depth)
        out = self.activation((1, rows, columns, columns), spread)
        options = schema.BatchMatMulOptionsT()
        return self.operator(_OPS.BATCH_MATMUL, [x, turned], out, options, "BatchMatMulOptions")

    def channel_mean(self, x) -> int:
        """As `reducing` writes it, spread over the channels again by a difference."""
        mean = self.conv(x, 1, kernel=(1, 1))
        return self.binary("sub", x, mean)

    def channel_max(self, x) -> int:
        _, rows, columns, depth = self.shape(x)
        flat = self.reshape(x, (1, rows * columns, depth, 1))
        size = (1, depth)
        return self.reshape(self.pool(flat, size, size, VALID, False), (1, rows, columns, 1))

    def bilinear(self, x) -> int:
        _, height, width, depth = self.shape(x)
        options = schema.ResizeBilinearOptionsT()
        options.halfPixelCenters = True
        size = self.constant([2 * height, 2 * width])
        out = self._like(x, (1, 2 * height, 2 * width, depth))
        kind = "ResizeBilinearOptions"
        return self.operator(_OPS.RESIZE_BILINEAR, [x, size], out, options, kind)

    def prelu(self, x) -> int:
        slopes = self.rng.integers(-127, 128, (1, 1, self.shape(x)[3])).astype(np.int8)
        slopes = self.tensor(slopes.shape, self.rng.uniform(0.001, 0.01), data=slopes)
        out = self.activation(self.shape(x), self.spread(x))
        return self.operator(_OPS.PRELU, [x, slopes], out)

    def transpose(self, x) -> int:
        order = [0, *(1 + self.rng.permutation(3))]
        out = self._like(x, [self.shape(x)[axis] for axis in order])
        options = schema.TransposeOptionsT()
        return self.operator(
            _OPS.TRANSPOSE, [x, self.constant(order)], out, options, "TransposeOptions"
        )

    def reduce(self, name, x, axis) -> int:
        options = schema.ReducerOptionsT()
        options.keepDims = True
        shape = [1 if i == axis else n for i, n in enumerate(self.shape(x))]
        out = self._like(x, shape)
        code = getattr(_OPS, name)
        return self.operator(code, [x, self.constant([axis])], out, options, "ReducerOptions")

    def slice(self, x) -> int:
        shape = np.asarray(self.shape(x))
        begin = np.append(0, self.rng.integers(0, (shape[1:] + 1) // 2))
        end = np.append(1, shape[1:] - self.rng.integers(0, (shape[1:] + 1) // 2))
        end = np.maximum(end, begin + 1)
        out = self._like(x, end - begin)
        inputs = [x, *(self.constant(c) for c in (begin, end, np.ones(4, int)))]
        options = schema.StridedSliceOptionsT()
        return self.operator(_OPS.STRIDED_SLICE, inputs, out, options, "StridedSliceOptions")

    def pad(self, x) -> int:
        amounts = self.rng.integers(0, 3, (2, 2))
        _, height, width, depth = self.shape(x)
        shape = (1, height + int(amounts[0].sum()), width + int(amounts[1].sum()), depth)
        table = np.concatenate([[[0, 0]], amounts, [[0, 0]]])
        out = self._like(x, shape)
        return self.operator(
            _OPS.PAD, [x, self.constant(table)], out, schema.PadOptionsT(), "PadOptions"
        )

    def upscale(self, x) -> int:
        _, height, width, depth = self.shape(x)
        options = schema.ResizeNearestNeighborOptionsT()
        size = self.constant([2 * height, 2 * width])
        out = self._like(x, (1, 2 * height, 2 * width, depth))
        kind = "ResizeNearestNeighborOptions"
        return self.operator(_OPS.RESIZE_NEAREST_NEIGHBOR, [x, size], out, options, kind)

    def transpose_conv(self, x, channels, kernel=(3, 3), stride=2) -> int:
        _, height, width, depth = self.shape(x)
        weights, scales = self._weights((channels, *kernel, depth), 0, 1.0)
        bias = self.rng.integers(-500, 500, channels).astype(np.int32)
        bias = self.tensor((channels,), scales * self.scale(x), data=bias, kind=_INT32)
        options = schema.TransposeConvOptionsT()
        options.padding, options.strideH, options.strideW = SAME, stride, stride
        shape = (1, height * stride, width * stride, channels)
        spread = self.spread(x) * 0.06 * math.sqrt(kernel[0] * kernel[1] * depth / stride**2)
        out = self.activation(shape, spread)
        inputs = [self.constant(list(shape)), weights, x, bias]
        return self.operator(_OPS.TRANSPOSE_CONV, inputs, out, options, "TransposeConvOptions")

    def finish(self, *outputs: int) -> bytes:
        """The flatbuffer."""
        graph = schema.SubGraphT()
        graph.tensors, graph.operators = self.tensors, self.operators
        graph.inputs, graph.outputs = self.inputs, list(outputs)
        model = schema.ModelT()
        model.version, model.subgraphs, model.buffers = 3, [graph], self.buffers
        model.operatorCodes = []
        for code in self.codes:
            made = schema.OperatorCodeT()
            made.builtinCode, made.deprecatedBuiltinCode = code, min(code, 127)
            made.version = 1
            model.operatorCodes.append(made)
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
