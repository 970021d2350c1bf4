"""Writes an `IntegerNetwork` as a TFLite flatbuffer.

Written operator by operator rather than through TensorFlow's converter: the integers, scales and
zero points are known, and nothing may change them.
"""

from collections.abc import Sequence
from typing import Any

import flatbuffers
import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from udc_tf.export.integer_network import (
    Constant,
    IntegerNetwork,
    Quantization,
    Step,
    bias_scales,
)

_ALIGNMENT = 16  # of constant data, which a microcontroller reads in place
# Least version of each operator in which int8 (and a scale per channel) is defined.
_VERSIONS = {
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
    "TRANSPOSE_CONV": 3,
    "RESHAPE": 1,
    "HARD_SWISH": 1,
    "ELU": 1,
    "PRELU": 1,
    "RESIZE_NEAREST_NEIGHBOR": 3,
    "RESIZE_BILINEAR": 3,
}
_INT8_VERSION = 2

_Encoded = tuple[Sequence[int], Any]  # an operator's input tensors, and its options


class _AlignedBuffer(schema.BufferT):
    """Constant data at a multiple of 16 bytes, as TFLite's schema asks for."""

    def Pack(self, builder: flatbuffers.Builder) -> int:
        data = None
        if self.data is not None:
            raw = np.ascontiguousarray(self.data).tobytes()
            builder.StartVector(1, len(raw), _ALIGNMENT)
            builder.head = builder.head - len(raw)
            builder.Bytes[builder.head : builder.head + len(raw)] = raw
            data = builder.EndVector()
        schema.BufferStart(builder)
        if data is not None:
            schema.BufferAddData(builder, data)
        return schema.BufferEnd(builder)


def write(network: IntegerNetwork, quantizations: Sequence[Quantization]) -> bytes:
    """The bytes of the .tflite."""
    return _Writer(network, quantizations).bytes()


