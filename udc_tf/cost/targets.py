"""Targets: a budget on a cost. A cost prices a network, a target bounds it.

A new target is a class with `budget`, `bind(plan)`, `describe(value)` and `to_dict()`, made known
by `register_target` so that what was saved with it loads again.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from udc_tf.cost.byte_sizes import parse_bytes, parse_count
from udc_tf.cost.counts import CountMaps, Counts
from udc_tf.cost.flash import FlashCost, SizeModel
from udc_tf.cost.macs import MacsCost
from udc_tf.cost.paper import PaperCost
from udc_tf.cost.priced_network import Plan


class BoundCost(Protocol):
    """A cost that knows the network."""

    @property
    def maps(self) -> CountMaps: ...

    def cost(self, counts: Counts) -> Any:
        """The cost for counts of shape [..., layers]: [...]."""


class BoundTarget(BoundCost, Protocol):
    """A target that knows the network."""

    @property
    def budget(self) -> float: ...


class Target(Protocol):
    """A budget on some cost."""

    @property
    def budget(self) -> float: ...

    def bind(self, plan: Plan) -> BoundTarget: ...

    def describe(self, value: float) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclasses.dataclass(frozen=True)
class Bound:
    """A budget on a cost that knows the network."""

    budget: float
    priced: BoundCost

    @property
    def maps(self) -> CountMaps:
        return self.priced.maps

    def cost(self, counts: Counts) -> Any:
        return self.priced.cost(counts)

    @property
    def is_peak(self) -> bool:
        """Whether the cost is the largest of several."""
        priced = self.priced
        return priced.is_peak if isinstance(priced, Bound) else hasattr(priced, "peaks")

    def peaks(self, counts: Counts) -> Any:
        """What must be inside the budget, one by one, [..., peaks]; the cost is the largest."""
        several = getattr(self.priced, "peaks", None)
        return several(counts) if several else self.cost(counts)[..., None]


@dataclasses.dataclass(frozen=True)
class Flash:
    """Bytes of the compiled file that goes into flash.

    Weights cost about s*b + H(s) bits each (only non-zeros carry b bits, the mask its entropy),
    counted over active input and output channels and what the NPU pads them with; scales, commands
    and container come on top.

    Args:
        budget: bytes, or a string such as "32KiB".
        accelerator: Vela's name of the NPU.
        size_model: coefficients, if better ones are known than the defaults.

    Example:

    >>> Flash("32KiB").budget
    32768
    """

    budget: int
    accelerator: str = "ethos-u55-128"
    size_model: SizeModel = dataclasses.field(default_factory=SizeModel)

    if TYPE_CHECKING:  # what it takes is more than what it keeps

        def __init__(
            self,
            budget: float | str,
            accelerator: str = "ethos-u55-128",
            size_model: SizeModel | Mapping[str, Any] = ...,
        ): ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", parse_bytes(self.budget))
        if isinstance(self.size_model, Mapping):
            object.__setattr__(self, "size_model", SizeModel.from_dict(self.size_model))
        FlashCost(self.accelerator, self.size_model)  # for its checks

    @property
    def cost(self) -> FlashCost:
        return FlashCost(self.accelerator, self.size_model)

    def bind(self, plan: Plan) -> BoundTarget:
        return Bound(self.budget, self.cost.bind(plan))

    def describe(self, value: float) -> str:
        return f"{value:,.0f} bytes of flash"

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "flash",
            "budget": self.budget,
            "accelerator": self.accelerator,
            "size_model": self.size_model.to_dict(),
        }


@dataclasses.dataclass(frozen=True)
class Macs:
    """Multiply-accumulate operations for one input. Zeros are multiplied too.

    >>> Macs(0.5e9).budget
    500000000.0
    """

    budget: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", parse_count(self.budget))

    @property
    def cost(self) -> MacsCost:
        return MacsCost()

    def bind(self, plan: Plan) -> BoundTarget:
        return Bound(self.budget, self.cost.bind(plan))

    def describe(self, value: float) -> str:
        return f"{value:,.0f} multiply-accumulates"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "macs", "budget": self.budget}


@dataclasses.dataclass(frozen=True)
class PaperSize:
    """The size as the UDC paper prints it, b + H(s) bits per weight, for comparison with it.

    It never rewards sparsity; use `Flash` for a device.
    """

    budget: int

    if TYPE_CHECKING:  # what it takes is more than what it keeps

        def __init__(self, budget: float | str): ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", parse_bytes(self.budget))

    @property
    def cost(self) -> PaperCost:
        return PaperCost()

    def bind(self, plan: Plan) -> BoundTarget:
        return Bound(self.budget, self.cost.bind(plan))

    def describe(self, value: float) -> str:
        return f"{value:,.0f} bytes by the paper's formula"

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "paper", "budget": self.budget}


_Class = TypeVar("_Class", bound=type)
_KINDS: dict[str, type] = {"flash": Flash, "macs": Macs, "paper": PaperSize}


def register_target(kind: str) -> Callable[[_Class], _Class]:
    """Makes a target of your own load again, as a decorator of its class.

    Saved with a search or an architecture it is what its `to_dict()` gives: `{"kind": kind, ...}`.
    The rest of that are the arguments by which the class is made again.

    >>> @register_target("weights")
    ... @dataclasses.dataclass(frozen=True)
    ... class Weights:
    ...     budget: float
    ...     def to_dict(self):
    ...         return {"kind": "weights", "budget": self.budget}
    >>> target_from_dict(Weights(100).to_dict())
    Weights(budget=100)
    """

    def register(cls: _Class) -> _Class:
        if _KINDS.setdefault(kind, cls).__qualname__ != cls.__qualname__:
            raise ValueError(
                f"There is a target of another class with this kind. Received: {kind!r}"
            )
        _KINDS[kind] = cls
        return cls

    return register


def target_from_dict(values: Mapping[str, Any]) -> Target:
    """The target of which `values` is the `to_dict()`."""
    values = dict(values)
    kind = values.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(
            f"Known kinds of targets: {', '.join(_KINDS)}; one of your own is made known with "
            f"udc_tf.register_target, in a module that is imported. Received: {kind!r}"
        )
    return _KINDS[kind](**values)


def loadable(target: Target) -> dict[str, Any]:
    """A target as it is saved; one that would not load again is refused now, not then."""
    values = target.to_dict()
    target_from_dict(values)
    return values
