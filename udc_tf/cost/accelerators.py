"""The NPUs that networks are searched for, by Vela's names."""

from typing import Any

ACCELERATORS = (
    *(f"ethos-u55-{macs}" for macs in (32, 64, 128, 256)),
    *(f"ethos-u65-{macs}" for macs in (256, 512)),
    *(f"ethos-u85-{macs}" for macs in (128, 256, 512, 1024, 2048)),
)
DEFAULT = "ethos-u55-128"


def family(accelerator: str) -> str:
    """What is alike for all NPUs of a name.

    >>> family("ethos-u65-256")
    'ethos-u65'
    """
    return accelerator.rpartition("-")[0]


def require_accelerator(name: Any) -> None:
    """Raises a `ValueError` for what is no name of an NPU."""
    if name not in ACCELERATORS:
        raise ValueError(
            f"`accelerator` must be one of {', '.join(ACCELERATORS)}. Received: {name!r}"
        )
