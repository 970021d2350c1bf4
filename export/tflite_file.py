"""A TFLite flatbuffer as plain tensors and operators.

Only what export asks about: names, shapes, quantization, constant data, operator kinds. A file may
come from anywhere: every offset and index is checked, and what is read in all is bounded by the
file's own size.
"""

import dataclasses
import math
import os
import pathlib

import numpy as np

from udc_tf.export.errors import DamagedModelError
from udc_tf.export.npu import ContainerError
from udc_tf.export.npu.flatbuffer import Table
from udc_tf.export.npu.operator_names import operator_name

_RANK_LIMIT = 8
_TYPES = (
    *("FLOAT32", "FLOAT16", "INT32", "UINT8", "INT64", "STRING", "BOOL", "INT16", "COMPLEX64"),
    *("INT8", "FLOAT64", "COMPLEX128", "UINT64", "RESOURCE", "VARIANT", "UINT32", "UINT16", "INT4"),
    *("BFLOAT16", "INT2", "UINT4"),
)
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
        DamagedModelError: not a TFLite model, or one whose tables make no sense.

    Example:

    >>> read(b"no model")
    Traceback (most recent call last):
    udc_tf.export.errors.DamagedModelError: Not a TFLite model: bytes 4 to 8 should be b'TFL3'. ...
    """
    if isinstance(source, bytes):
        name, data = "", source
    else:
        name, data = f"{os.fspath(source)}: ", pathlib.Path(source).read_bytes()
    if data[4:8] != b"TFL3":
        raise DamagedModelError(
            f"{name}Not a TFLite model: bytes 4 to 8 should be b'TFL3'. Received: {data[4:8]!r}"
        )
    try:
        return _read(Table.root(data))
    except ContainerError as error:
        raise DamagedModelError(f"{name}{error}. Received: {len(data)} bytes") from error


def _damage(what: str) -> ContainerError:
    return ContainerError(f"the TFLite file is damaged: {what}")


def _read(model: Table) -> TFLiteFile:
    graphs = model.tables(2, "subgraph")
    if not graphs:
        raise _damage("it has no subgraph")
    graph = graphs[0]
    codes = [_kind(code) for code in model.tables(1, "operator code")]
    buffers = [buffer.array(0, "u1") for buffer in model.tables(4, "buffer")]
    tensors = tuple(_tensor(i, t, buffers) for i, t in enumerate(graph.tables(0, "tensor")))

    def indices(table: Table, field: int, what: str, lowest: int = 0) -> tuple[int, ...]:
        found = tuple(table.array(field, "<i4").tolist())
        if found and not lowest <= min(found) <= max(found) < len(tensors):
            raise _damage(f"{what} names a tensor that is none of its {len(tensors)}")
        return found

    operators = []
    for i, operator in enumerate(graph.tables(3, "operator")):
        code = int(operator.scalar(0, "<I", 0))
        if code >= len(codes):
            raise _damage(f"operator {i} names operator code {code} of {len(codes)}")
        inputs = indices(operator, 1, f"operator {i}", lowest=-1)
        operators.append(Operator(codes[code], inputs, indices(operator, 2, f"operator {i}")))
    metadata = {}
    for entry in model.tables(6, "metadata"):
        content = _buffer(entry, 1, buffers, "metadata")
        if content.size:
            metadata[entry.string(0)] = content.tobytes()
    inputs, outputs = indices(graph, 1, "the graph"), indices(graph, 2, "the graph")
    return TFLiteFile(tensors, tuple(operators), inputs, outputs, metadata)


def _kind(code: Table) -> str:
    builtin = max(int(code.scalar(0, "<b", 0)), int(code.scalar(3, "<i", 0)))
    return code.string(1) or operator_name(builtin)


def _buffer(table: Table, field: int, buffers: list[np.ndarray], what: str) -> np.ndarray:
    index = int(table.scalar(field, "<I", 0))
    if index >= len(buffers):
        raise _damage(f"{what} names buffer {index} of {len(buffers)}")
    return buffers[index]


def _tensor(index: int, table: Table, buffers: list[np.ndarray]) -> Tensor:
    what = f"tensor {index}"
    code = int(table.scalar(1, "<b", 0))
    if not 0 <= code < len(_TYPES):
        raise _damage(f"{what} has element type {code}; there are {len(_TYPES)}")
    kind = _TYPES[code]
    shape = tuple(table.array(0, "<i4")[: _RANK_LIMIT + 1].tolist())
    if len(shape) > _RANK_LIMIT:
        raise _damage(f"{what} has more than {_RANK_LIMIT} axes")
    data = _buffer(table, 2, buffers, what)
    if data.size and kind in _DTYPES:
        dtype = np.dtype(_DTYPES[kind])
        if min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != data.size:
            raise _damage(f"{what} of shape {shape} and type {kind} has {data.size} bytes")
        data = data.view(dtype).reshape(shape)
    quantization = table.table(4, "quantization")
    return Tensor(
        name=table.string(3),
        shape=shape,
        type=kind,
        scales=quantization.array(2, "<f4") if quantization else np.empty(0, np.float32),
        zero_points=quantization.array(3, "<i8") if quantization else np.empty(0, np.int64),
        quantized_axis=int(quantization.scalar(6, "<i", 0)) if quantization else 0,
        data=data if data.size else None,
    )
