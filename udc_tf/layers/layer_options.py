"""What is open to decision in one layer."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from udc_tf.quantize.plain_numbers import is_number, is_whole, plain
from udc_tf.quantize.quantizers import FLOAT_BITS


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """What is open to decision in one layer; `None` is not searched.

    Unsearched means full width, full kernel, all weights kept and, for bits, float weights in the
    search that are deployed with 8 bits.
    """

    widths: tuple[float, ...] | None = None
    bits: tuple[int, ...] | None = None
    sparsities: tuple[float, ...] | None = None
    kernels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            checked = checked_options(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, checked)


def checked_options(kind: str, options: Any) -> tuple | None:
    """The options of one kind in order, each once; refuses what is none.

    >>> checked_options("bits", (8, 4))
    (4, 8)
    """
    if options is None:
        return None
    options = tuple(options) if isinstance(options, Iterable) else (options,)
    if not options:
        raise ValueError(f"`{kind}` needs at least one option, or None to switch it off.")
    for value in options:
        if kind in ("widths", "sparsities"):
            valid = is_number(value) and 0 < value <= 1
            wanted = "fractions in (0, 1]"
        elif kind == "bits":
            valid = is_whole(value) and (1 <= value <= 8 or value == FLOAT_BITS)
            wanted = "whole numbers from 1 to 8, or 32"
        else:
            valid = is_whole(value) and value >= 1
            wanted = "positive whole numbers"
        if not valid:
            raise ValueError(f"`{kind}` must be {wanted}. Received: {value!r} in {options}")
    return tuple(sorted(set(plain(options))))
