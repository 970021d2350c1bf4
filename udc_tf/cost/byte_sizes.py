"""Sizes, times and rates as people write them: "32KiB", "5ms", "400MHz"."""

import re

from udc_tf.quantize.plain_numbers import is_number

_UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "KIB": 1024, "MIB": 1024**2}
_TOO_MANY = 1e18  # beyond which neither a size nor its share of a budget is a number to count with
_PREFIXES = {"u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def parse_unit(value: str | int | float, unit: str) -> float:
    """A positive number of a unit, written with a prefix or given as it is.

    >>> parse_unit("5ms", "s"), parse_unit("400MHz", "Hz"), parse_unit(2e6, "Hz")
    (0.005, 400000000.0, 2000000.0)
    """
    if is_number(value):
        number = float(value)
    else:
        match = re.fullmatch(rf"\s*([0-9]+\.?[0-9]*)\s*([umkMG]?){unit}\s*", str(value))
        number = float(match[1]) * _PREFIXES[match[2]] if match else 0.0
    if not 0 < number < float("inf"):
        example = "'400MHz'" if unit == "Hz" else f"'5m{unit}'"
        raise ValueError(
            f"A positive number with a unit was expected, such as {example}. Received: {value!r}"
        )
    return number


def parse_count(count: float) -> float:
    """A budget of what is counted and has no unit, such as cycles.

    >>> parse_count(2e6)
    2000000.0
    """
    if not is_number(count) or not 0 < count < _TOO_MANY:
        raise ValueError(f"`budget` must be a positive number below 1e18. Received: {count!r}")
    return float(count)


def parse_bytes(size: str | int | float) -> int:
    """Bytes of "32KiB", "0.5MB", "900B" or a plain number.

    >>> parse_bytes("32KiB"), parse_bytes("0.5MB")
    (32768, 500000)
    """
    if is_number(size):
        number, unit = float(size), "B"
    else:
        match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]+)\s*", str(size))
        digits, unit = (match.group(1), match.group(2).upper()) if match else ("", "")
        if unit not in _UNITS or digits.count(".") > 1 or digits == ".":
            raise ValueError(
                f"A size is a number with a unit (B, kB, KiB, MB, MiB), such as '32KiB'. Received: "
                f"{size!r}"
            )
        number = float(digits)
    if not 1 <= number * _UNITS[unit] < _TOO_MANY:
        raise ValueError(f"A size must be at least one byte, and finite. Received: {size!r}")
    return int(number * _UNITS[unit])