class _Writer:
    def __init__(self, network: IntegerNetwork, quantizations: Sequence[Quantization]):
        self._network, self._quantizations = network, quantizations
        self._tensors: list[schema.TensorT] = []
        self._buffers: list[schema.BufferT] = [_AlignedBuffer()]  # buffer 0 is empty by convention
        self._buffer_of: dict[bytes, int] = {}
        self._codes: list[schema.OperatorCodeT] = []
        self._code_of: dict[str, int] = {}
        self._constant_of: dict[tuple, int] = {}
        for value, quantization in zip(network.values, quantizations, strict=True):
            self._tensor(value.name, value.shape, "INT8", [quantization.scale], quantization)
        self._operators = [self._operator(step) for step in network.steps]

    def bytes(self) -> bytes:
        graph = schema.SubGraphT()
        graph.name = b"main"
        graph.tensors, graph.operators = self._tensors, self._operators
        graph.inputs = np.asarray(self._network.inputs, np.int32)
        graph.outputs = np.asarray(self._network.outputs, np.int32)
        model = schema.ModelT()
        model.version = 3
        model.description = b"udc-tf"
        model.operatorCodes, model.subgraphs, model.buffers = self._codes, [graph], self._buffers
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _tensor(
        self,
        name: str,
        shape: Sequence[int],
        kind: str,
        scales: Sequence[np.float32] | np.ndarray | None,
        quantization: Quantization | None = None,
        axis: int = 0,
        buffer: int = 0,
    ) -> int:
        tensor = schema.TensorT()
        tensor.name = name.encode()
        tensor.shape = np.asarray(shape, np.int32)
        tensor.type = getattr(schema.TensorType, kind)
        tensor.buffer = buffer
        if scales is not None:
            zero_point = 0 if quantization is None else quantization.zero_point
            parameters = schema.QuantizationParametersT()
            parameters.scale = np.asarray(scales, np.float32)
            parameters.zeroPoint = np.full(len(parameters.scale), zero_point, np.int64)
            parameters.quantizedDimension = axis
            tensor.quantization = parameters
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def _constant(
        self, name: str, array: np.ndarray, scales: np.ndarray | None = None, axis: int = 0
    ) -> int:
        kind = {"int8": "INT8", "int32": "INT32"}[array.dtype.name]
        raw = array.tobytes()
        if raw not in self._buffer_of:
            buffer = _AlignedBuffer()
            buffer.data = np.frombuffer(raw, np.uint8)
            self._buffers.append(buffer)
            self._buffer_of[raw] = len(self._buffers) - 1
        number = self._buffer_of[raw]
        # A layer that is called twice has its weights once.
        scale_bytes = None if scales is None else np.asarray(scales, np.float32).tobytes()
        key = (number, array.shape, kind, scale_bytes, axis)
        if key not in self._constant_of:
            self._constant_of[key] = self._tensor(
                name, array.shape, kind, scales, axis=axis, buffer=number
            )
        return self._constant_of[key]

    def _operator(self, step: Step) -> schema.OperatorT:
        inputs, options = _ENCODERS.get(step.kind, _plain)(self, step)
        operator = schema.OperatorT()
        operator.opcodeIndex = self._code(step.kind)
        operator.inputs = np.asarray(inputs, np.int32)
        operator.outputs = np.asarray([step.output], np.int32)
        if options is not None:
            name = type(options).__name__.removesuffix("T")
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, name)
            operator.builtinOptions = options
        return operator

    def _code(self, kind: str) -> int:
        if kind not in self._code_of:
            code = schema.OperatorCodeT()
            code.builtinCode = getattr(schema.BuiltinOperator, kind)
            code.deprecatedBuiltinCode = min(code.builtinCode, 127)
            code.version = _VERSIONS.get(kind, _INT8_VERSION)
            self._codes.append(code)
            self._code_of[kind] = len(self._codes) - 1
        return self._code_of[kind]

    def kernel_inputs(self, step: Step) -> list[int]:
        """Tensors of the input, the weights and the bias."""
        kernel, source = step.weights, step.inputs[0]
        axis = kernel.axis if len(kernel.scales) > 1 else 0
        weights = self._constant(f"{step.name}_weights", kernel.codes, kernel.scales, axis)
        units = bias_scales(step, self._quantizations)
        bias = self._constant(f"{step.name}_bias", kernel.written_bias, units)
        return [source, weights, bias]

    def integers(self, step: Step, what: str, numbers: Sequence[Any]) -> int:
        return self._constant(f"{step.name}_{what}", np.asarray(numbers, np.int32))

    def constant(self, name: str, constant: Constant) -> int:
        return self._constant(name, constant.codes, np.asarray([constant.scale]))

    def output_shape(self, step: Step) -> tuple[int, ...]:
        return self._network.values[step.output].shape


def _activation(step: Step) -> int:
    return getattr(schema.ActivationFunctionType, step.activation)


def _spatial(options: Any, step: Step) -> Any:
    options.padding = getattr(schema.Padding, step.options["padding"])
    options.strideH, options.strideW = step.options["strides"]
    options.fusedActivationFunction = _activation(step)
    return options


def _plain(writer: _Writer, step: Step) -> _Encoded:
    options = _PLAIN[step.kind]
    return step.inputs, options and options()


_PLAIN = {
    **dict.fromkeys(("LOGISTIC", "TANH", "RELU", "RELU6", "ELU", "RSQRT")),
    "QUANTIZE": schema.QuantizeOptionsT,
    "HARD_SWISH": schema.HardSwishOptionsT,
    "ABS": schema.AbsOptionsT,
    "BATCH_MATMUL": schema.BatchMatMulOptionsT,
    "MAXIMUM": schema.MaximumMinimumOptionsT,
    "MINIMUM": schema.MaximumMinimumOptionsT,
}


def _convolution(writer: _Writer, step: Step) -> _Encoded:
    options = _spatial(schema.Conv2DOptionsT(), step)
    options.dilationHFactor, options.dilationWFactor = step.options["dilation"]
    return writer.kernel_inputs(step), options


def _depthwise(writer: _Writer, step: Step) -> _Encoded:
    options = _spatial(schema.DepthwiseConv2DOptionsT(), step)
    options.dilationHFactor, options.dilationWFactor = step.options["dilation"]
    options.depthMultiplier = step.options["multiplier"]
    return writer.kernel_inputs(step), options


