"""What a guest is about to print: the text of a `fprintf` call, from its registers and memory.

Arm's runner loses it: its `_write` reports that it wrote nothing, so that the C library gives up
after the first piece of an error message, and "E: " is all that the UART ever sees.
"""

from __future__ import annotations

import re

from udc_tf.export.runners.gdb_remote import GdbRemote

_CONVERSION = re.compile(r"%([-+ 0#]*\d*(?:\.\d+)?)(ll|l|hh|h|z|j|t)?([diuxXcsp%])")
_TEXT_LIMIT = 256
_FORMAT, _FIRST, _STACK = 1, 2, 13  # registers of fprintf(stream, format, ...)


def printed(gdb: GdbRemote) -> str:
    """The text that `fprintf` would print; the guest stands at its first instruction."""
    registers = gdb.registers()
    values = [*registers[_FIRST:4]]
    stack = registers[_STACK]
    taken = 0

    def word() -> int:
        nonlocal taken
        while taken >= len(values):
            values.append(gdb.read_word(stack + 4 * (len(values) - 2)))
        taken += 1
        return values[taken - 1]

    def convert(found: re.Match[str]) -> str:
        nonlocal taken
        flags, length, kind = found.groups()
        if kind == "%":
            return "%"
        if length == "ll":
            taken += taken % 2  # a pair begins at an even register and on 8 bytes of stack
            value, bits = word() | word() << 32, 64
        else:
            value, bits = word(), 32
        if kind == "s":
            return _string(gdb, value)
        if kind == "c":
            return chr(value & 0x7F)
        if kind == "p":
            return f"{value:#x}"
        if kind in "di" and value >> (bits - 1):
            value -= 1 << bits
        return f"%{flags}{kind.replace('u', 'd')}" % value

    return _CONVERSION.sub(convert, _string(gdb, registers[_FORMAT]))


def _string(gdb: GdbRemote, address: int) -> str:
    text = bytearray()
    while b"\0" not in text and len(text) < _TEXT_LIMIT:
        text += gdb.read(address + len(text), 32)
    return bytes(text).split(b"\0")[0].decode("ascii", "replace")
