"""Addresses of an ELF file's symbols."""

from __future__ import annotations

import os
import pathlib
import struct
from collections.abc import Sequence

from udc_tf.export.runners.base import RunFailedError

_SECTION = struct.Struct("<10I")
_SYMBOL = struct.Struct("<IIIBBH")
_SYMBOL_TABLE = 2
_FUNCTION = 2


def symbols(
    path: str | os.PathLike[str], names: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, int]:
    """Addresses of `names` in a 32-bit little-endian ELF; of functions without their Thumb bit.

    Those that are `optional` may be missing.

    Raises:
        RunFailedError: the file is no such ELF, or has no such symbol.
    """
    data = pathlib.Path(path).read_bytes()
    if data[:6] != b"\x7fELF\x01\x01":
        raise RunFailedError(f"not a 32-bit little-endian ELF file. Received: {str(path)!r}")
    try:
        found = _find(data, {name.encode(): name for name in (*names, *optional)})
    except (struct.error, ValueError, IndexError):
        raise RunFailedError(f"the ELF file {str(path)!r} is damaged") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise RunFailedError(f"{str(path)!r} has no symbol {', '.join(missing)}")
    return found


def _find(data: bytes, wanted: dict[bytes, str]) -> dict[str, int]:
    (table,) = struct.unpack_from("<I", data, 32)
    size, count = struct.unpack_from("<HH", data, 46)
    sections = [_SECTION.unpack_from(data, table + i * size) for i in range(count)]
    found = {}
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        begin, length = section[4], section[5]
        strings = sections[section[6]][4]
        for name, value, _, info, _, _ in _SYMBOL.iter_unpack(data[begin : begin + length]):
            end = data.index(b"\0", strings + name)
            text = data[strings + name : end]
            if text in wanted:
                found[wanted[text]] = value & ~1 if info & 15 == _FUNCTION else value
    return found
