"""Opens what Vela wrote: a TFLite file with `ethos-u` operators, their commands and their memory.

The arena is one block of SRAM; the file's `OfflineMemoryAllocation` metadata says where in it each
tensor lives. Constant tensors (commands, weights) stay in the file's own bytes.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from udc_tf.export.npu.device import ONE_CORE, SHRAM_KIB, U65_SHRAM_KIB
from udc_tf.export.npu.faults import ContainerError, WorkLimitError
from udc_tf.export.npu.flatbuffer import Table
from udc_tf.export.npu.operator_names import operator_name

ARENA_LIMIT = 64 << 20  # bytes; far above any SRAM or flash, far below what hurts a host
CUSTOM_CODE = "ethos-u"
_RANK_LIMIT = 8
_OPERAND_LIMIT = 256  # inputs or outputs of one operator
_STREAM_LIMIT = 256  # `ethos-u` operators of one graph
_WORD_LIMIT = 1 << 19  # command words of all of them; a large network has some ten thousand

_CUSTOM = 32  # TFLite's builtin code for "see the custom code"
_DTYPES = {0: "f4", 1: "f2", 2: "i4", 3: "u1", 4: "i8", 6: "?", 7: "i2", 9: "i1"}
_PRODUCTS = ("ethos-u55", "ethos-u65", "ethos-u85")  # by the highest bits of the configuration
_U85_MACS = (128, 256, 512, 1024, 2048)
_TAG_STREAM, _TAG_CONFIG, _TAG_NOP = 2, 1, 5


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One tensor of the compiled graph.

    Attributes:
        offset: its first byte in the arena, or None if the allocation gives none.
        data: its bytes if it is constant, else None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    scale: float | None
    zero_point: int
    offset: int | None
    data: bytes | None

    @property
    def nbytes(self) -> int:
        """Bytes the tensor takes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class NpuOperator:
    """One `ethos-u` operator: what runs on the NPU between two visits of the CPU.

    Attributes:
        words: its command stream.
        payload: format of what the driver is given, "COP1" or "COP2".
        config: configuration word of the accelerator it was compiled for.
        architecture: identity word of that accelerator.
        product: the family of that accelerator, "ethos-u55" or another.
        macs: MACs per cycle it was compiled for.
        shram_bytes: internal memory of each core; 0 where the executor does not know it.
        regions: tensor indices in the order of the NPU's region numbers: flash, scratch, fast
            scratch, then the operator's inputs and outputs.
    """

    index: int
    words: np.ndarray
    payload: str
    config: int
    architecture: int
    product: str
    macs: int
    shram_bytes: int
    regions: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class CpuOperator:
    """An operator Vela left to the CPU."""

    index: int
    builtin_code: int
    custom_code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Table | None

    @property
    def name(self) -> str:
        """How messages call it."""
        return self.custom_code or operator_name(self.builtin_code)


