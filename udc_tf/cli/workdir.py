"""The work directory: what each step leaves for the next, and what it was made with."""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from udc_tf.cli.usage import UsageError
from udc_tf.files import replaced_atomically

STEPS = ("search", "finetune", "export")
_FORMAT = 1


@dataclasses.dataclass(frozen=True)
class WorkDir:
    """Paths of one run, and the configuration it belongs to.

    Example:

    ```python
    work = WorkDir.open("runs/fashion")
    work.architecture, work.report
    ```
    """

    path: pathlib.Path

    @classmethod
    def open(cls, path: str) -> "WorkDir":
        folder = pathlib.Path(path)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--workdir={path} is a file; a folder is needed.")
        strange = folder.is_dir() and any(folder.iterdir()) and not (folder / "run.json").exists()
        if strange:
            raise UsageError(
                f"--workdir={path} holds other files and no run: take a new or an empty folder."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--workdir={path} cannot be made: {error.strerror}.") from error
        return cls(folder)

    # What the steps leave.
    @property
    def record(self) -> pathlib.Path:
        return self.path / "run.json"

    @property
    def architecture(self) -> pathlib.Path:
        return self.path / "architecture.json"

    @property
    def size_model(self) -> pathlib.Path:
        return self.path / "size_model.json"

    @property
    def probabilities(self) -> pathlib.Path:
        return self.path / "probabilities.json"

    @property
    def network(self) -> pathlib.Path:
        return self.path / "network.keras"

    @property
    def artefacts(self) -> pathlib.Path:
        return self.path / "artefacts"

    @property
    def results(self) -> pathlib.Path:
        return self.path / "results.json"

    @property
    def report(self) -> pathlib.Path:
        return self.path / "report.html"

    @property
    def images(self) -> pathlib.Path:
        return self.path / "images"

    @property
    def tensorboard(self) -> pathlib.Path:
        return self.path / "logs"

    def state(self, step: str) -> pathlib.Path:
        """Where a step keeps what it needs to resume."""
        return self.path / "state" / step

    def history(self, step: str) -> pathlib.Path:
        return self.path / f"{step}.jsonl"

    # What it was made with.
    def read_record(self) -> dict[str, Any]:
        if not self.record.exists():
            return {"format": _FORMAT, "options": {}, "sections": {}, "commands": []}
        try:
            content = json.loads(self.record.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.record} cannot be read ({error}).") from error
        if content.get("format") != _FORMAT:
            raise UsageError(
                f"{self.record} was written by another version of udc-tf: take another --workdir."
            )
        return content

    def begin(self, step: str, sections: dict[str, Any], options: dict, command: str) -> None:
        """Notes that a step begins with this configuration, if none before it had another.

        Raises:
            UsageError: the folder belongs to another configuration.
        """
        record = self.read_record()
        sections = json.loads(json.dumps(sections))
        for name in STEPS[: STEPS.index(step) + 1]:
            recorded = record["sections"].get(name)
            if recorded is not None and recorded != sections[name]:
                difference = describe_difference(recorded, sections[name])
                raise UsageError(
                    f"--workdir={self.path} belongs to another configuration ({difference}): take "
                    "another --workdir, or the flags it was made with."
                )
        if record["sections"].get(step) is None:
            record["sections"][step] = sections[step]
        record["options"] = options
        if not record["commands"] or record["commands"][-1]["command"] != command:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            record["commands"].append({"command": command, "time": now})
        write_json(self.record, record)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second run out of the same folder."""
        with open(self.path / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"Another run is at work in {self.path}: wait for it.") from None
            yield

    def read_results(self) -> dict[str, Any]:
        return json.loads(self.results.read_text()) if self.results.exists() else {}

    def add_results(self, **results: Any) -> None:
        write_json(self.results, {**self.read_results(), **results})


def describe_difference(there: dict, here: dict) -> str:
    """The first few settings that differ.

    >>> describe_difference({"seed": 0, "flash": 8192}, {"seed": 1, "flash": 8192})
    'seed: 0 there, 1 here'
    """
    names = [n for n in sorted({*there, *here}) if there.get(n) != here.get(n)]
    parts = []
    for name in names[:3]:
        a, b = there.get(name), here.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            parts.append(f"in {name}, {describe_difference(a, b)}")
        else:
            parts.append(f"{name}: {a} there, {b} here")
    return ", ".join(parts) + (f", and {len(names) - 3} more" if len(names) > 3 else "")


def write_json(path: pathlib.Path, content: Any) -> None:
    with replaced_atomically(path) as partial:
        partial.write_text(json.dumps(content, indent=1, default=str) + "\n")
