"""`udc doctor`: what is installed here, what is missing for what, and how to get it."""

import importlib.metadata
import platform
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import tensorflow as tf
from packaging.requirements import Requirement

from udc_tf.cli.usage import Say
from udc_tf.export.runners import RUNNERS, make_runner
from udc_tf.version import __version__

PACKAGE = "udc-tf"
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


class Finding(NamedTuple):
    """One line: a thing, how it stands, and whether nothing works without it."""

    name: str
    state: str
    is_fatal: bool = False


def run_doctor(say: Say) -> int:
    """Prints what was found; the exit code is 1 if a package that all needs is missing."""
    packages = examine_packages(_requirements()) or [
        Finding(PACKAGE, "on the path, but not installed: what it requires is not known here")
    ]
    say(
        f"udc-tf {__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}"
    )
    for title, findings in (
        ("Packages", packages),
        ("Runners (udc --runners=..., udc-run --on=...)", examine_runners()),
        ("Devices for training", examine_devices()),
    ):
        say(f"\n{title}")
        for finding in findings:
            say(f"  {finding.name:<30} {finding.state}")
    broken = [finding.name for finding in packages if finding.is_fatal]
    say(
        f"\nNothing works without: {', '.join(broken)}"
        if broken
        else "\nAll that is needed is here."
    )
    return 1 if broken else 0


def examine_packages(
    requirements: Iterable[str],
    version: Callable[[str], str] = importlib.metadata.version,
) -> list[Finding]:
    """What of a package's requirements is installed, those of its extras too.

    Example:
        >>> examine_packages(["numpy>=1", 'no-such-package>=2; extra == "data"'])[1].state
        "missing: pip install 'udc-tf[data]'"
    """
    return [_examine(Requirement(line), version) for line in requirements]


def _examine(requirement: Requirement, version: Callable[[str], str]) -> Finding:
    extra = _EXTRA.search(str(requirement.marker or ""))
    wanted = f"{PACKAGE}[{extra[1]}]" if extra else PACKAGE
    remedy = f"pip install '{wanted}'"
    try:
        found = version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(requirement.name, f"missing: {remedy}", is_fatal=not extra)
    if requirement.specifier.contains(found, prereleases=True):
        return Finding(requirement.name, found + (f"  [{extra[1]}]" if extra else ""))
    state = f"{found}, which is not {requirement.specifier}: {remedy}"
    return Finding(requirement.name, state, is_fatal=not extra)


def examine_runners() -> list[Finding]:
    """Which runners work here, and what the others lack."""
    return [Finding(n, make_runner(n).unavailable() or "ready") for n in RUNNERS]


def examine_devices() -> list[Finding]:
    """What TensorFlow would train on."""
    devices = tf.config.list_physical_devices()
    return [Finding(d.name.removeprefix("/physical_device:"), "ready") for d in devices]


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path, installed nowhere
        return []
