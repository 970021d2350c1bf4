"""Sizes as people write them: "32KiB", "0.5MB"."""

import re

from udc_tf.quantize.plain_numbers import is_number

_UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "KIB": 1024, "MIB": 1024**2}


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
    if not 1 <= number * _UNITS[unit] < 2**63:
        raise ValueError(f"A size must be at least one byte, and finite. Received: {size!r}")
    return int(number * _UNITS[unit])
