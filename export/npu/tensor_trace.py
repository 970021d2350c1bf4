"""Follows a run operation by operation, and finds where it leaves a reference.

Vela fuses, splits and reorders, so no list says which operation makes which tensor of the original
graph. The values do: what an operation writes is looked for in the reference's tensors, as a whole,
as a band of rows, or as a slice of channels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from udc_tf.export.npu import memory
from udc_tf.export.npu.network import NpuNetwork
from udc_tf.export.npu.operations import Dma, Operation, reads
from udc_tf.export.npu.output_stage import Stores
from udc_tf.export.npu.streams import Span

_TELLING_VALUES = 4  # fewer distinct values are found anywhere, so they prove nothing
_CHANNEL_SEARCH = 4096  # slices of channels tried before giving up


@dataclasses.dataclass(frozen=True)
class ReferenceTensor:
    """One tensor of the reference run: what made it, and its value for one input."""

    operator: str
    value: np.ndarray


@dataclasses.dataclass(frozen=True)
class Step:
    """One executed operation.

    Attributes:
        match: index of the reference tensor that holds exactly what the operation wrote, or None.
        telling: False if the written values are too uniform to be recognised.
        cycles: estimate of how much longer the operation makes the inference.
    """

    number: int
    operation: Operation
    bytes_read: int
    bytes_written: int
    match: int | None
    telling: bool
    cycles: int

    def describe(self) -> str:
        """One line: number, kind, shapes, bytes."""
        operation = self.operation
        if isinstance(operation, Dma):
            shapes = f"{operation.source.store} -> {operation.destination.store}"
            kind = "DMA"
        else:
            ifm, ofm = operation.ifm, operation.ofm
            shapes = f"{_shape(ifm)} -> {_shape(ofm)}"
            kind = operation.kind
        return (
            f"{self.number:4d} {kind:16s} {shapes:44s} "
            f"read {self.bytes_read:8d}  wrote {self.bytes_written:8d}  "
            f"about {self.cycles:8d} cycles"
        )


@dataclasses.dataclass(frozen=True)
class Trace:
    """A run and what it was compared with."""

    steps: tuple[Step, ...]
    reference: tuple[ReferenceTensor, ...]
    equal: bool | None

    def lines(self) -> list[str]:
        """The trace as text, one line per operation and one for the verdict."""
        out = []
        for step in self.steps:
            found = ""
            if step.match is not None:
                found = f"  = {self.reference[step.match].operator}"
            out.append(step.describe() + found)
        if self.equal is not None:
            out.append(self.verdict())
        return out

    def first_divergence(self) -> Step | None:
        """The first operation after the last that was found in the reference, if any.

        A wrong operation spoils all that depend on it, so recognised operations stop there. If
        they go on to the end, a part of a tensor is wrong: the first 8-bit one not recognised.
        """
        if self.equal or self.equal is None:
            return None
        last = max((s.number for s in self.steps if s.match is not None), default=-1)
        unknown = [s for s in self.steps if s.telling and s.match is None]
        after = [s for s in unknown if s.number > last]
        parts = [
            s
            for s in unknown
            if not isinstance(s.operation, Dma) and s.operation.ofm.dtype.itemsize == 1
        ]
        return next(iter(after or parts), None)

    def verdict(self) -> str:
        """One sentence: equal, or where the run leaves the reference."""
        if self.equal:
            return "The outputs equal the reference's."
        step = self.first_divergence()
        if step is None:
            return "The outputs differ from the reference's; no single operation can be named."
        done = [s.match for s in self.steps[: step.number] if s.match is not None]
        before = "nothing before it was recognised"
        following = self.reference[0].operator if self.reference else "unknown"
        if done:
            index = max(done)
            before = f"the last recognised tensor is {self.reference[index].operator}"
            if index + 1 < len(self.reference):
                following = self.reference[index + 1].operator
        return (
            f"The outputs differ from the reference's. First to diverge: operation {step.number}, "
            f"{step.operation.position}; {before}, next is {following}."
        )


def trace(
    network: NpuNetwork,
    inputs: Sequence[np.ndarray],
    reference: Sequence[ReferenceTensor] = (),
    expected: Sequence[np.ndarray] | None = None,
) -> Trace:
    """Runs one input and notes each operation.

    Args:
        network: the compiled network.
        inputs: one array per network input, its first axis a batch of one.
        reference: tensors of a run of the uncompiled network on the same input, in order.
        expected: the reference's outputs.
    """
    cycles = [0] * len(network.operations)
    if network.estimates_cycles:
        cycles = [n for stream in network.estimated_cycles for n in stream]
    recorder = _Recorder(reference, cycles)
    outputs = network.run(inputs, recorder.observe)
    equal = None
    if expected is not None:
        equal = all(
            np.array_equal(got.ravel(), np.asarray(want).ravel())
            for got, want in zip(outputs, expected, strict=True)
        )
    return Trace(tuple(recorder.steps), tuple(reference), equal)


class _Recorder:
    def __init__(self, reference: Sequence[ReferenceTensor], cycles: Sequence[int]):
        self._cycles = cycles
        self.steps: list[Step] = []
        self._tensors = [tensor.value for tensor in reference]
        self._flat = [value.tobytes() for value in self._tensors]

    def observe(self, number: int, operation: Operation, stores: Stores) -> None:
        read = sum(r.length if isinstance(r, Span) else r.nbytes for r in reads(operation))
        match, telling, written = None, False, 0
        if isinstance(operation, Dma):
            written = operation.destination.length
        else:
            written = operation.ofm.nbytes
            if self._tensors:
                value = memory.read(stores[operation.ofm.region.store][:1], operation.ofm)[0]
                telling = len(np.unique(value)) >= _TELLING_VALUES
                match = self._find(value) if telling else None
        step = Step(number, operation, read, written, match, telling, self._cycles[number])
        self.steps.append(step)

    def _find(self, value: np.ndarray) -> int | None:
        flat = value.tobytes()
        for index, tensor in enumerate(self._tensors):
            if tensor.dtype != value.dtype or tensor.size < value.size:
                continue
            if self._flat[index].find(flat) >= 0 or _is_channel_slice(value, tensor):
                return index
        return None


def _is_channel_slice(value: np.ndarray, tensor: np.ndarray) -> bool:
    """True if [y, x, c] `value` is some rows and channels of `tensor`, all columns."""
    if tensor.ndim < 3:
        return False
    height, width, depth = tensor.shape[-3:]
    rows, columns, channels = value.shape
    if columns != width or rows > height or channels >= depth:
        return False
    tensor = tensor.reshape(-1, width, depth)
    tried = 0
    for top in range(height - rows + 1):
        for first in range(depth - channels + 1):
            tried += 1
            if tried > _CHANNEL_SEARCH:
                return False
            part = tensor[top : top + rows, :, first : first + channels]
            if part[0, 0, 0] == value[0, 0, 0] and np.array_equal(part, value):
                return True
    return False


def _shape(feature_map: memory.FeatureMap) -> str:
    size = "x".join(map(str, feature_map.shape))
    return f"{size} {feature_map.dtype.name}"
