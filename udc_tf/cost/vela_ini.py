"""What a vela.ini says about a device: which memories it has, and what Vela keeps in which of them.

A system configuration says what is behind each of the NPU's two ports, a memory mode which port
leads to weights (`const`), feature maps (`arena`) and what is buffered (`cache`). Modes are of
three kinds. Those of the vela.ini that Vela ships are named by their kind; in a user's own file a
mode may have any name.
"""

import configparser
import os
import pathlib
from collections.abc import Iterable

from udc_tf.cost.accelerators import family

SRAM_ONLY, SHARED, DEDICATED = "Sram_Only", "Shared_Sram", "Dedicated_Sram"
SYSTEM, MODE = "System_Config.", "Memory_Mode."
_PORTS = {"Axi0": "axi0_port", "Axi1": "axi1_port"}


def read_ini(path: str | os.PathLike) -> configparser.ConfigParser:
    """The content of a vela.ini.

    Raises:
        ValueError: there is none, or it is something else; in a sentence.
    """
    if not pathlib.Path(path).is_file():
        raise ValueError(f"`vela_config` is a vela.ini. Received: {path}, which is no file")
    reader = configparser.ConfigParser()
    try:
        reader.read(str(path))
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"`vela_config` is a vela.ini: {reason}. Received: {path}") from error
    return reader


def names(ini: configparser.ConfigParser, prefix: str) -> list[str]:
    """What there is of a kind of sections, in order."""
    return [s.removeprefix(prefix) for s in ini.sections() if s.startswith(prefix)]


def default_mode(accelerator: str) -> str:
    """The memory mode that Vela assumes.

    >>> default_mode("ethos-u55-128"), default_mode("ethos-u65-256")
    ('Shared_Sram', 'Dedicated_Sram')
    """
    return SHARED if family(accelerator) == "ethos-u55" else DEDICATED


def kind_of(memory_mode: str, vela_config: str | os.PathLike | None = None) -> str:
    """Which of the three kinds a memory mode is of.

    Args:
        memory_mode: by name.
        vela_config: a user's own vela.ini; the name decides where it is not at hand.

    >>> kind_of("Dedicated_Sram_384KB")
    'Dedicated_Sram'
    """
    if vela_config is not None and pathlib.Path(vela_config).is_file():
        ini = read_ini(vela_config)
        if ini.has_section(MODE + memory_mode):
            const, arena, cache = areas = _areas(ini, memory_mode)
            if _PORTS.keys() >= set(areas):  # else `ini_values` says what is wrong
                return DEDICATED if arena != cache else SRAM_ONLY if const == arena else SHARED
    return next((k for k in (SRAM_ONLY, DEDICATED) if memory_mode.startswith(k)), SHARED)


def require_mode(
    accelerator: str, memory_mode: str | None, vela_config: str | os.PathLike | None = None
) -> None:
    """Raises a `ValueError` for a mode that the accelerator lacks: an Ethos-U55 has no DRAM."""
    if memory_mode is None or family(accelerator) != "ethos-u55":
        return
    if kind_of(memory_mode, vela_config) == DEDICATED:
        raise ValueError(
            f"`memory_mode` of an Ethos-U55 is {SRAM_ONLY} or {SHARED}: it has no SRAM besides "
            f"the system's. Received: {memory_mode!r} for {accelerator}"
        )


def require_memories(
    ini: configparser.ConfigParser, system_config: str, memory_mode: str, modes: Iterable[str]
) -> None:
    """Raises a `ValueError` if a memory mode keeps something where a system cannot have it.

    Args:
        ini: which has both.
        system_config, memory_mode: by name.
        modes: those to propose instead, if they fit.
    """
    misplaced = _misplaced(ini, system_config, memory_mode)
    if misplaced is not None:
        fitting = [m for m in modes if _misplaced(ini, system_config, m) is None]
        raise ValueError(
            f"{system_config} has {misplaced}. With it `memory_mode` is one of "
            f"{', '.join(fitting) or 'none'}. Received: {memory_mode!r}"
        )


def _misplaced(ini: configparser.ConfigParser, system_config: str, memory_mode: str) -> str | None:
    """What is in a memory that Vela does not take for it; None if all is well."""
    found = {p: _value(ini, SYSTEM + system_config, key, "Sram") for p, key in _PORTS.items()}
    areas = _areas(ini, memory_mode)
    const, arena, cache = (found.get(port, f"no port {port}") for port in areas)
    if const == "Sram" and len(set(areas)) > 1:
        return f"{const} where {memory_mode} keeps the weights, beside an SRAM for the rest"
    if arena not in ("Sram", "Dram"):
        return f"{arena} where {memory_mode} keeps feature maps: nothing can be written there"
    if cache != "Sram":
        return f"{cache} where {memory_mode} keeps what is buffered, which must be Sram"
    return None


def _areas(ini: configparser.ConfigParser, memory_mode: str) -> tuple[str, str, str]:
    """The ports to weights, to feature maps, and to what is buffered."""
    const, arena, cache = (
        _value(ini, MODE + memory_mode, f"{what}_mem_area", "Axi0")
        for what in ("const", "arena", "cache")
    )
    return const, arena, cache


def _value(ini: configparser.ConfigParser, section: str, key: str, default: str) -> str:
    """What a section says, or the one that it inherits from."""
    seen: list[str] = []
    while section not in seen and ini.has_section(section):
        if ini.has_option(section, key):
            return ini.get(section, key)
        seen.append(section)
        section = ini.get(section, "inherit", fallback=section)
    return default
