"""The executor in the place of an NPU: it reads a guest's NPU registers and works on its memory."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from udc_tf.export.npu import MemoryAccessError, NpuError, NpuNetwork
from udc_tf.export.npu.device import (
    ACTIVE,
    REGISTER_BYTES,
    Device,
    Event,
    Job,
    Outcome,
    fault_of,
)
from udc_tf.export.npu.operations import Dma, Operation, reads
from udc_tf.export.npu.output_stage import Stores
from udc_tf.export.npu.streams import Span
from udc_tf.export.runners.base import RunFailedError

_COMMANDS_LIMIT = 16 << 20  # bytes; a stream of Vela has some ten thousand
_SECURE = 1 << 28  # of an address on Corstone-300
_BEAT = 8  # bytes that an AXI port moves at once


class Memory(Protocol):
    """A guest's memory."""

    def read(self, address: int, count: int) -> bytes:
        """Bytes at `address`."""

    def write(self, address: int, data: bytes) -> None:
        """Changes them."""


@dataclasses.dataclass(frozen=True)
class _Place:
    """A byte store in the guest: where it begins, its size, the AXI port that leads there."""

    address: int
    size: int
    port: int


class StandInNpu:
    """An Ethos-U55 made of guest memory for its registers and the executor for its work.

    Args:
        network: what the guest runs; or why the executor cannot run it, and then every stream ends
            in the fault that this would be.
        macs: MACs per cycle of the NPU it shows.
        memory: the guest's.
        base: guest address of the registers.
    """

    def __init__(self, network: NpuNetwork | NpuError, macs: int, memory: Memory, base: int):
        self._network = network
        self._memory = memory
        self._base = base
        self._device = Device(macs, self._execute)
        self.failure: NpuError | None = None

    @property
    def interrupt(self) -> bool:
        """Level of the NPU's interrupt line."""
        return self._device.interrupt

    def appear(self) -> list[int]:
        """Shows the registers; addresses of those whose writing has to be told to `written`."""
        self._memory.write(self._base, bytes(self._device.registers))
        return [self._base + register for register in ACTIVE]

    def written(self, address: int) -> None:
        """The guest has written the register at `address`."""
        memory = self._memory.read(self._base, REGISTER_BYTES)
        offset = address - self._base
        value = int.from_bytes(memory[offset : offset + 4], "little")
        # What the plain registers hold is in memory only; the others are the device's own.
        for plain in range(0, REGISTER_BYTES, 4):
            if plain not in ACTIVE:
                self._device.write(plain, int.from_bytes(memory[plain : plain + 4], "little"))
        self._device.write(offset, value)
        self._put_back(
            self._base,
            np.frombuffer(memory, np.uint8),
            np.frombuffer(bytes(self._device.registers), np.uint8),
        )

    def _execute(self, job: Job) -> Outcome:
        done: list[Operation] = []
        program: list[Operation] = []
        counts: dict[Event, int] = {}
        try:
            network = self._network
            if isinstance(network, NpuError):
                raise network
            number = _which_stream(network, self._fetch(job, job.address, job.size))
            program = network.streams[number]
            places = _places(network, number, job)
            stores: Stores = {
                store: np.frombuffer(self._fetch(job, place.address, place.size), np.uint8)[None]
                for store, place in places.items()
            }
            after = {store: array.copy() for store, array in stores.items()}
            network.run_stream(number, after, lambda _, operation, __: done.append(operation))
            for store, place in places.items():
                self._put_back(place.address, stores[store][0], after[store][0])
            cycles = sum(network.estimated_cycles[number])
            counts = {Event.CYCLE: cycles, Event.NPU_ACTIVE: cycles, **_beats(program, places)}
        except NpuError as error:
            self.failure = error
            stopped = program[len(done)].position.byte if len(done) < len(program) else 0
            return Outcome(fault_of(error), stopped)
        return Outcome(bytes_done=job.size, counts=counts)

    def _fetch(self, job: Job, address: int, size: int) -> bytes:
        if address & _SECURE and not job.secure:
            raise MemoryAccessError(f"the NPU is non-secure and {address:#x} is secure memory")
        if size > _COMMANDS_LIMIT and address == job.address:
            raise MemoryAccessError(f"a command stream of {size} bytes is beyond reason")
        return self._memory.read(address, size)

    def _put_back(self, address: int, before: np.ndarray, after: np.ndarray) -> None:
        changed = np.flatnonzero(before != after)
        if changed.size:
            low, high = int(changed[0]), int(changed[-1]) + 1
            self._memory.write(address + low, after[low:high].tobytes())


def _which_stream(network: NpuNetwork, commands: bytes) -> int:
    for number, operator in enumerate(network.container.npu_operators):
        if operator.words.tobytes() == commands:
            return number
    raise RunFailedError(
        f"the guest started a stream of {len(commands)} bytes that its network does not have"
    )


def _places(network: NpuNetwork, number: int, job: Job) -> dict[str, _Place]:
    """Where the stream's byte stores are in the guest, by the guest's own region bases."""
    operator = network.container.npu_operators[number]
    places: dict[str, _Place] = {}
    for index, base, port in zip(operator.regions, job.bases, job.ports, strict=False):
        place = network.region(index, optional=True)
        if place is None:
            continue
        size = network.container.arena_bytes if place.store == "arena" else place.size
        start = base - place.offset
        known = places.setdefault(place.store, _Place(start, size, port))
        if known.address != start:
            raise RunFailedError(
                f"region bases disagree: {place.store} is at {known.address:#x} and at {start:#x}"
            )
    return places


def _beats(program: list[Operation], places: dict[str, _Place]) -> dict[Event, int]:
    """What the AXI ports carry if every operation moves each of its bytes once."""
    moved = {Event.AXI0_READ_BEATS: 0, Event.AXI1_READ_BEATS: 0, Event.AXI0_WRITE_BEATS: 0}
    for operation in program:
        for source in reads(operation):
            place = places.get(source.store if isinstance(source, Span) else source.region.store)
            if place is not None:
                size = source.length if isinstance(source, Span) else source.nbytes
                event = Event.AXI1_READ_BEATS if place.port else Event.AXI0_READ_BEATS
                moved[event] += -(-size // _BEAT)
        if isinstance(operation, Dma):
            target, size = operation.destination.store, operation.destination.length
        else:
            target, size = operation.ofm.region.store, operation.ofm.nbytes
        if target in places:
            moved[Event.AXI0_WRITE_BEATS] += -(-size // _BEAT)
    return moved
