"""A compiled network that runs: the executor's front."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from udc_tf.export.npu import (
    container,
    convolution,
    cpu_operators,
    elementwise,
    pooling,
    program,
    timing,
)
from udc_tf.export.npu.command_words import decode
from udc_tf.export.npu.container import Container, CpuOperator, TensorInfo
from udc_tf.export.npu.faults import (
    ContainerError,
    NpuError,
    UnsupportedAcceleratorError,
    WorkLimitError,
)
from udc_tf.export.npu.memory import Region
from udc_tf.export.npu.operations import (
    FOOTPRINT_LIMIT,
    Convolution,
    Dma,
    Elementwise,
    Operation,
)
from udc_tf.export.npu.output_stage import Stores

_ARENA = "arena"
_SCRATCH, _FAST = 1, 2  # region numbers
_IO_REGION = 3  # first region number of the network's own inputs and outputs
_REGION_REGISTERS = ("IFM_REGION", "IFM2_REGION", "OFM_REGION")
_BATCH_BYTES = 32 << 20  # arenas of one batch may take this much

Observer = Callable[[int, Operation, Stores], None]


class NpuNetwork:
    """A Vela output, decoded, checked and ready to run on int8 inputs.

    It executes the Vela command stream and matches TFLite Micro bit for bit, with the exceptions in
    `udc_tf.export.npu`; it has not been compared with silicon.

    Args:
        data: bytes of the compiled .tflite.
        work_limit: multiply-adds one inference may take; protects from damaged files.
        streams_only: somebody else runs the operators that are not the NPU's, whatever they are;
            then there is `run_stream`, and no `run`.

    Raises:
        NpuError: the file is damaged, not compiled for an Ethos-U55 or U65, or holds CPU operators.

    Example:
        >>> network = NpuNetwork.load("model_vela.tflite")          # doctest: +SKIP
        >>> outputs = network.run([np.zeros((4, 32, 32, 3), np.int8)])  # doctest: +SKIP
    """

    def __init__(
        self, data: bytes, work_limit: int = program.WORK_LIMIT, streams_only: bool = False
    ):
        self._container = container.parse(bytes(data))
        _require_known(self._container)
        self._cpu: dict[int, cpu_operators.CpuFunction] | None = None
        if not streams_only:
            self._cpu = {
                operator.index: cpu_operators.function(operator, self._container.tensors)
                for operator in self._container.operators
                if isinstance(operator, CpuOperator)
            }
        self._separate = _separate_tensors(self._container)
        self._programs = self._build(work_limit)
        largest = max((operation.footprint for operation in self.operations), default=1)
        self._batch_limit = FOOTPRINT_LIMIT // largest
        self._caches = [convolution.WeightCache() for _ in self._programs]

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> NpuNetwork:
        """Reads a compiled .tflite from disk."""
        with open(path, "rb") as file:
            return cls(file.read(), **options)

    @property
    def container(self) -> Container:
        """The parsed file."""
        return self._container

    @property
    def inputs(self) -> list[TensorInfo]:
        """The network's inputs."""
        return [self._container.tensors[i] for i in self._container.inputs]

    @property
    def outputs(self) -> list[TensorInfo]:
        """The network's outputs."""
        return [self._container.tensors[i] for i in self._container.outputs]

    @property
    def arena_bytes(self) -> int:
        """Bytes of SRAM the network needs."""
        return self._container.arena_bytes + sum(
            self._container.tensors[i].nbytes for i in self._separate
        )

    @property
    def macs_per_cycle(self) -> int:
        """Of the accelerator the network was compiled for."""
        return self._container.npu_operators[0].macs

    @property
    def streams(self) -> list[list[Operation]]:
        """The operations of each `ethos-u` operator, in order."""
        return self._programs

    @property
    def estimates_cycles(self) -> bool:
        """Whether there are `estimated_cycles`: `npu.timing` knows how fast an Ethos-U55 is."""
        return self._container.npu_operators[0].product == "ethos-u55"

    @functools.cached_property
    def estimated_cycles(self) -> list[list[int]]:
        """What Vela's cost model gives each operation of each stream. See `npu.timing`."""
        return [timing.estimate(stream, self.macs_per_cycle) for stream in self._programs]

    @property
    def operations(self) -> list[Operation]:
        """All operations in order."""
        return [operation for stream in self._programs for operation in stream]

    def run(
        self, inputs: Sequence[np.ndarray], observe: Observer | None = None
    ) -> list[np.ndarray]:
        """Runs a batch.

        Args:
            inputs: one array per network input, its first axis the batch; each item as the tensor
                without its leading 1, of the tensor's own element type.
            observe: called after each operation with its number, itself and the memory.

        Returns:
            One array per network output, first axis the batch.
        """
        if self._cpu is None:
            raise ValueError("a network that was loaded with `streams_only` has no `run`")
        arrays = self._checked_inputs(inputs)
        batch = len(arrays[0])
        step = max(1, min(_BATCH_BYTES // max(1, self.arena_bytes), self._batch_limit))
        parts = [
            self._run_batch([a[i : i + step] for a in arrays], observe)
            for i in range(0, batch, step)
        ]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _run_batch(self, arrays: list[np.ndarray], observe: Observer | None) -> list[np.ndarray]:
        stores = self._new_stores(len(arrays[0]))
        for index, array in zip(self._container.inputs, arrays, strict=True):
            if self.region(index, "input", optional=True) is not None:  # else nothing reads it
                self._place(index, stores)[:] = array.reshape(len(array), -1).view(np.uint8)
        number, functions = 0, self._cpu or {}
        for operator in self._container.operators:
            if isinstance(operator, CpuOperator):
                source = self._fetch(operator.inputs[0], stores)
                target = self._place(operator.outputs[0], stores)
                result = np.ascontiguousarray(functions[operator.index].run(source))
                target[:] = result.reshape(len(result), -1).view(np.uint8)
            else:
                self.run_stream(number, stores, observe)
                number += 1
        return [self._fetch(index, stores) for index in self._container.outputs]

    def run_stream(self, number: int, stores: Stores, observe: Observer | None = None) -> None:
        """Executes command stream `number` on memory that the caller holds.

        Args:
            number: of the `ethos-u` operator, counted from 0.
            stores: byte stores by the names that `region` gives, [batch, bytes], changed in place.
            observe: as for `run`.
        """
        batch = max(len(store) for store in stores.values())
        operator = self._container.npu_operators[number]
        stores[program.SHRAM] = np.zeros((batch, operator.shram_bytes), np.uint8)
        first = sum(len(stream) for stream in self._programs[:number])
        for index, operation in enumerate(self._programs[number]):
            try:
                _execute(index, operation, self._caches[number], stores)
            except NpuError as error:
                raise program.located(error, operation.position) from None
            if observe is not None:
                observe(first + index, operation, stores)

    def _checked_inputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        infos = self.inputs
        if len(inputs) != len(infos):
            raise ValueError(f"the network has {len(infos)} inputs. Received: {len(inputs)}")
        arrays = []
        for array, info in zip(inputs, infos, strict=True):
            array = np.asarray(array)
            item = info.shape[1:] if info.shape[:1] == (1,) else info.shape
            if array.dtype != info.dtype or array.shape[1:] != item or not len(array):
                raise ValueError(
                    f"input {info.name!r} takes {info.dtype} of shape (batch, "
                    f"{', '.join(map(str, item))}). Received: {array.dtype} of {array.shape}"
                )
            arrays.append(np.ascontiguousarray(array))
        if len({len(array) for array in arrays}) != 1:
            raise ValueError(
                f"all inputs have the same batch. Received: {[len(array) for array in arrays]}"
            )
        return arrays

    def _build(self, work_limit: int) -> list[list[Operation]]:
        if self.arena_bytes > container.ARENA_LIMIT:
            raise WorkLimitError(
                f"arena, inputs and outputs may take {container.ARENA_LIMIT} bytes. "
                f"Received: {self.arena_bytes} bytes"
            )
        sizes = {_ARENA: self._container.arena_bytes, program.SHRAM: 0}
        for index in self._separate:
            sizes[_own(index)] = self._container.tensors[index].nbytes
        checker = program.AccessChecker(sizes, work_limit)
        if not self._container.inputs or not self._container.outputs:
            raise ContainerError("the graph has no inputs or no outputs")
        for index in self._container.inputs:
            place = self.region(index, "input", optional=True)
            if place is None:  # outside the arena: only an operator on the CPU reads it, or none
                continue
            if not place.writable:
                raise ContainerError(f"input {index} of the graph is a constant")
            checker.define(place.store, place.offset, place.size)
        programs = []
        for operator in self._container.operators:
            if isinstance(operator, CpuOperator):
                self._check_cpu(operator, checker)
                continue
            regions = [
                self.region(index, f"region {number}", optional=True)
                for number, index in enumerate(operator.regions)
            ]
            programs.append(program.build(operator, regions, checker))
        for index in self._container.outputs:
            place = self.region(index, "output", optional=self._cpu is None)
            if place is not None and not checker.defined(place.store, place.offset, place.size):
                raise ContainerError(
                    f"no command writes output {self._container.tensors[index].name!r}"
                )
        return programs

    def _check_cpu(self, operator: CpuOperator, checker: program.AccessChecker) -> None:
        if self._cpu is None:
            for index in operator.outputs:
                place = self.region(index, optional=True)
                if place is not None and place.writable:
                    checker.define(place.store, place.offset, place.size)
            return
        checker.spend(self._cpu[operator.index].work)
        source, target = (
            self.region(index, f"operand of {operator.name}")
            for index in (operator.inputs[0], operator.outputs[0])
        )
        if not checker.defined(source.store, source.offset, source.size) or not target.writable:
            raise ContainerError(
                f"operator {operator.index} ({operator.name}) reads bytes that nothing has "
                "written, or writes to a constant"
            )
        checker.define(target.store, target.offset, target.size)

    @overload
    def region(self, index: int, name: str = "") -> Region: ...

    @overload
    def region(self, index: int, name: str = "", *, optional: bool) -> Region | None: ...

    def region(self, index: int, name: str = "", optional: bool = False) -> Region | None:
        """Where tensor `index` lives; None if it lives nowhere and is `optional`."""
        tensor = self._container.tensors[index]
        if tensor.data is not None:
            return Region(name, _constant(index), 0, len(tensor.data), False)
        if index in self._separate:
            return Region(name, _own(index), 0, tensor.nbytes, True)
        if tensor.offset is None:
            if optional:
                return None
            raise ContainerError(f"tensor {index} ({name}) has no place in the arena")
        if not tensor.nbytes and not optional:
            raise ContainerError(f"tensor {index} ({name}) of shape {tensor.shape} is empty")
        return Region(name, _ARENA, tensor.offset, tensor.nbytes, True)

    def _new_stores(self, batch: int) -> Stores:
        stores = {_ARENA: np.zeros((batch, self._container.arena_bytes), np.uint8)}
        for index, tensor in enumerate(self._container.tensors):
            if tensor.data is not None:
                stores[_constant(index)] = np.frombuffer(tensor.data, np.uint8)[None]
        for index in self._separate:
            nbytes = self._container.tensors[index].nbytes
            stores[_own(index)] = np.zeros((batch, nbytes), np.uint8)
        return stores

    def _place(self, index: int, stores: Stores) -> np.ndarray:
        place = self.region(index, f"tensor {index}")
        return stores[place.store][:, place.offset : place.offset + place.size]

    def _fetch(self, index: int, stores: Stores) -> np.ndarray:
        info = self._container.tensors[index]
        raw = np.ascontiguousarray(self._place(index, stores))
        item = info.shape[1:] if info.shape[:1] == (1,) else info.shape
        return raw.view(info.dtype).reshape(len(raw), *item)


def _execute(
    index: int, operation: Operation, cache: convolution.WeightCache, stores: Stores
) -> None:
    if isinstance(operation, Dma):
        source, target = operation.source, operation.destination
        stores[target.store][:, target.start : target.start + target.length] = stores[source.store][
            :, source.start : source.start + source.length
        ]
    elif isinstance(operation, Convolution):
        convolution.execute(operation, cache.get(index, operation, stores), stores)
    elif isinstance(operation, Elementwise):
        elementwise.execute(operation, stores)
    else:
        pooling.execute(operation, stores)


def _require_known(parsed: Container) -> None:
    if any(operator.product == "ethos-u85" for operator in parsed.npu_operators):
        raise UnsupportedAcceleratorError(
            "the executor runs the command streams of an Ethos-U55 and an Ethos-U65; an Ethos-U85 "
            f"has others. Received: a network for {parsed.accelerator}"
        )


def _separate_tensors(parsed: Container) -> set[int]:
    """Tensors that the commands address in memories of their own, outside the arena.

    Inputs and outputs where they are regions, and the fast memory of an NPU with its own SRAM.
    """
    separate: set[int] = set()
    for operator in parsed.npu_operators:
        if operator.regions[_FAST] != operator.regions[_SCRATCH]:
            separate.add(operator.regions[_FAST])
        commands = decode(operator.words)
        used = {c.param for c in commands if c.name in _REGION_REGISTERS}
        if any(number >= _IO_REGION for number in used):
            separate.update(operator.regions[_IO_REGION:])
    return {index for index in separate if parsed.tensors[index].data is None}


def _constant(index: int) -> str:
    return f"flash {index}"


def _own(index: int) -> str:
    return f"tensor {index}"
