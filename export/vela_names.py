"""Names and memories in a vela.ini: what is wrong is told before anything is trained."""

import configparser
import importlib.util
import os
import pathlib

from udc_tf.cost import vela_ini
from udc_tf.cost.accelerators import family
from udc_tf.cost.ini_values import require_values

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
        if not there:
            raise ValueError(
                f"`vela_config` must have a section [{prefix}{name}]. Received: {config}, which "
                f"has none that begins with {prefix}"
            )
        if name not in there:
            raise ValueError(
                f"`{argument}` is one of {', '.join(there)}, as {config or SHIPPED} has them. "
                f"Received: {name!r}"
            )
    if config is not None:
        require_values(ini, system_config, memory_mode, config)
    elif not _is_of(system_config, accelerator):
        systems = vela_ini.names(ini, vela_ini.SYSTEM)
        raise ValueError(
            f"`system_config` of an {accelerator} is one of "
            f"{', '.join(s for s in systems if _is_of(s, accelerator))}, or of a vela.ini of your "
            f"own. Received: {system_config!r}"
        )
    modes = [m for m in vela_ini.names(ini, vela_ini.MODE) if _has(accelerator, m, config)]
    vela_ini.require_memories(ini, system_config, memory_mode, modes)


def _is_of(system_config: str, accelerator: str) -> bool:
    """Whether a system that Vela ships is of an accelerator's family, by its name.

    >>> _is_of("Ethos_U85_SYS_DRAM_Mid", "ethos-u55-128")
    False
    """
    return system_config.lower().replace("_", "-").startswith(family(accelerator) + "-")


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
