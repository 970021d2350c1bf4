"""The names in a vela.ini, so that a wrong one is told before anything is trained or compiled."""

import configparser
import importlib.util
import os
import pathlib

SHIPPED = "Arm/vela.ini"  # Vela finds it beside itself


def require_names(
    system_config: str, memory_mode: str, config: str | os.PathLike | None = None
) -> None:
    """Raises a `ValueError` for a name that a vela.ini does not have, with those that it has.

    Args:
        system_config, memory_mode: of Vela's.
        config: a user's own vela.ini; None is the one that Vela ships.

    Example:

    >>> require_names("Ethos_U55_Deep_Embedded", "Sram_Only")
    """
    sections = _sections(config)
    if sections is None:
        return
    for argument, prefix, name in (
        ("system_config", "System_Config.", system_config),
        ("memory_mode", "Memory_Mode.", memory_mode),
    ):
        there = [s.removeprefix(prefix) for s in sections if s.startswith(prefix)]
        if name not in there:
            raise ValueError(
                f"`{argument}` is one of {', '.join(there) or 'none'}, as {config or SHIPPED} "
                f"has them. Received: {name!r}"
            )


def _sections(config: str | os.PathLike | None) -> list[str] | None:
    """The sections of a vela.ini; None if Vela, which has the shipped one, is not installed."""
    if config is None:
        found = importlib.util.find_spec("ethosu")
        if found is None or not found.submodule_search_locations:
            return None
        path = pathlib.Path(found.submodule_search_locations[0], "config_files", SHIPPED)
    else:
        path = pathlib.Path(config)
    if not path.is_file():
        if config is None:
            return None  # another version's layout: Vela will say what it does not know
        raise ValueError(f"`vela_config` is a vela.ini. Received: {config}, which is no file")
    reader = configparser.ConfigParser()
    try:
        reader.read(path)
    except (configparser.Error, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"`vela_config` is a vela.ini: {reason}. Received: {config}") from error
    return reader.sections()
