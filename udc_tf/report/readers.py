"""The files of a work directory that are read for the next step or the report, each checked.

What is wrong with one is said with its name and with what to do about it, and before anything is
trained: `check` reads them all.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from udc_tf.files import DamagedFileError, read_json, read_json_lines

_NUMBER = (int, float)
_RESULTS = {
    "validation_score": _NUMBER,
    "test_score": _NUMBER,
    "examples": dict,
    "sets": dict,
    "verification": list,
    "budgets": list,
    "flash_bytes": int,
    "predicted_flash_bytes": _NUMBER,
    "tflite_bytes": int,
    "sram_bytes": int,
    "macs": _NUMBER,
    "changes": list,
    "search_seconds": _NUMBER,
    "finetune_seconds": _NUMBER,
    "export_seconds": _NUMBER,
}
_EXPORT_REPORT = {"layers": list, "tightening": list, "memory": list}
_MOST = 1 << 40
_LINE = {"what": str, "need": _NUMBER, "have": _NUMBER}
_TENSOR = {"name": str, "bytes": int, "start": int, "end": int}
_MANIFEST = {"estimated_cycles": int, "files": dict}


def check(folder: pathlib.Path) -> None:
    """Raises if one of the files is damaged.

    Raises:
        DamagedFileError: with the remedy.
    """
    read_results(folder / "results.json")
    read_probabilities(folder / "probabilities.json")
    for step in ("search", "finetune"):
        read_history(folder / f"{step}.jsonl")
    read_export_report(folder / "artefacts" / "report.json")
    read_manifest(folder / "artefacts" / "manifest.json")


def read_results(path: pathlib.Path) -> dict[str, Any]:
    remedy = "remove it, and the same command measures anew"
    return _with_rows(path, _checked(path, _RESULTS, remedy), "budgets", _LINE, remedy)


def read_export_report(path: pathlib.Path) -> dict[str, Any]:
    remedy = "remove it; the report does without"
    return _with_rows(path, _checked(path, _EXPORT_REPORT, remedy), "memory", _TENSOR, remedy)


def read_manifest(path: pathlib.Path) -> dict[str, Any]:
    return _checked(path, _MANIFEST, "remove it, and the same command exports anew")


def read_probabilities(path: pathlib.Path) -> dict[str, tuple[list[float], list[float]]]:
    """For each decision its options and how likely they are; empty if there is no such file."""
    remedy = "remove it; only tightening and the report know less then"
    content = _checked(path, {}, remedy)
    for name, value in content.items():
        pair = value if isinstance(value, list) and len(value) == 2 else ("", "")
        if not all(map(_are_numbers, pair)) or len(pair[0]) != len(pair[1]):
            raise DamagedFileError(path, f"{name} has no options and probabilities", remedy)
    return {name: (options, likely) for name, (options, likely) in content.items()}


def read_history(path: pathlib.Path) -> list[dict[str, float]]:
    """One dictionary per epoch; none if there is no such file."""
    if not path.exists():
        return []
    remedy = "remove it; only curves of the report are lost"
    rows = read_json_lines(path, remedy)
    if not all("epoch" in row and _are_numbers(list(row.values())) for row in rows):
        raise DamagedFileError(path, "a line that is no epoch's numbers", remedy)
    return rows


def _checked(path: pathlib.Path, kinds: Mapping[str, Any], remedy: str) -> dict[str, Any]:
    if not path.exists():
        return {}
    content = read_json(path, remedy)
    for name, kind in kinds.items():
        value = content.get(name)
        if value is not None and not isinstance(value, kind):
            raise DamagedFileError(path, f"{name} is {type(value).__name__}", remedy)
    return content


def _with_rows(
    path: pathlib.Path, content: dict[str, Any], name: str, kinds: Mapping[str, Any], remedy: str
) -> dict[str, Any]:
    """`content`, whose rows under `name` have all that is drawn of them."""
    for row in content.get(name) or ():
        sound = isinstance(row, dict) and all(isinstance(row.get(k), v) for k, v in kinds.items())
        if not sound or not all(0 <= row.get(k, 0) < _MOST for k in ("start", "end", "bytes")):
            raise DamagedFileError(path, f"{name} has a row that is none: {row}", remedy)
        if row.get("have") == 0:
            raise DamagedFileError(path, f"{name} has a budget of nothing", remedy)
    return content


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(v, _NUMBER) for v in values)