def _transposed(writer: _Writer, step: Step) -> _Encoded:
    options = _spatial(schema.TransposeConvOptionsT(), step)
    # A ReLU is in the output's range, which starts at zero; not every runtime has it fused.
    options.fusedActivationFunction = schema.ActivationFunctionType.NONE
    source, weights, bias = writer.kernel_inputs(step)
    shape = writer.integers(step, "shape", writer.output_shape(step))
    return [shape, weights, source, bias], options


def _dense(writer: _Writer, step: Step) -> _Encoded:
    options = schema.FullyConnectedOptionsT()
    options.fusedActivationFunction = _activation(step)
    return writer.kernel_inputs(step), options


def _elementwise(writer: _Writer, step: Step) -> _Encoded:
    options = {
        "ADD": schema.AddOptionsT,
        "SUB": schema.SubOptionsT,
        "MUL": schema.MulOptionsT,
    }[step.kind]()
    options.fusedActivationFunction = _activation(step)
    if hasattr(options, "potScaleInt16"):
        options.potScaleInt16 = False
    return step.inputs, options


def _pool(writer: _Writer, step: Step) -> _Encoded:
    options = _spatial(schema.Pool2DOptionsT(), step)
    options.filterHeight, options.filterWidth = step.options["size"]
    return step.inputs, options


def _mean(writer: _Writer, step: Step) -> _Encoded:
    options = schema.ReducerOptionsT()
    options.keepDims = step.options["keep"]
    return [*step.inputs, writer.integers(step, "axes", step.options["axes"])], options


def _transpose(writer: _Writer, step: Step) -> _Encoded:
    order = writer.integers(step, "order", step.options["order"])
    return [*step.inputs, order], schema.TransposeOptionsT()


def _prelu(writer: _Writer, step: Step) -> _Encoded:
    slopes = step.options["slopes"]
    return [*step.inputs, writer.constant(f"{step.name}_slopes", slopes)], None


def _reshape(writer: _Writer, step: Step) -> _Encoded:
    options = schema.ReshapeOptionsT()
    options.newShape = np.asarray(writer.output_shape(step), np.int32)
    return [*step.inputs, writer.integers(step, "shape", writer.output_shape(step))], options


def _pad(writer: _Writer, step: Step) -> _Encoded:
    paddings = writer.integers(step, "paddings", step.options["padding"])
    return [*step.inputs, paddings], schema.PadOptionsT()


def _slice(writer: _Writer, step: Step) -> _Encoded:
    begin, end = step.options["begin"], step.options["end"]
    constants = [writer.integers(step, "begin", begin), writer.integers(step, "end", end)]
    constants.append(writer.integers(step, "strides", [1] * len(begin)))
    return [*step.inputs, *constants], schema.StridedSliceOptionsT()


def _resize(writer: _Writer, step: Step) -> _Encoded:
    nearest = step.kind == "RESIZE_NEAREST_NEIGHBOR"
    make = schema.ResizeNearestNeighborOptionsT if nearest else schema.ResizeBilinearOptionsT
    options = make()
    # For whole factors, nearest picks the same pixels either way; Ethos-U takes this one.
    options.halfPixelCenters = not nearest
    return [*step.inputs, writer.integers(step, "size", step.options["size"])], options


def _concatenate(writer: _Writer, step: Step) -> _Encoded:
    options = schema.ConcatenationOptionsT()
    options.axis = step.options["axis"]
    return step.inputs, options


def _softmax(writer: _Writer, step: Step) -> _Encoded:
    options = schema.SoftmaxOptionsT()
    options.beta = 1.0
    return step.inputs, options


def _leaky(writer: _Writer, step: Step) -> _Encoded:
    options = schema.LeakyReluOptionsT()
    options.alpha = step.options["alpha"]
    return step.inputs, options


_ENCODERS = {
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transposed,
    "FULLY_CONNECTED": _dense,
    "ADD": _elementwise,
    "SUB": _elementwise,
    "MUL": _elementwise,
    "MAX_POOL_2D": _pool,
    "AVERAGE_POOL_2D": _pool,
    "MEAN": _mean,
    "TRANSPOSE": _transpose,
    "PRELU": _prelu,
    "RESHAPE": _reshape,
    "PAD": _pad,
    "STRIDED_SLICE": _slice,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "RESIZE_BILINEAR": _resize,
    "CONCATENATION": _concatenate,
    "SOFTMAX": _softmax,
    "LEAKY_RELU": _leaky,
}