@dataclasses.dataclass(frozen=True)
class Container:
    """A compiled network, parsed and checked but not yet executed."""

    tensors: tuple[TensorInfo, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[NpuOperator | CpuOperator, ...]
    arena_bytes: int

    @property
    def accelerator(self) -> str:
        """Vela's name of the accelerator that the network is compiled for."""
        first = self.npu_operators[0]
        return f"{first.product}-{first.macs}"

    @property
    def npu_operators(self) -> tuple[NpuOperator, ...]:
        """The operators that run on the NPU."""
        return tuple(op for op in self.operators if isinstance(op, NpuOperator))


def is_compiled(data: bytes) -> bool:
    """True if `data` is a TFLite file that holds an `ethos-u` operator."""
    return any(c.string(1) == CUSTOM_CODE for c in _model(data).tables(1, "operator code"))


def parse(data: bytes) -> Container:
    """Parses the bytes of a Vela-compiled .tflite.

    Raises:
        ContainerError: damaged, not TFLite, or without an `ethos-u` operator.
        WorkLimitError: the arena, or the inputs or the outputs together, would be larger than
            `ARENA_LIMIT`, or there are more commands than any network needs.
    """
    found = _parse(data, compiled=True)
    if not found.npu_operators:
        others = [op.name for op in found.operators if isinstance(op, CpuOperator)]
        raise ContainerError(
            "the file holds no `ethos-u` operator: it was not compiled by Vela, or Vela placed "
            f"nothing on the NPU. Received operators: {others}"
        )
    if len(found.npu_operators) > _STREAM_LIMIT:
        raise WorkLimitError(
            f"a graph may have {_STREAM_LIMIT} `ethos-u` operators. "
            f"Received: {len(found.npu_operators)}"
        )
    words = sum(operator.words.size for operator in found.npu_operators)
    if words > _WORD_LIMIT:
        raise WorkLimitError(f"a graph may have {_WORD_LIMIT} command words. Received: {words}")
    sizes = {"arena": found.arena_bytes}
    for what, indices in (("inputs", found.inputs), ("outputs", found.outputs)):
        sizes[what] = sum(found.tensors[i].nbytes for i in indices)
    for what, size in sizes.items():
        if size > ARENA_LIMIT:
            raise WorkLimitError(f"the {what} may take {ARENA_LIMIT} bytes. Received: {size} bytes")
    return found


def parse_uncompiled(data: bytes) -> Container:
    """Parses the graph of a .tflite before Vela: its tensors have no place in an arena yet."""
    return _parse(data, compiled=False)


def _parse(data: bytes, compiled: bool) -> Container:
    model = _model(data)
    codes = [
        (max(int(c.scalar(0, "<b", 0)), int(c.scalar(3, "<i", 0))), c.string(1))
        for c in model.tables(1, "operator code")
    ]
    graphs = model.tables(2, "subgraph")
    if len(graphs) != 1:
        raise ContainerError(f"a Vela output has one subgraph. Received: {len(graphs)}")
    graph = graphs[0]
    tensors = _tensors(model, graph, compiled)
    operators = [
        _operator(i, op, codes, tensors) for i, op in enumerate(graph.tables(3, "operator"))
    ]
    arena = max((t.offset + t.nbytes for t in tensors if t.offset is not None), default=0)
    return Container(
        tensors=tuple(tensors),
        inputs=_indices(graph.array(1, "<i4"), tensors, "graph input"),
        outputs=_indices(graph.array(2, "<i4"), tensors, "graph output"),
        operators=tuple(operators),
        arena_bytes=arena,
    )


def _model(data: bytes) -> Table:
    if data[4:8] != b"TFL3":
        raise ContainerError(
            f"not a TFLite file: bytes 4 to 8 should be b'TFL3'. Received: {data[4:8]!r}"
        )
    return Table.root(data)


def _tensors(model: Table, graph: Table, compiled: bool) -> list[TensorInfo]:
    buffers = [b.array(0, "u1") for b in model.tables(4, "buffer")]
    if sum(b.size for b in buffers) > ARENA_LIMIT:
        raise WorkLimitError(f"the file's buffers may take {ARENA_LIMIT} bytes together")
    contents = [b.tobytes() if b.size else None for b in buffers]
    tables = graph.tables(0, "tensor")
    offsets = [-1] * len(tables)
    if compiled:
        offsets = _arena_offsets(model, buffers, len(tables))
    tensors = []
    for i, table in enumerate(tables):
        code = int(table.scalar(1, "<b", 0))
        if code not in _DTYPES:
            raise ContainerError(f"tensor {i} has element type {code}; known: {sorted(_DTYPES)}")
        shape = tuple(int(n) for n in table.array(0, "<i4")[: _RANK_LIMIT + 1])
        dtype = np.dtype(_DTYPES[code])
        if (
            any(n < 0 for n in shape)
            or len(shape) > _RANK_LIMIT
            or math.prod(shape) * dtype.itemsize > ARENA_LIMIT
        ):
            raise ContainerError(f"tensor {i} has an impossible shape. Received: {shape}")
        buffer = int(table.scalar(2, "<I", 0))
        if buffer >= len(buffers):
            raise ContainerError(f"tensor {i} names buffer {buffer} of {len(buffers)}")
        quantization = table.table(4, "quantization")
        scales = quantization.array(2, "<f4") if quantization else np.empty(0)
        zeros = quantization.array(3, "<i8") if quantization else np.empty(0)
        info = TensorInfo(
            name=table.string(3),
            shape=shape,
            dtype=dtype,
            scale=float(scales[0]) if scales.size else None,
            zero_point=int(zeros[0]) if zeros.size else 0,
            offset=offsets[i] if offsets[i] >= 0 else None,
            data=contents[buffer],
        )
        if info.data is not None and len(info.data) != info.nbytes:
            raise ContainerError(
                f"tensor {i} of shape {shape} needs {info.nbytes} bytes. "
                f"Received: a buffer of {len(info.data)}"
            )
        tensors.append(info)
    return tensors


def _arena_offsets(model: Table, buffers: list[np.ndarray], count: int) -> list[int]:
    for entry in model.tables(6, "metadata"):
        if entry.string(0) != "OfflineMemoryAllocation":
            continue
        index = int(entry.scalar(1, "<I", 0))
        raw = buffers[index] if index < len(buffers) else np.empty(0, np.uint8)
        words = np.frombuffer(raw.tobytes()[: raw.size // 4 * 4], "<i4")
        # Three header words (version, subgraphs, tensors), then one offset per tensor.
        if words.size < 3 + count or words[2] != count:
            raise ContainerError(
                f"OfflineMemoryAllocation should give {count} tensors an offset. "
                f"Received: {words.size} words for {words[2] if words.size > 2 else 'no'} tensors"
            )
        return [int(word) for word in words[3 : 3 + count]]
    raise ContainerError(
        "the file has no OfflineMemoryAllocation metadata, so the tensors' places in the arena "
        "are unknown: was it compiled by Vela?"
    )


def _operator(
    index: int, table: Table, codes: list[tuple[int, str]], tensors: list[TensorInfo]
) -> NpuOperator | CpuOperator:
    code = int(table.scalar(0, "<I", 0))
    if code >= len(codes):
        raise ContainerError(f"operator {index} names operator code {code} of {len(codes)}")
    builtin, custom = codes[code]
    what = f"operator {index}"
    on_cpu = builtin != _CUSTOM or custom != CUSTOM_CODE
    named = table.array(1, "<i4")
    if on_cpu:
        named = named[named != -1]  # an optional input that is left out
    inputs = _indices(named, tensors, what)
    outputs = _indices(table.array(2, "<i4"), tensors, what)
    if on_cpu:
        return CpuOperator(index, builtin, custom, inputs, outputs, table.table(4, "options"))
    if len(inputs) < 4:
        raise ContainerError(
            f"{what}: `ethos-u` takes commands, flash, scratch and fast scratch, then the "
            f"network's inputs. Received: {len(inputs)} inputs"
        )
    commands = tensors[inputs[0]]
    if commands.data is None:
        raise ContainerError(f"{what}: its command stream (tensor {inputs[0]}) holds no data")
    words, config, architecture = _payload(commands.data, what)
    product, macs, shram = _accelerator(config, what)
    return NpuOperator(
        index=index,
        words=words,
        payload=commands.data[:4].decode("ascii"),
        config=config,
        architecture=architecture,
        product=product,
        macs=macs,
        shram_bytes=shram,
        regions=inputs[1:] + outputs,
        inputs=inputs[4:],
        outputs=outputs,
    )


def _accelerator(config: int, what: str) -> tuple[str, int, int]:
    """Family, MACs per cycle and internal memory in bytes, from the configuration word."""
    number, macs, shram = config >> 28, 1 << (config & 0xF), config >> 8 & 0xFF
    if number < len(_PRODUCTS):
        product = _PRODUCTS[number]
        if product == "ethos-u85" and macs in _U85_MACS:
            return product, macs, 0
        known = SHRAM_KIB if product == "ethos-u55" else U65_SHRAM_KIB
        if product != "ethos-u85" and known.get(macs) == shram:
            return product, macs, shram * 1024 // (2 if macs > ONE_CORE else 1)
    raise ContainerError(
        f"{what}: not the configuration word of an Ethos-U. Received: {config:#010x}"
    )


def _indices(values: np.ndarray, tensors: list[TensorInfo], what: str) -> tuple[int, ...]:
    if len(values) > _OPERAND_LIMIT:
        raise ContainerError(f"{what} names {len(values)} tensors; at most {_OPERAND_LIMIT}")
    for value in values:
        if not 0 <= value < len(tensors):
            raise ContainerError(f"{what} names tensor {value} of {len(tensors)}")
    return tuple(int(value) for value in values)


def _payload(data: bytes, what: str) -> tuple[np.ndarray, int, int]:
    """The command words, the configuration word and the identity inside a driver payload."""
    words = np.frombuffer(data[: len(data) // 4 * 4], "<u4")
    if data[:4] == b"COP1":
        return _payload_cop1(words, what)
    if data[:4] == b"COP2":
        return _payload_cop2(words, what)
    raise ContainerError(
        f"{what}: the payload should begin with b'COP1' or b'COP2'. Received: {data[:4]!r}"
    )


def _payload_cop1(words: np.ndarray, what: str) -> tuple[np.ndarray, int, int]:
    config, architecture = None, 0
    at = 1
    while at < words.size:
        word = int(words[at])
        tag = word & 0xFF
        if tag == _TAG_NOP:
            at += 1
        elif tag == _TAG_CONFIG and at + 3 <= words.size:
            config, architecture = int(words[at + 1]), int(words[at + 2])
            at += 3
        elif tag == _TAG_STREAM:
            length = (word >> 16) + ((word >> 8 & 0xFF) << 16)
            if config is None or at + 1 + length > words.size:
                break
            return words[at + 1 : at + 1 + length], config, architecture
        else:
            break
    raise ContainerError(
        f"{what}: the COP1 payload is damaged at word {at}: expected a configuration and then a "
        f"command stream inside its {words.size} words"
    )


def _payload_cop2(words: np.ndarray, what: str) -> tuple[np.ndarray, int, int]:
    # Four header words; entry type, entry length and metadata length in bytes; metadata whose
    # fourth word is the configuration, the fifth the identity; commands to the end of the entry.
    if words.size >= 7 + 5 and words[4] == 1:
        entry_end = 6 + int(words[5]) // 4
        metadata = int(words[6]) // 4
        if metadata >= 5 and 7 + metadata <= entry_end <= words.size:
            return words[7 + metadata : entry_end], int(words[7 + 3]), int(words[7 + 4])
    raise ContainerError(f"{what}: the COP2 payload is damaged in its first 7 words")
