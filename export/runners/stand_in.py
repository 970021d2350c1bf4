"""The executor in the place of an NPU: it reads a guest's NPU registers and works on its memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from udc_tf.export.npu import NpuError, NpuNetwork
from udc_tf.export.npu.output_stage import Stores
from udc_tf.export.runners.base import RunFailedError

# Offsets and bits of the NPU's registers, as in firmware/ethosu.c.
_ID, _STATUS, _CMD, _QBASE, _QSIZE, _PROT, _CONFIG = 0x0, 0x4, 0x8, 0x10, 0x20, 0x24, 0x28
_BASEP = 0x80
_STATUS_IRQ, _STATUS_PARSE_ERROR, _STATUS_END = 1 << 1, 1 << 4, 1 << 5
_CMD_RUN = 1
_PRIVILEGED_SECURE = 1
_REGISTER_BYTES = 0x400

STAND_IN_ID = 0x10066001  # of the architecture version that Vela writes for

ReadMemory = Callable[[int, int], bytes]
WriteMemory = Callable[[int, bytes], None]


class StandInNpu:
    """An Ethos-U55 made of guest memory for its registers and the executor for its work.

    Args:
        network: what the guest was built with; it knows the sizes of the regions.
        read: reads guest memory at an address.
        write: writes it.
        base: guest address of the registers.
    """

    def __init__(self, network: NpuNetwork, read: ReadMemory, write: WriteMemory, base: int):
        self._network = network
        self._read = read
        self._write = write
        self._base = base
        self.failure: NpuError | None = None

    def power_on(self) -> None:
        """Gives the registers the values that an NPU shows after reset."""
        operator = self._network.container.npu_operators[0]
        registers = bytearray(_REGISTER_BYTES)
        config = operator.macs.bit_length() - 1 | operator.shram_bytes >> 10 << 8
        for offset, value in (
            (_ID, STAND_IN_ID),
            (_CONFIG, config),
            (_PROT, _PRIVILEGED_SECURE),
        ):
            registers[offset : offset + 4] = value.to_bytes(4, "little")
        self._write(self._base, bytes(registers))

    def run(self) -> None:
        """Executes the stream that the guest has just started, and sets the status it polls."""
        registers = self._read(self._base, _REGISTER_BYTES)

        def word(offset: int) -> int:
            return int.from_bytes(registers[offset : offset + 4], "little")

        if not word(_CMD) & _CMD_RUN:
            raise RunFailedError(f"the guest wrote {word(_CMD):#x} to CMD; a start is {_CMD_RUN}")
        number = self._which_stream(self._read(word(_QBASE), word(_QSIZE)))
        status = _STATUS_IRQ | _STATUS_END
        try:
            self._execute(number, [word(_BASEP + 8 * i) for i in range(8)])
        except NpuError as error:
            self.failure = error
            status = _STATUS_IRQ | _STATUS_PARSE_ERROR
        self._write(self._base + _STATUS, status.to_bytes(4, "little"))

    def _which_stream(self, commands: bytes) -> int:
        for number, operator in enumerate(self._network.container.npu_operators):
            if operator.words.tobytes() == commands:
                return number
        raise RunFailedError(
            f"the guest started a stream of {len(commands)} bytes that its network does not have"
        )

    def _execute(self, number: int, bases: list[int]) -> None:
        """Fetches the guest's memory by its own region bases, runs, and puts it back."""
        network = self._network
        operator = network.container.npu_operators[number]
        addresses: dict[str, int] = {}
        sizes: dict[str, int] = {"arena": network.container.arena_bytes}
        for index, base in zip(operator.regions, bases, strict=False):
            place = network.region(index, optional=True)
            if place is None:
                continue
            start = base - place.offset
            if addresses.setdefault(place.store, start) != start:
                raise RunFailedError(
                    f"region bases disagree: {place.store} is at {addresses[place.store]:#x} and "
                    f"at {start:#x}"
                )
            if place.store != "arena":
                sizes[place.store] = place.size
        stores: Stores = {
            store: np.frombuffer(self._read(address, sizes[store]), np.uint8)[None].copy()
            for store, address in addresses.items()
        }
        before = {store: array.copy() for store, array in stores.items()}
        network.run_stream(number, stores)
        for store, address in addresses.items():
            self._put_back(address, before[store][0], stores[store][0])

    def _put_back(self, address: int, before: np.ndarray, after: np.ndarray) -> None:
        changed = np.flatnonzero(before != after)
        if changed.size:
            low, high = int(changed[0]), int(changed[-1]) + 1
            self._write(address + low, after[low:high].tobytes())
