"""What was measured: one row a run, in one file that several processes may write to."""

import dataclasses
import fcntl
import hashlib
import json
import pathlib
from typing import IO, Any

from udc_tf.files import replaced_atomically

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """One row of the table to be.

    Attributes:
        method: whose network it is.
        setting: which of the method's settings; methods that choose do it by validation.
        budget: bytes of compiled flash; None for a network that needs not fit.
        epochs: of all training together, the search's included.
    """

    data: str
    method: str
    setting: str
    budget: int | None
    seed: int
    epochs: int
    images: int

    @property
    def key(self) -> str:
        size = "any size" if self.budget is None else f"{self.budget} bytes"
        length = f"{self.epochs} epochs of {self.images}"
        return f"{self.data}, {size}: {self.method}, {self.setting}, seed {self.seed}, {length}"

    @property
    def lane(self) -> str:
        """What must not run twice at a time: random trials come one after the other."""
        return f"{self.data} {self.budget} random" if self.method == "random" else self.key


class Rows:
    """The rows of one file. Every change is made under a lock, on what the file then holds."""

    def __init__(self, path: pathlib.Path, locks: pathlib.Path):
        self.path, self._locks = path, locks

    def read(self) -> dict[str, Row]:
        return json.loads(self.path.read_text()) if self.path.is_file() else {}

    def add(self, run: Run, row: Row) -> None:
        with self._lock_file("rows") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            rows = {**self.read(), run.key: {**dataclasses.asdict(run), **row}}
            with replaced_atomically(self.path) as partial:
                partial.write_text(json.dumps(rows, indent=1) + "\n")

    def claim(self, run: Run) -> IO | None:
        """Something to close when the run is done; None if another process is at it.

        The claim is a lock of the system, so it ends with its process, however that ends.
        """
        file = self._lock_file(run.lane)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def _lock_file(self, name: str) -> IO:
        self._locks.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha1(f"{self.path.resolve()} {name}".encode()).hexdigest()
        return open(self._locks / f"{digest}.lock", "w")
