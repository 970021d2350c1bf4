"""A TFLite flatbuffer as plain tensors and operators.

Only what export asks about: names, shapes, quantization, constant data, operator kinds.
"""

import dataclasses
import os
import pathlib

import numpy as np

from udc_tf.export.errors import DamagedModelError

_DTYPES = {
    "FLOAT32": np.float32,
    "INT32": np.int32,
    "UINT8": np.uint8,
    "INT64": np.int64,
    "INT16": np.int16,
    "INT8": np.int8,
    "BOOL": np.bool_,
}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor; `data` is None unless it is constant."""

    name: str
    shape: tuple[int, ...]
    type: str
    scales: np.ndarray
    zero_points: np.ndarray
    quantized_axis: int
    data: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator; -1 among `inputs` is an optional input that was left out."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TFLiteFile:
    """The first subgraph of a TFLite model."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    metadata: dict[str, bytes]


def read(source: str | os.PathLike | bytes) -> TFLiteFile:
    """Reads a file, or its bytes.

    Raises:
        DamagedModelError: not a TFLite model, or cut short.

    Example:

    >>> read(b"no model")
    Traceback (most recent call last):
    udc_tf.export.errors.DamagedModelError: Not a TFLite model: bytes 4 to 8 should be b'TFL3'. ...
    """
    name, data = ("", source) if isinstance(source, bytes) else (f"{source}: ", None)
    if data is None:
        data = pathlib.Path(source).read_bytes()
    if data[4:8] != b"TFL3":
        raise DamagedModelError(
            f"{name}Not a TFLite model: bytes 4 to 8 should be b'TFL3'. Received: {data[4:8]!r}"
        )
    try:
        return _read(data)
    except Exception as error:  # the generated reader trusts offsets: anything can come out of it
        raise DamagedModelError(
            f"{name}The TFLite model is damaged, its tables do not parse. "
            f"Received: {len(data)} bytes ({type(error).__name__}: {error})"
        ) from error


def _read(data: bytes) -> TFLiteFile:
    # Imported here: it brings all of TensorFlow with it.
    from tensorflow.lite.python import schema_py_generated as schema

    types = _names(schema.TensorType)
    kinds = _names(schema.BuiltinOperator)
    model = schema.ModelT.InitFromPackedBuf(data, 0)
    graph = model.subgraphs[0]
    codes = []
    for code in model.operatorCodes:
        builtin = max(code.builtinCode, code.deprecatedBuiltinCode)
        custom = code.customCode
        codes.append(custom.decode() if custom else kinds[builtin])
    tensors = tuple(_tensor(t, model.buffers, types) for t in graph.tensors)
    operators = tuple(
        Operator(codes[op.opcodeIndex], _ints(op.inputs), _ints(op.outputs))
        for op in graph.operators
    )
    metadata = {
        m.name.decode(): bytes(bytearray(model.buffers[m.buffer].data))
        for m in model.metadata or ()
        if model.buffers[m.buffer].data is not None
    }
    return TFLiteFile(tensors, operators, _ints(graph.inputs), _ints(graph.outputs), metadata)


def _names(enum) -> dict[int, str]:
    return {v: k for k, v in vars(enum).items() if isinstance(v, int)}


def _ints(values) -> tuple[int, ...]:
    return () if values is None else tuple(int(v) for v in values)


def _tensor(tensor, buffers, types) -> Tensor:
    kind = types[tensor.type]
    shape = _ints(tensor.shape)
    raw = buffers[tensor.buffer].data
    data = None
    if raw is not None and len(raw):
        raw = np.frombuffer(bytearray(raw), np.uint8)
        data = raw.view(_DTYPES[kind]).reshape(shape) if kind in _DTYPES else raw
    quantization = tensor.quantization

    def numbers(name, dtype):
        values = getattr(quantization, name, None)
        return np.asarray(() if values is None else values, dtype)

    return Tensor(
        name=(tensor.name or b"").decode(),
        shape=shape,
        type=kind,
        scales=numbers("scale", np.float32),
        zero_points=numbers("zeroPoint", np.int64),
        quantized_axis=int(getattr(quantization, "quantizedDimension", 0) or 0),
        data=data,
    )
