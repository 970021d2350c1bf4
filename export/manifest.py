"""manifest.json: everything about an artefact that firmware and its build need to know.

Its fields are described in manifest.md beside this file.
"""

import hashlib
import importlib.metadata
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from udc_tf.export import tflite_file
from udc_tf.export.int8 import Int8Model
from udc_tf.export.npu import container
from udc_tf.export.vela import VelaResult

SCHEMA = 1
# TFLM keeps its own structures in the arena: a fixed part, and some for each tensor and operator.
_TFLM_FIXED, _TFLM_EACH = 4096, 128
_PACKAGES = ("udc-tf", "tensorflow", "keras", "ethos-u-vela", "tflite-micro", "numpy")
# Vela's operators and TFLM's `MicroMutableOpResolver`: methods whose name is not the plain one.
_REGISTER = {"ethos-u": "AddEthosU", "CONV_2D": "AddConv2D", "LOGISTIC": "AddLogistic"}


def arena_bytes(compiled: bytes) -> int:
    """Bytes of tensor arena for a compiled network under TFLM, rounded up to 16.

    What Vela planned for tensors and scratch, plus an allowance for TFLM's bookkeeping.
    """
    parsed = container.parse(compiled)
    structures = _TFLM_FIXED + _TFLM_EACH * (len(parsed.tensors) + len(parsed.operators))
    return -(-(parsed.arena_bytes + structures) // 16) * 16


def resolver_method(kind: str) -> str:
    """The method of TFLM's op resolver that registers an operator.

    >>> resolver_method("FULLY_CONNECTED"), resolver_method("MAX_POOL_2D")
    ('AddFullyConnected', 'AddMaxPool2D')
    """
    if kind in _REGISTER:
        return _REGISTER[kind]
    words = [w if w[:1].isdigit() else w.capitalize() for w in kind.split("_")]
    return "Add" + "".join(words).replace("2d", "2D")


def describe(
    exact: Int8Model, compiled: VelaResult, content: bytes, deployment: str
) -> dict[str, Any]:
    """The manifest without the list of files."""
    file = tflite_file.read(content)
    kinds = list(dict.fromkeys(o.kind for o in file.operators))
    return {
        "schema": SCHEMA,
        "versions": {name: _version(name) for name in _PACKAGES},
        "network": exact.network.name,
        "deployment": deployment,
        "accelerator": compiled.accelerator,
        "system_config": compiled.system_config,
        "memory_mode": compiled.memory_mode,
        "optimise": compiled.optimise,
        "flash_bytes": compiled.flash_bytes,
        "sram_bytes": compiled.sram_bytes,
        "arena_bytes": arena_bytes(content),
        "estimated_cycles": compiled.cycles,
        "estimated_inferences_per_second": round(compiled.inferences_per_second, 3),
        "macs": compiled.macs,
        "cpu_operators": list(compiled.cpu_operators),
        "operators": [{"kind": k, "register": resolver_method(k)} for k in kinds],
        "inputs": _tensors(exact, exact.network.inputs),
        "outputs": _tensors(exact, exact.network.outputs),
    }


def _tensors(exact: Int8Model, indices: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "name": exact.network.values[i].name,
            "shape": list(exact.network.values[i].shape),
            "type": "int8",
            "scale": float(exact.quantizations[i].scale),
            "zero_point": exact.quantizations[i].zero_point,
        }
        for i in indices
    ]


def files(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Name, size and sha256 of every file in a folder."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        found[path.relative_to(folder).as_posix()] = {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    return found


def damaged(folder: pathlib.Path) -> str | None:
    """The first file of an artefact folder that is not what its manifest says; None if all are.

    The manifest itself counts: it is written last, and what it does not hold cannot be trusted.
    """
    try:
        expected = json.loads((folder / "manifest.json").read_text())["files"]
        for name, entry in expected.items():
            content = (folder / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != entry["sha256"]:
                return name
    except OSError as error:
        return pathlib.Path(error.filename or folder).name
    except (ValueError, KeyError, TypeError, AttributeError):
        return "manifest.json"
    return None


def to_json(values: Mapping[str, Any]) -> str:
    """The same bytes for the same values."""
    return json.dumps(values, indent=2, sort_keys=True) + "\n"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
