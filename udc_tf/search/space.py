"""The search space: which options each layer has."""

import dataclasses
import fnmatch
from collections.abc import Mapping
from typing import Any

from udc_tf.layers.layer_options import LayerOptions, checked_options
from udc_tf.quantize.quantizers import FLOAT_BITS

_KINDS = tuple(f.name for f in dataclasses.fields(LayerOptions))


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """Options for widths, bits, sparsities, kernel sizes and operators.

    Any kind is switched off with `None` (`operators=False` for choices, which then keep their first
    branch).

    Args:
        widths: fractions of a layer's channels, each in (0, 1].
        bits: weight bitwidths from 1 to 8, or 32 for float (not on an Ethos-U).
        sparsities: fractions of weights that are *not* zero, each in (0, 1].
        kernels: kernel sizes; a layer takes those not larger than its own.
        operators: whether `udc_tf.Choice` layers are searched.
        overrides: for layers whose name matches a pattern, options that replace those above:
            `{"stem*": {"bits": (8,), "widths": None}}`. Later patterns win.
        frozen: name patterns of layers in which nothing is searched.
        snap: channels are multiples of this, so that no network pays for a brick of 16 channels of
            which it uses one; 1 switches it off. "auto" takes 16 where working memory has a budget,
            8 where cycles have one, else 1.

    Example:

    >>> space = SearchSpace(widths=(0.5, 1.0), bits=(4, 8), overrides={"head": {"bits": (8,)}})
    >>> space.options_for("head").bits, space.options_for("conv_1").bits
    ((8,), (4, 8))
    """

    widths: tuple[float, ...] | None = None
    bits: tuple[int, ...] | None = None
    sparsities: tuple[float, ...] | None = None
    kernels: tuple[int, ...] | None = None
    operators: bool = True
    overrides: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    frozen: tuple[str, ...] = ()
    snap: int | str = "auto"

    def __post_init__(self) -> None:
        whole = isinstance(self.snap, int) and not isinstance(self.snap, bool) and self.snap > 0
        if self.snap != "auto" and not whole:
            raise ValueError(
                f'`snap` must be "auto" or a whole number from 1. Received: {self.snap!r}'
            )
        for kind in _KINDS:
            object.__setattr__(self, kind, checked_options(kind, getattr(self, kind)))
        overrides = {}
        for pattern, options in dict(self.overrides).items():
            unknown = set(options) - set(_KINDS)
            if unknown:
                raise ValueError(
                    f"An override takes {', '.join(_KINDS)}. Received for {pattern!r}: "
                    f"{', '.join(sorted(unknown))}"
                )
            overrides[pattern] = {k: checked_options(k, v) for k, v in options.items()}
        object.__setattr__(self, "overrides", overrides)
        frozen = (self.frozen,) if isinstance(self.frozen, str) else tuple(self.frozen)
        object.__setattr__(self, "frozen", frozen)

    def is_frozen(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.frozen)

    def options_for(self, name: str) -> LayerOptions:
        """The options of the layer called `name`."""
        if self.is_frozen(name):
            return LayerOptions()
        options = {kind: getattr(self, kind) for kind in _KINDS}
        for pattern, replaced in self.overrides.items():
            if fnmatch.fnmatchcase(name, pattern):
                options.update(replaced)
        return LayerOptions(**options)

    def unmatched_patterns(self, names: list[str]) -> list[str]:
        """Patterns that name no layer: most likely a slip."""
        patterns = [*self.overrides, *self.frozen]
        return [p for p in patterns if not any(fnmatch.fnmatchcase(n, p) for n in names)]

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SearchSpace":
        return cls(**values)

    @classmethod
    def preset(cls, name: str) -> "SearchSpace":
        """`ethos_u55`: what the NPU can store; `paper`: UDC's own, with 32-bit float weights."""
        if name not in _PRESETS:
            raise ValueError(f"Known presets: {', '.join(_PRESETS)}. Received: {name!r}")
        return _PRESETS[name]


_TENTHS = tuple(n / 10 for n in range(1, 11))
_PRESETS = {
    "ethos_u55": SearchSpace(widths=_TENTHS, bits=(1, 2, 4, 8), sparsities=(0.01, *_TENTHS)),
    "paper": SearchSpace(widths=_TENTHS, bits=(1, 4, 8, FLOAT_BITS), sparsities=(0.01, *_TENTHS)),
}
