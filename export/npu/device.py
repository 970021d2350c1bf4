"""An Ethos-U55 as a driver sees it: its registers, and what writing one of them does.

One description for every guest that is lent the executor as its NPU. Offsets, bits and behaviour
are those that Arm's public driver (ethos-u-core-driver) and its register header rely on: identity
and configuration, the soft reset with its security state, the queue, the region bases, the
interrupt, the faults, and the performance monitor. A reset ends at once, and so does a stream.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping

from udc_tf.export.npu.faults import MemoryAccessError, NpuError, WeightStreamError

REGIONS = 8
EVENT_COUNTERS = 4
REGISTER_BYTES = 0x400
ARCHITECTURE = 0x10066001  # ID of an Ethos-U55 of architecture 1.0.6, for which Vela writes
SHRAM_KIB = {32: 16, 64: 16, 128: 24, 256: 48}  # by MACs per cycle
U65_SHRAM_KIB = {256: 48, 512: 96}  # of all cores
ONE_CORE = 256  # MACs per cycle that one core has at most


class Reg(enum.IntEnum):
    """Offsets of the registers that a driver uses."""

    ID = 0x000
    STATUS = 0x004
    CMD = 0x008
    RESET = 0x00C
    QBASE = 0x010
    QREAD = 0x018
    QCONFIG = 0x01C
    QSIZE = 0x020
    PROT = 0x024
    CONFIG = 0x028
    REGIONCFG = 0x03C
    BASEP0 = 0x080  # 64 bits per region
    PMCR = 0x180
    PMCNTENSET = 0x184
    PMCNTENCLR = 0x188
    PMOVSSET = 0x18C
    PMOVSCLR = 0x190
    PMINTSET = 0x194
    PMINTCLR = 0x198
    PMCCNTR_LO = 0x1A0
    PMCCNTR_HI = 0x1A4
    PMEVCNTR0 = 0x300
    PMEVTYPER0 = 0x380


class Status(enum.IntFlag):
    """Bits of STATUS."""

    RUNNING = 1 << 0
    IRQ = 1 << 1
    BUS_ERROR = 1 << 2
    RESETTING = 1 << 3
    PARSE_ERROR = 1 << 4
    END_REACHED = 1 << 5
    WEIGHT_DECODER_FAULT = 1 << 7
    ECC_FAULT = 1 << 8


class Event(enum.IntEnum):
    """What an event counter may count, as PMEVTYPER numbers it."""

    CYCLE = 17
    NPU_ACTIVE = 35
    AXI0_READ_BEATS = 130
    AXI0_WRITE_BEATS = 135
    AXI1_READ_BEATS = 386


_CMD_RUN, _CMD_CLEAR_IRQ, _CMD_CLOCK_AND_POWER = 1 << 0, 1 << 1, 0b1100
_PRIVILEGED, _NON_SECURE = 1 << 0, 1 << 1  # of RESET and PROT
_PMCR_ENABLE, _PMCR_RESET_EVENTS, _PMCR_RESET_CYCLES = 1 << 0, 1 << 1, 1 << 2
_PMCR_KEPT = 0b1001
_PMCR_COUNTERS = EVENT_COUNTERS << 11
_CYCLE_COUNTER = 1 << 31
_SHOWN_ONLY = (Reg.ID, Reg.STATUS, Reg.QREAD, Reg.PROT, Reg.CONFIG)
_SET_AND_CLEAR = (
    (Reg.PMCNTENSET, Reg.PMCNTENCLR),
    (Reg.PMOVSSET, Reg.PMOVSCLR),
    (Reg.PMINTSET, Reg.PMINTCLR),
)

# All registers that do something when written, or refuse it; the others keep what they are given.
ACTIVE = (*_SHOWN_ONLY, Reg.CMD, Reg.RESET, Reg.PMCR, *(r for pair in _SET_AND_CLEAR for r in pair))


@dataclasses.dataclass(frozen=True)
class Job:
    """A command stream that a driver has started.

    Attributes:
        address: of the commands.
        size: bytes of the commands.
        bases: addresses of the regions.
        ports: AXI port of each region, 0 or 1.
        secure: whether the NPU may reach secure memory.
    """

    address: int
    size: int
    bases: tuple[int, ...]
    ports: tuple[int, ...]
    secure: bool


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a stream ended.

    Attributes:
        fault: the status bit of what stopped it; None if it came to its end.
        bytes_done: of the commands, up to the end or to the one that failed.
        counts: what the performance monitor saw.
    """

    fault: Status | None = None
    bytes_done: int = 0
    counts: Mapping[Event, int] = dataclasses.field(default_factory=dict)


def config_word(macs: int) -> int:
    """CONFIG of the Ethos-U55 with so many MACs per cycle.

    >>> hex(config_word(128))
    '0x1807'
    """
    return macs.bit_length() - 1 | SHRAM_KIB[macs] << 8


def fault_of(error: NpuError) -> Status:
    """The status bit that an NPU would raise where the executor raises `error`."""
    if isinstance(error, MemoryAccessError):
        return Status.BUS_ERROR
    if isinstance(error, WeightStreamError):
        return Status.WEIGHT_DECODER_FAULT
    return Status.PARSE_ERROR


