"""Public devices with an Ethos-U: which NPU, which of Vela's configurations, how much memory.

Sizes are what the device has in all, by its vendor's public data; firmware takes its part of them,
so a budget of your own is mostly smaller. Where a device has no flash or no SRAM that a network
could count on, there is none here, and no target follows.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from udc_tf.cost.accelerators import require_accelerator
from udc_tf.cost.byte_sizes import parse_bytes, parse_unit
from udc_tf.cost.device_targets import Cycles, Sram
from udc_tf.cost.targets import Flash, Target
from udc_tf.cost.vela_ini import require_mode

_U55 = ("Ethos_U55_High_End_Embedded", "Shared_Sram")


@dataclasses.dataclass(frozen=True)
class Board:
    """A device, by which targets and Vela's settings are known.

    Attributes:
        name: as `Board.named` and `--board` take it; of a board of your own, any.
        accelerator: Vela's name of the NPU.
        system_config, memory_mode: of the vela.ini that Vela ships, or of `vela_config`.
        flash, sram: bytes, or strings such as "512KiB"; None where there is none to count on.
        clock: of the NPU in Hz, or a string such as "400MHz"; None where it is not known.
        source: where the figures are from.
        vela_config: a vela.ini of the vendor's or your own; None takes the one that Vela ships.

    Example:

    >>> board = Board.named("renesas-ra8p1")
    >>> [target.describe(target.budget) for target in board.targets(flash="64KiB")]
    ['65,536 bytes of flash', '1,703,936 bytes of SRAM']

    A board of your own:

    >>> own = Board("mine", "ethos-u55-64", "Ethos_U55_Deep_Embedded", "Shared_Sram",
    ...             flash="512KiB", sram="256KiB", clock="200MHz")
    >>> [target.describe(target.budget) for target in own.targets(latency="5ms")][-1]
    '1,000,000 cycles (estimated, 5 ms)'
    """

    name: str
    accelerator: str
    system_config: str
    memory_mode: str
    flash: int | None = None
    sram: int | None = None
    clock: float | None = None
    source: str = ""
    vela_config: str | None = None

    if TYPE_CHECKING:  # what it takes is more than what it keeps

        def __init__(
            self,
            name: str,
            accelerator: str,
            system_config: str,
            memory_mode: str,
            flash: float | str | None = None,
            sram: float | str | None = None,
            clock: float | str | None = None,
            source: str = "",
            vela_config: str | None = None,
        ): ...

    def __post_init__(self) -> None:
        require_accelerator(self.accelerator)
        require_mode(self.accelerator, self.memory_mode, self.vela_config)
        for size in ("flash", "sram"):
            if getattr(self, size) is not None:
                object.__setattr__(self, size, parse_bytes(getattr(self, size)))
        if self.clock is not None:
            object.__setattr__(self, "clock", parse_unit(self.clock, "Hz"))

    @classmethod
    def named(cls, name: str) -> "Board":
        """One of `BOARDS`."""
        if name not in BOARDS:
            raise ValueError(
                f"Known boards: {', '.join(BOARDS)}; for another one make a udc_tf.Board of its "
                f"accelerator and memories. Received: {name!r}"
            )
        return BOARDS[name]

    @property
    def settings(self) -> dict[str, Any]:
        """What targets, `compile_with_vela` and `export` take about the device."""
        return {
            "accelerator": self.accelerator,
            "system_config": self.system_config,
            "memory_mode": self.memory_mode,
            "vela_config": self.vela_config,
        }

    def targets(
        self,
        flash: int | str | None = None,
        sram: int | str | None = None,
        cycles: float | None = None,
        latency: float | str | None = None,
    ) -> list[Target]:
        """What a network on this board has to keep: your budgets, else what the board has.

        Args:
            flash, sram: bytes, or strings such as "64KiB"; not more than the board has.
            cycles: of one inference; no budget by default.
            latency: the same as a time, such as "5ms".
        """
        found: list[Target] = []
        if (size := self.within("flash", flash)) is not None:
            found.append(Flash(size, self.accelerator))
        if (size := self.within("sram", sram)) is not None:
            found.append(Sram(size, **self.settings))
        if latency is not None:
            if self.clock is None:
                raise ValueError(
                    f"The clock of {self.name} is not known: give `cycles`, or a Board with a "
                    f"`clock`. Received: latency={latency!r}"
                )
            cycles = min(parse_unit(latency, "s") * self.clock, cycles or float("inf"))
        if cycles is not None:
            found.append(Cycles(cycles, clock=self.clock, **self.settings))
        if not found:
            raise ValueError(
                f"{self.name} has neither flash nor SRAM of a known size: give a budget. "
                "Received: none"
            )
        return found

    def within(self, what: str, wanted: int | str | None) -> int | None:
        """A budget of "flash" or "sram": what is wanted, else all that the board has.

        Raises:
            ValueError: the board has less.
        """
        there: int | None = getattr(self, what)
        if wanted is None:
            return there
        size = parse_bytes(wanted)
        if there is not None and size > there:
            raise ValueError(f"{self.name} has {there:,} bytes of {what}. Received: {wanted!r}")
        return size


BOARDS = {
    board.name: board
    for board in (
        Board(
            "corstone-300",
            "ethos-u55-128",
            *_U55,
            sram=2 << 20,
            source="Arm, CMSIS-Ethos-U, FVP set-up; the arena of Arm's inference runner",
        ),
        Board(
            "corstone-300-u65",
            "ethos-u65-256",
            "Ethos_U65_Mid_End",
            "Dedicated_Sram_384KB",
            sram=384 << 10,
            source="Arm, CMSIS-Ethos-U, FVP set-up",
        ),
        Board("corstone-310", "ethos-u55-256", *_U55, source="Arm, Corstone SSE-310 FVP"),
        Board(
            "corstone-320",
            "ethos-u85-256",
            "Ethos_U85_SYS_DRAM_Mid",
            "Dedicated_Sram_384KB",
            sram=384 << 10,
            source="Arm, Corstone SSE-320 FVP",
        ),
        Board(
            "alif-ensemble-e7-hp",
            "ethos-u55-256",
            *_U55,
            flash=5632 << 10,
            sram=4 << 20,
            clock=400e6,
            source="Alif Semiconductor, Ensemble E7 data sheet: MRAM, SRAM0, RTSS-HP",
        ),
        Board(
            "alif-ensemble-e7-he",
            "ethos-u55-128",
            *_U55,
            flash=5632 << 10,
            sram=4 << 20,
            clock=160e6,
            source="Alif Semiconductor, Ensemble E7 data sheet: MRAM, SRAM0, RTSS-HE",
        ),
        Board(
            "himax-wiseeye2",
            "ethos-u55-64",
            *_U55,
            flash=16 << 20,
            sram=2432 << 10,
            clock=400e6,
            source="Himax, WiseEye2 HX6538; flash of Seeed's Grove Vision AI V2",
        ),
        Board(
            "renesas-ra8p1",
            "ethos-u55-256",
            *_U55,
            flash=1 << 20,
            sram=1664 << 10,
            clock=500e6,
            source="Renesas, RA8P1 product page: MRAM, user SRAM",
        ),
        Board(
            "infineon-psoc-edge-e84",
            "ethos-u55-128",
            *_U55,
            flash=512 << 10,
            sram=5 << 20,
            clock=400e6,
            source="Infineon, PSOC Edge E84 evaluation kit: RRAM, system SRAM",
        ),
        Board(
            "nxp-imx93",
            "ethos-u65-256",
            "Ethos_U65_High_End",
            "Dedicated_Sram_384KB",
            sram=384 << 10,
            clock=1e9,
            source="NXP, AN13854 and i.MX 93 data sheet: the NPU's part of the OCRAM",
        ),
    )
}
