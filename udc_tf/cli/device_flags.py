"""What flags say about the device: a board, or its NPU, memories and budgets one by one."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from udc_tf.cli.usage import UsageError
from udc_tf.cost.accelerators import ACCELERATORS, DEFAULT
from udc_tf.cost.boards import BOARDS, Board
from udc_tf.cost.byte_sizes import parse_bytes, parse_unit
from udc_tf.cost.device_targets import Cycles, Sram
from udc_tf.cost.targets import Flash, Macs, Target
from udc_tf.export import vela

_Number = TypeVar("_Number", int, float)


@dataclasses.dataclass(frozen=True)
class Device:
    """Where a network is to run, and what it may take there besides flash."""

    accelerator: str = DEFAULT
    system_config: str | None = None
    memory_mode: str | None = None
    vela_config: str | None = None
    sram: int | None = None
    cycles: float | None = None
    clock: float | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Device":
        """From flags, each of which may say otherwise than the board.

        >>> Device.of({"board": "nxp-imx93", "sram": "256KiB"}).sram
        262144
        """
        board = board_of(given)
        known = {} if board is None else {**board.settings, "clock": board.clock}
        for name in ("accelerator", "system_config", "memory_mode", "vela_config", "cycles"):
            if given.get(name) is not None:
                known[name] = given[name]
        accelerator = known.get("accelerator", DEFAULT)
        if accelerator not in ACCELERATORS:
            raise UsageError(
                f"--accelerator is one of {', '.join(ACCELERATORS)}. Received: {accelerator!r}"
            )
        if board is not None and accelerator != board.accelerator:
            raise UsageError(
                f"{board.name} has an {board.accelerator}: leave --board or --accelerator out. "
                f"Received: --accelerator={accelerator}"
            )
        config = known.get("vela_config")
        if config is not None and not pathlib.Path(config).is_file():
            raise UsageError(f"--vela_config is a vela.ini. Received: {config}, which is no file")
        try:
            if board is not None:
                known["sram"] = board.within("sram", given.get("sram"))
            elif given.get("sram") is not None:
                known["sram"] = _read("sram", given["sram"], parse_bytes)
            known.update(_of_time(given, known))
            found = cls(**known)
            found.targets(None, None)  # for their checks
            vela.System.of([], accelerator=accelerator, **found.system)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return found

    @property
    def system(self) -> dict[str, Any]:
        """What `export` and the targets take about the device, besides the accelerator."""
        names = ("system_config", "memory_mode", "vela_config")
        return {name: getattr(self, name) for name in names}

    def targets(self, flash: str | None, macs: float | None) -> list[Target]:
        """All that was given a budget."""
        found: list[Target] = [] if flash is None else [Flash(flash, self.accelerator)]
        if self.sram is not None:
            found.append(Sram(self.sram, self.accelerator, **self.system))
        if self.cycles is not None:
            found.append(Cycles(self.cycles, self.accelerator, clock=self.clock, **self.system))
        return found + ([] if macs is None else [Macs(macs)])


def _of_time(given: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The clock, and the budget of cycles that a latency comes to; the smaller of two holds.

    >>> _of_time({"latency": "5ms", "clock": "400MHz"}, {"cycles": 3e6})
    {'clock': 400000000.0, 'cycles': 2000000.0}
    """
    clock = given.get("clock") or known.get("clock")
    rate = None if clock is None else _read("clock", clock, lambda text: parse_unit(text, "Hz"))
    if (latency := given.get("latency")) is None:
        return {"clock": rate}
    time = _read("latency", latency, lambda text: parse_unit(text, "s"))
    if rate is None:
        raise UsageError(
            "--latency needs the NPU's clock: --clock=400MHz, or a --board whose clock is known. "
            f"Received: --latency={latency}"
        )
    return {"clock": rate, "cycles": min(time * rate, known.get("cycles", float("inf")))}


def _read(flag: str, text: str, parse: Callable[[str], _Number]) -> _Number:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"--{flag}: {error}") from error


def board_of(given: Mapping[str, Any]) -> Board | None:
    """The board of --board, if there is one."""
    name = given.get("board")
    if name is not None and name not in BOARDS:
        raise UsageError(f"--board is one of {', '.join(BOARDS)}. Received: {name!r}")
    return None if name is None else BOARDS[name]


def flash_budget(given: Mapping[str, Any], of_recipe: str | None) -> str | None:
    """The flash budget: what was said, else the recipe's, but not more than the board has."""
    board = board_of(given)
    there = None if board is None else board.flash
    if there is None:
        return of_recipe
    if of_recipe is None:
        return f"{there}B"
    if parse_bytes(of_recipe) > there and board is not None:
        raise UsageError(f"{board.name} has {there:,} bytes of flash. Received: {of_recipe}")
    return of_recipe
