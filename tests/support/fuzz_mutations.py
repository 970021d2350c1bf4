"""Damages inputs with regard to what they are: 32-bit words, NPU commands, JSON.

A fuzzer's own mutations know bytes only, and rarely leave a command stream or a JSON text that a
reader would look at twice. Every function takes a `random.Random`, so a seed repeats the damage.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

from udc_tf.export.npu import NpuError, command_words, container

_WORDS = (0, 1, 2, 3, 4, 7, 8, 0x7F, 0xFF, 0x100, 0xFFFF, 0x10000, 0x7FFFFFFF, 1 << 31, 0xFFFFFFFF)
_PARAMS = (0, 1, 2, 3, 15, 16, 31, 63, 64, 127, 255, 256, 1023, 0x7FFF, 0x8000, 0xFFFF)
_VALUES = (None, True, False, 0, -1, 1, 1.5, 1e308, float("nan"), 2**31, 2**63, 10**400, "", "a")
_DEEP = 400  # levels of brackets: more than the readers expect, fewer than Python's own limit


def flip(data: bytes, rng: random.Random) -> bytes:
    """A few bits turned over."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncate(data: bytes, rng: random.Random) -> bytes:
    """The first part only."""
    return data[: rng.randrange(len(data))]


def splice(data: bytes, rng: random.Random) -> bytes:
    """A part of the file copied over another."""
    out = bytearray(data)
    size = rng.randint(1, min(2000, len(data)))
    source, target = rng.randrange(len(data)), rng.randrange(len(data))
    part = data[source : source + min(size, len(data) - target)]
    out[target : target + len(part)] = part
    return bytes(out)


def words(data: bytes, rng: random.Random) -> bytes:
    """A few aligned 32-bit words replaced: offsets, sizes and counts of a flatbuffer."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = 4 * rng.randrange(max(1, len(out) // 4))
        old = int.from_bytes(out[at : at + 4], "little")
        new = rng.choice(
            (
                rng.choice(_WORDS),
                old + rng.choice((-4, -2, -1, 1, 2, 4, 8)),
                old << rng.randint(1, 16),
                int.from_bytes(out[4 * rng.randrange(max(1, len(out) // 4)) :][:4], "little"),
                rng.getrandbits(32),
            )
        )
        out[at : at + 4] = (new & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(out[: len(data)])


BYTES = (flip, truncate, splice, words)


def command_stream(data: bytes, rng: random.Random) -> bytes:
    """A compiled network whose commands are changed, moved, repeated or left out.

    What stays is a list of commands that ends where it should: the decoder does not stop it, only
    the meaning of the commands can.
    """
    try:
        stream = container.parse(data).npu_operators[0].words.tobytes()
        decoded = command_words.decode(np.frombuffer(stream, "<u4"))[:-1]
    except NpuError:
        return words(data, rng)
    items = [_encoded(c) for c in decoded]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        if items:
            _change_commands(items, rng)
    room = len(stream) // 4 - 1
    out: list[int] = []
    for item in items:
        if len(out) + len(item) <= room:
            out += item
    out += [_PADDING_COMMAND] * (room - len(out)) + [0xFFFF0000]
    at = data.index(stream)
    return data[:at] + np.array(out, "<u4").tobytes() + data[at + len(stream) :]


_PADDING_COMMAND = 19  # OP_PMU_MASK: changes nothing
_CODES = {
    name: code
    for code, name in {**command_words.OPERATIONS, **command_words.SHORT_REGISTERS}.items()
}
_LONG_CODES = {name: code | 1 << 14 for code, name in command_words.LONG_REGISTERS.items()}


def _encoded(command: command_words.Command) -> list[int]:
    if command.payload is None:
        return [_CODES[command.name] | command.param << 16]
    return [_LONG_CODES[command.name] | command.param << 16, command.payload]


def _change_commands(items: list[list[int]], rng: random.Random) -> None:
    at = rng.randrange(len(items))
    kind = rng.randrange(6)
    if kind == 0:  # another value for a register, or another mode for an operation
        item = list(items[at])
        if len(item) == 2 and rng.random() < 0.8:
            near = item[1] + rng.choice((-16, -1, 1, 16, 4096))
            item[1] = rng.choice((near, rng.choice(_WORDS), item[1] ^ 1 << rng.randrange(32)))
            item[1] &= 0xFFFFFFFF
        else:
            old = item[0] >> 16
            near = old + rng.choice((-1, 1, 2, 16))
            new = rng.choice((near, rng.choice(_PARAMS), old ^ 1 << rng.randrange(16), 2 * old))
            item[0] = item[0] & 0xFFFF | (new & 0xFFFF) << 16
        items[at] = item
    elif kind == 1:
        del items[at : at + rng.choice((1, 1, 2, 8))]
    elif kind == 2:
        items[at:at] = items[rng.randrange(len(items)) :][: rng.choice((1, 2, 10, 60))]
    elif kind == 3:
        other = rng.randrange(len(items))
        items[at], items[other] = items[other], items[at]
    elif kind == 4:  # a register or operation the stream may not use at all
        if rng.random() < 0.5:
            items.insert(at, [rng.choice(list(_CODES.values())) | rng.choice(_PARAMS) << 16])
        else:
            code = rng.choice(list(_LONG_CODES.values()))
            items.insert(at, [code | rng.choice((0, 0, 1, 31, 63)) << 16, rng.choice(_WORDS)])
    else:  # one operation becomes another
        operations = [i for i, item in enumerate(items) if item[0] & 0x3FF < 32]
        if operations:
            at = rng.choice(operations)
            items[at] = [rng.choice((2, 3, 5, 6, 16)) | rng.choice((0, 1, 2, 5, 9)) << 16]


def json_text(data: bytes, rng: random.Random) -> bytes:
    """A JSON text with a few values changed, removed, moved, or nested out of proportion."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return rng.choice(BYTES)(data, rng) if data else b"{}"
    try:
        for _ in range(rng.randint(1, 3)):
            content = _change_json(content, rng)
        return json.dumps(content).encode()
    except (ArithmeticError, ValueError, RecursionError):  # numbers or brackets beyond Python's own
        return flip(data, rng)


def _change_json(content: Any, rng: random.Random) -> Any:
    places = list(_places(content))
    if not places:
        return rng.choice((content, None, [], {}, 0, "text"))
    holder, key = rng.choice(places)
    other_holder, other_key = rng.choice(places)
    old = holder[key]
    kind = rng.randrange(6)
    if kind == 0:
        holder[key] = rng.choice(_VALUES)
    elif kind == 1 and isinstance(old, int | float) and not isinstance(old, bool):
        holder[key] = rng.choice((-old, old * 2, old + 1, old * 1000, old // 2, f"{old}", [old]))
    elif kind == 2:
        holder[key] = json.loads(json.dumps(other_holder[other_key]))
    elif kind == 3:
        del holder[key]
    elif kind == 4 and isinstance(holder, dict):
        holder[rng.choice(("", "x" * 300, "__class__", "\n", str(key) + "\0"))] = holder.pop(key)
    else:
        deep: Any = old
        for _ in range(rng.choice((1, 2, _DEEP))):
            deep = rng.choice(([deep], {"a": deep}))
        holder[key] = rng.choice(([], {}, [old] * 3, "x" * 5000, deep))
    return content


def _places(content: Any):
    """Every (container, key) of a JSON document."""
    waiting = [content] if isinstance(content, dict | list) else []
    while waiting:
        holder = waiting.pop()
        keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
        for key in list(keys):
            yield holder, key
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