class Device:
    """The registers of one NPU.

    Args:
        macs: MACs per cycle of the configuration it shows.
        execute: runs a started stream to its end.

    Example:
        >>> npu = Device(128, lambda job: Outcome(bytes_done=job.size))
        >>> npu.write(Reg.QSIZE, 16)
        >>> npu.write(Reg.CMD, 1)
        >>> Status.END_REACHED in Status(npu.read(Reg.STATUS)), npu.interrupt
        (True, True)
    """

    def __init__(self, macs: int, execute: Callable[[Job], Outcome]):
        self._config = config_word(macs)
        self._execute = execute
        self.registers = bytearray(REGISTER_BYTES)
        self._reset(_PRIVILEGED)

    @property
    def interrupt(self) -> bool:
        """Level of the interrupt line."""
        return bool(self.read(Reg.STATUS) & Status.IRQ)

    def read(self, offset: int) -> int:
        """What the register at `offset` shows."""
        return int.from_bytes(self.registers[offset : offset + 4], "little")

    def write(self, offset: int, value: int) -> None:
        """A driver writes a register."""
        if offset in _SHOWN_ONLY:
            return
        if offset == Reg.RESET:
            self._reset(value & (_PRIVILEGED | _NON_SECURE))
        elif offset == Reg.CMD:
            self._command(value)
        elif offset == Reg.PMCR:
            self._control_monitor(value)
        elif offset in ACTIVE:
            for set_bits, clear_bits in _SET_AND_CLEAR:
                old = self.read(set_bits)
                if offset == set_bits:
                    self._show_pair(set_bits, clear_bits, old | value)
                elif offset == clear_bits:
                    self._show_pair(set_bits, clear_bits, old & ~value)
        else:
            self._show(offset, value)

    def _show(self, offset: int, value: int) -> None:
        self.registers[offset : offset + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")

    def _show_pair(self, one: int, other: int, value: int) -> None:
        self._show(one, value)
        self._show(other, value)

    def _reset(self, protection: int) -> None:
        self.registers[:] = bytes(REGISTER_BYTES)
        self._show(Reg.ID, ARCHITECTURE)
        self._show(Reg.CONFIG, self._config)
        self._show(Reg.PROT, protection)
        self._show(Reg.CMD, _CMD_CLOCK_AND_POWER)
        self._show(Reg.PMCR, _PMCR_COUNTERS)

    def _command(self, value: int) -> None:
        self._show(Reg.CMD, value & _CMD_CLOCK_AND_POWER)
        if value & _CMD_CLEAR_IRQ:
            self._show(Reg.STATUS, self.read(Reg.STATUS) & ~Status.IRQ)
        if value & _CMD_RUN:
            self._run()

    def _run(self) -> None:
        ports = self.read(Reg.REGIONCFG)
        outcome = self._execute(
            Job(
                address=self.read(Reg.QBASE),
                size=self.read(Reg.QSIZE),
                bases=tuple(self.read(Reg.BASEP0 + 8 * i) for i in range(REGIONS)),
                ports=tuple(ports >> 2 * i + 1 & 1 for i in range(REGIONS)),
                secure=not self.read(Reg.PROT) & _NON_SECURE,
            )
        )
        self._count(outcome.counts)
        self._show(Reg.QREAD, outcome.bytes_done)
        self._show(Reg.STATUS, Status.IRQ | (outcome.fault or Status.END_REACHED))

    def _control_monitor(self, value: int) -> None:
        if value & _PMCR_RESET_CYCLES:
            self._show(Reg.PMCCNTR_LO, 0)
            self._show(Reg.PMCCNTR_HI, 0)
        if value & _PMCR_RESET_EVENTS:
            for i in range(EVENT_COUNTERS):
                self._show(Reg.PMEVCNTR0 + 4 * i, 0)
        self._show(Reg.PMCR, value & _PMCR_KEPT | _PMCR_COUNTERS)

    def _count(self, counts: Mapping[Event, int]) -> None:
        if not self.read(Reg.PMCR) & _PMCR_ENABLE:
            return
        enabled = self.read(Reg.PMCNTENSET)
        if enabled & _CYCLE_COUNTER:
            total = self.read(Reg.PMCCNTR_LO) | self.read(Reg.PMCCNTR_HI) << 32
            total += counts.get(Event.CYCLE, 0)
            self._show(Reg.PMCCNTR_LO, total)
            self._show(Reg.PMCCNTR_HI, total >> 32)
        numbers = {int(event): count for event, count in counts.items()}
        for i in range(EVENT_COUNTERS):
            if enabled & 1 << i:
                event = self.read(Reg.PMEVTYPER0 + 4 * i)
                place = Reg.PMEVCNTR0 + 4 * i
                total = self.read(place) + numbers.get(event, 0)
                self._show(place, total)
                if total >> 32:
                    self._show_pair(Reg.PMOVSSET, Reg.PMOVSCLR, self.read(Reg.PMOVSSET) | 1 << i)
