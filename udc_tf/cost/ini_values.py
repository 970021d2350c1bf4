"""What a vela.ini's sections say, held against what Vela takes.

Vela passes over keys that it does not know: a slip in one leaves its default, and with it another
device's speed. Other slips end in a traceback. So a file of the user's own is read through first.
"""

import configparser
import difflib
import os
from collections.abc import Callable, Iterator

from udc_tf.cost.vela_ini import MODE, SYSTEM

_MEMORIES = ("Sram", "Dram", "OnChipFlash", "OffChipFlash")
_PORTS = ("Axi0", "Axi1")
_WHOLE = ("burst_length", "read_latency", "write_latency", "max_reads", "max_writes", "ports_used")
_OF_A_SYSTEM = ("axi0_port", "axi1_port")
_OF_A_MODE = ("const_mem_area", "arena_mem_area", "cache_mem_area")
_NEARLY = 0.8  # from where on a key that Vela does not know is a slip, and not a note of a vendor's

Test = tuple[Callable[[str], bool], str]


def require_values(
    ini: configparser.ConfigParser,
    system_config: str,
    memory_mode: str,
    path: str | os.PathLike,
) -> None:
    """Raises a `ValueError` for the first slip in the two sections and those they inherit from."""
    system, mode = SYSTEM + system_config, MODE + memory_mode
    said = _checked(ini, system, _system_keys(), _OF_A_SYSTEM, path)
    _checked(ini, mode, _mode_keys(), _OF_A_MODE, path)
    for port in _OF_A_SYSTEM:
        memory = said[port]
        if not any(key.startswith(f"{memory}_".lower()) for key in said):
            raise ValueError(
                f"`vela_config` must say how fast a memory is, such as {memory}_clock_scale=1.0. "
                f"Received: nothing about {memory}, the {port} of [{system}] in {path}"
            )


def _system_keys() -> dict[str, Test]:
    speed: Test = (_is_positive, "a positive number")
    found = {"core_clock": speed} | dict.fromkeys(_OF_A_SYSTEM, _one_of(_MEMORIES))
    for memory in _MEMORIES:
        found[f"{memory}_clock_scale"] = speed
        found |= dict.fromkeys((f"{memory}_{what}" for what in _WHOLE), _a_count())
    return found


def _mode_keys() -> dict[str, Test]:
    return dict.fromkeys(_OF_A_MODE, _one_of(_PORTS)) | {"arena_cache_size": _a_count()}


def _one_of(names: tuple[str, ...]) -> Test:
    return (lambda text: text in names), f"one of {', '.join(names)}"


def _a_count() -> Test:
    return str.isdecimal, "a whole number"


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _checked(
    ini: configparser.ConfigParser,
    section: str,
    keys: dict[str, Test],
    needed: tuple[str, ...],
    path: str | os.PathLike,
) -> dict[str, str]:
    """What a section says, with what it inherits; keys in small letters, as the parser has them."""
    known = {key.lower(): key for key in keys}
    said: dict[str, str] = {}
    for name in _inherited(ini, section, path):
        for key, value in ini.items(name):
            if key in known:
                valid, wanted = keys[known[key]]
                if not valid(value):
                    raise ValueError(
                        f"`vela_config`: {known[key]} is {wanted}. Received: {value!r} in [{name}] "
                        f"of {path}"
                    )
                said.setdefault(key, value)
            elif key != "inherit" and (
                near := difflib.get_close_matches(key, known, 1, cutoff=_NEARLY)
            ):
                raise ValueError(
                    f"`vela_config`: Vela knows {known[near[0]]}, and passes over what it does not "
                    f"know. Received: the key {key!r} in [{name}] of {path}"
                )
    for key in needed:
        if key not in said:
            raise ValueError(
                f"`vela_config` must have {', '.join(needed)} in [{section}]. Received: {path} "
                f"without {key}"
            )
    return said


def _inherited(
    ini: configparser.ConfigParser, section: str, path: str | os.PathLike
) -> Iterator[str]:
    """A section and those that it inherits from, in turn."""
    seen: list[str] = []
    while section not in seen:
        if not ini.has_section(section):
            raise ValueError(
                f"`vela_config`: [{seen[-1]}] inherits from a section of the file. Received: "
                f"inherit={section}, which {path} does not have"
            )
        seen.append(section)
        yield section
        section = ini.get(section, "inherit", fallback=section)
