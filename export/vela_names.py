"""Names and memories in a vela.ini: what is wrong is told before anything is trained."""

import configparser
import importlib.util
import os
import pathlib

from udc_tf.cost import vela_ini

SHIPPED = "Arm/vela.ini"  # Vela finds it beside itself


def require_names(
    accelerator: str,
    system_config: str,
    memory_mode: str,
    config: str | os.PathLike | None = None,
) -> None:
    """Raises a `ValueError` for what a vela.ini does not have, with what it has.

    Args:
        accelerator: Vela's name of the NPU.
        system_config, memory_mode: of Vela's.
        config: a user's own vela.ini; None is the one that Vela ships.

    Example:

    >>> require_names("ethos-u55-128", "Ethos_U55_Deep_Embedded", "Sram_Only")
    """
    ini = _shipped() if config is None else vela_ini.read_ini(config)
    if ini is None:
        return
    for argument, prefix, name in (
        ("system_config", vela_ini.SYSTEM, system_config),
        ("memory_mode", vela_ini.MODE, memory_mode),
    ):
        there = vela_ini.names(ini, prefix)
        if name not in there:
            raise ValueError(
                f"`{argument}` is one of {', '.join(there) or 'none'}, as {config or SHIPPED} "
                f"has them. Received: {name!r}"
            )
    modes = [m for m in vela_ini.names(ini, vela_ini.MODE) if _has(accelerator, m, config)]
    vela_ini.require_memories(ini, system_config, memory_mode, modes)


def _has(accelerator: str, memory_mode: str, config: str | os.PathLike | None) -> bool:
    try:
        vela_ini.require_mode(accelerator, memory_mode, config)
    except ValueError:
        return False
    return True


def _shipped() -> configparser.ConfigParser | None:
    """The vela.ini that Vela has beside itself; None if Vela is not installed."""
    found = importlib.util.find_spec("ethosu")
    if found is None or not found.submodule_search_locations:
        return None
    path = pathlib.Path(found.submodule_search_locations[0], "config_files", SHIPPED)
    if not path.is_file():
        return None  # another version's layout: Vela will say what it does not know
    return vela_ini.read_ini(path)
