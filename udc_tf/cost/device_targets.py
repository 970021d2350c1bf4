"""Budgets on what only a device has: working memory and time."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from udc_tf.cost.accelerators import DEFAULT, require_accelerator
from udc_tf.cost.byte_sizes import parse_bytes, parse_count, parse_unit
from udc_tf.cost.cycles import CyclesCost
from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.flash import SizeModel
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.sram import SramCost
from udc_tf.cost.targets import Bound, BoundTarget, Flash, Target, register_target
from udc_tf.cost.vela_ini import default_mode, kind_of, require_mode


@dataclasses.dataclass(frozen=True)
class OnDevice:
    """What a budget depends on besides the accelerator: see `Sram` and `Cycles`."""

    accelerator: str = DEFAULT
    system_config: str | None = None
    memory_mode: str | None = None
    vela_config: str | None = None
    device_model: DeviceModel = dataclasses.field(default_factory=DeviceModel)

    def __post_init__(self) -> None:
        require_accelerator(self.accelerator)
        if isinstance(self.device_model, Mapping):
            object.__setattr__(self, "device_model", DeviceModel.from_dict(self.device_model))
        if not isinstance(self.device_model, DeviceModel):
            raise ValueError(
                f"`device_model` must be a DeviceModel. Received: {self.device_model!r}"
            )
        if self.vela_config is not None:
            object.__setattr__(self, "vela_config", str(self.vela_config))
        require_mode(self.accelerator, self.memory_mode, self.vela_config)

    def device_settings(self) -> dict[str, Any]:
        """What `to_dict` says about the device."""
        return {
            "accelerator": self.accelerator,
            "system_config": self.system_config,
            "memory_mode": self.memory_mode,
            "vela_config": self.vela_config,
            "device_model": self.device_model.to_dict(),
        }


@register_target("sram")
@dataclasses.dataclass(frozen=True)
class Sram(OnDevice):
    """Bytes of working memory, as Vela plans them for feature maps and buffers.

    Predicted from the tensors that are alive together, in bricks of 16 channels, and from the
    weights that are buffered; `udc_tf.export.fit_size_model` fits it, `export` checks it. Where the
    compiled file is kept in SRAM too (`Sram_Only`), its bytes come on top: `Flash` bounds them.

    Args:
        budget: bytes, or a string such as "64KiB".
        accelerator: Vela's name of the NPU.
        system_config, memory_mode, vela_config: as for Vela; None takes the family's default.
        device_model: coefficients, if better ones are known than the defaults.

    Example:

    >>> Sram("64KiB").budget
    65536
    """

    budget: int = 0

    if TYPE_CHECKING:  # the budget comes first, and what it takes is more than what it keeps

        def __init__(
            self,
            budget: float | str,
            accelerator: str = ...,
            *,
            system_config: str | None = None,
            memory_mode: str | None = None,
            vela_config: str | None = None,
            device_model: DeviceModel | Mapping[str, Any] = ...,
        ): ...
    else:

        def __init__(self, budget, accelerator=DEFAULT, **device):
            object.__setattr__(self, "budget", parse_bytes(budget))
            OnDevice.__init__(self, accelerator, **device)

    @property
    def cost(self) -> SramCost:
        mode = self.memory_mode or default_mode(self.accelerator)
        return SramCost(self.accelerator, kind_of(mode, self.vela_config), self.device_model)

    def bind(self, plan: Plan) -> BoundTarget:
        return Bound(self.budget, self.cost.bind(plan))

    def describe(self, value: float) -> str:
        return f"{value:,.0f} bytes of SRAM"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "sram", "budget": self.budget, **self.device_settings()}


@register_target("cycles")
@dataclasses.dataclass(frozen=True)
class Cycles(OnDevice):
    """NPU cycles of one inference, as Vela estimates them. It is an estimate, not a measurement.

    Args:
        budget: cycles.
        accelerator, system_config, memory_mode, vela_config, device_model: as for `Sram`.
        clock: of the NPU in Hz, if cycles are to be told as milliseconds, too.

    Example:

    >>> Cycles(2e6).describe(1e6)
    '1,000,000 cycles (estimated)'
    """

    budget: float = 0.0
    clock: float | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            budget: float,
            accelerator: str = ...,
            *,
            clock: float | None = None,
            system_config: str | None = None,
            memory_mode: str | None = None,
            vela_config: str | None = None,
            device_model: DeviceModel | Mapping[str, Any] = ...,
        ): ...
    else:

        def __init__(self, budget, accelerator=DEFAULT, *, clock=None, **device):
            object.__setattr__(self, "budget", parse_count(budget))
            object.__setattr__(self, "clock", None if clock is None else parse_unit(clock, "Hz"))
            OnDevice.__init__(self, accelerator, **device)

    @property
    def cost(self) -> CyclesCost:
        return CyclesCost(self.accelerator, self.device_model)

    def bind(self, plan: Plan) -> BoundTarget:
        return Bound(self.budget, self.cost.bind(plan))

    def describe(self, value: float) -> str:
        time = "" if self.clock is None else f", {1e3 * value / self.clock:.3g} ms"
        return f"{value:,.0f} cycles (estimated{time})"

    def to_dict(self) -> dict[str, Any]:
        settings = self.device_settings()
        return {"kind": "cycles", "budget": self.budget, "clock": self.clock, **settings}


def Latency(
    time: float | str, clock: float | str, accelerator: str = DEFAULT, **device: Any
) -> Cycles:
    """`Cycles` that pass in a time at a clock.

    Args:
        time: seconds, or a string such as "5ms".
        clock: of the NPU in Hz, or a string such as "400MHz".
        accelerator, device: as for `Cycles`.

    >>> Latency("5ms", clock="400MHz").budget
    2000000.0
    """
    rate = parse_unit(clock, "Hz")
    return Cycles(parse_unit(time, "s") * rate, accelerator, clock=rate, **device)


def informed(target: Target, others: Sequence[Target]) -> Target:
    """A target of flash with what is known for one of `others`, if nothing is known for it."""
    if not isinstance(target, Flash) or is_fitted(target):
        return target
    for other in others:
        if isinstance(other, Flash) and other.accelerator == target.accelerator:
            return dataclasses.replace(target, size_model=other.size_model)
    return target


def is_fitted(target: Target) -> bool:
    """Whether a target knows what compilations said; those that need none are always fitted.

    >>> is_fitted(Sram("64KiB")), is_fitted(Flash("32KiB", size_model={"fixed": 1700.0}))
    (False, True)
    """
    if isinstance(target, Flash):
        return target.size_model != SizeModel()
    return not isinstance(target, OnDevice) or target.device_model.fitted
