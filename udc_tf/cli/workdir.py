"""The work directory: what each step leaves for the next, and what it was made with."""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from udc_tf.cli.usage import UsageError
from udc_tf.files import (
    DamagedFileError,
    is_partial,
    read_json,
    refuse_links_out_of,
    remove_partials,
    replaced_atomically,
)
from udc_tf.report import readers

STEPS = ("search", "finetune", "export")
_ALL_STEPS = ("teacher", *STEPS)  # a teacher may be trained in the folder of the run, or alone
_FORMAT = 1
_LOCK = ".lock"
_LOST_RECORD = "restore it, or take another --workdir"


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
    def at(cls, path: str) -> "WorkDir":
        """The folder as it is, if it is one that can be worked in; nothing is made.

        Raises:
            UsageError: it is a file, holds other things than a run, or links lead out of it.
        """
        folder = pathlib.Path(path)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--workdir={path} is a file; a folder is needed.")
        if not folder.is_dir():
            return cls(folder)
        try:
            refuse_links_out_of(folder)
        except ValueError as error:
            raise UsageError(str(error)) from error
        # A run that found no room for its record leaves a lock, and halves of files.
        others = (p for p in folder.iterdir() if p.name != _LOCK and not is_partial(p))
        if any(others) and not (folder / "run.json").exists():
            raise UsageError(
                f"--workdir={path} holds other files and no run: take a new or an empty folder."
            )
        return cls(folder)

    @classmethod
    def open(cls, path: str) -> "WorkDir":
        """As `at`, and the folder is made if there is none."""
        work = cls.at(path)
        try:
            work.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--workdir={path} cannot be made: {error.strerror}.") from error
        return work

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
    def teacher(self) -> pathlib.Path:
        return self.path / "teacher.keras"

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
        content = read_json(self.record, _LOST_RECORD)
        if content.get("format") != _FORMAT:
            raise UsageError(
                f"{self.record} was written by another version of udc-tf: take another --workdir."
            )
        sections, commands = content.get("sections"), content.get("commands")
        if not (
            isinstance(content.get("options"), dict)
            and isinstance(sections, dict)
            and all(isinstance(section, dict) for section in sections.values())
            and isinstance(commands, list)
            and all(isinstance(c, dict) and isinstance(c.get("command"), str) for c in commands)
        ):
            reason = "no options, sections and commands of a run"
            raise DamagedFileError(self.record, reason, _LOST_RECORD)
        return content

    def has_begun(self, step: str) -> bool:
        """Whether a step has left anything here, or in the folder of one of several budgets."""
        left = {
            "teacher": (self.teacher, self.history(step)),
            "search": (self.architecture, self.size_model, self.history(step)),
            "finetune": (self.network, self.history(step)),
            "export": (self.artefacts / "manifest.json",),
        }[step]
        state = self.state(step)
        if any(path.exists() for path in left) or (state.is_dir() and any(state.iterdir())):
            return True
        return any(part.has_begun(step) for part in self._parts())

    def _parts(self) -> "list[WorkDir]":
        if not self.path.is_dir():
            return []
        return [WorkDir(p) for p in self.path.iterdir() if (p / "run.json").is_file()]

    def check_files(self) -> None:
        """Raises if a file that a later step or the report reads is damaged."""
        readers.check(self.path)

    def check(self, sections: dict[str, Any]) -> None:
        """Raises if a step that has left something here had another configuration.

        Raises:
            UsageError: the folder belongs to another configuration.
        """
        recorded, sections = self.read_record()["sections"], json.loads(json.dumps(sections))
        for name in sections:
            there = recorded.get(name)
            if there is not None and there != sections[name] and self.has_begun(name):
                difference = describe_difference(there, sections[name])
                raise UsageError(
                    f"--workdir={self.path} belongs to another configuration ({difference}): take "
                    "another --workdir, or the flags it was made with."
                )

    def begin(self, step: str, sections: dict[str, Any], options: dict, command: str) -> None:
        """Notes that a step begins with this configuration, if none before it had another.

        Raises:
            UsageError: the folder belongs to another configuration.
        """
        self.check(sections)
        record = self.read_record()
        record["sections"][step] = sections[step]
        record["options"] = options
        if not record["commands"] or record["commands"][-1]["command"] != command:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            record["commands"].append({"command": command, "time": now})
        write_json(self.record, record)

    @contextlib.contextmanager
    def unless_refused(self) -> Iterator[None]:
        """Takes back what was noted inside if it fails before any step has left something."""
        before = self.record.read_bytes() if self.record.exists() else None
        begun = [self.has_begun(step) for step in _ALL_STEPS]
        try:
            yield
        except Exception:
            if [self.has_begun(step) for step in _ALL_STEPS] == begun:
                self._take_back(before)
            raise

    def _take_back(self, record: bytes | None) -> None:
        if record is not None:
            with replaced_atomically(self.record) as partial:
                partial.write_bytes(record)
            return
        self.record.unlink(missing_ok=True)
        (self.path / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # someone else has put something there
            self.path.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second run out of the same folder."""
        try:
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UsageError(f"{self.path / _LOCK} is a link: remove it.") from error
            raise
        with os.fdopen(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"Another run is at work in {self.path}: wait for it.") from None
            yield

    def remove_partials(self) -> None:
        """Removes the halves of files that a killed run left; for the one that has the lock."""
        for folder in (self.path, self.artefacts, self.images, *map(self.state, _ALL_STEPS)):
            remove_partials(folder)

    def read_results(self) -> dict[str, Any]:
        return readers.read_results(self.results)

    def forget_results(self, *names: str) -> None:
        """What these results were of is there no longer."""
        kept = {n: v for n, v in self.read_results().items() if n not in names}
        write_json(self.results, kept)

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
