"""Everything a killed run needs to go on as if nothing had happened, in one file.

Weights, all optimizers' variables, epochs and logs are written together, as one generation, under a
temporary name that is then renamed; the generation before stays. Whenever a process ends, by a
signal, a full disk or a loss of power, one of the two is whole.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from udc_tf.files import remove_partials, replaced_atomically
from udc_tf.training import workers

_PROGRESS, _CHECKSUM = "progress", "checksum"
_KEPT = 2  # generations


class StateError(OSError):
    """A state cannot be written, or none that is whole can be read."""


@dataclasses.dataclass(frozen=True)
class StateFolder:
    """Where a training keeps its state, for those to whom one folder does not say enough.

    Attributes:
        path: the folder.
        begin_from: the folder of another run, whose last state this one goes on from as long as it
            has none of its own. The two may differ in their targets.
        history: a file for the logs, one line of JSON per epoch, as they are in the state.
    """

    path: str | os.PathLike
    begin_from: str | os.PathLike | None = None
    history: str | os.PathLike | None = None


StatePlace = str | os.PathLike | StateFolder | None  # where a state is kept; None keeps none


@dataclasses.dataclass
class Progress:
    """How far a run is.

    Attributes:
        epochs: that are done.
        passes: how often the training data was iterated over, which is what decides the order in
            which a shuffled `tf.data.Dataset` gives its next pass.
        logs: of each epoch.
        stopped: a callback asked to train no more epochs.
        finished: nothing at all is left to do.
    """

    epochs: int = 0
    passes: int = 0
    logs: list[dict[str, float]] = dataclasses.field(default_factory=list)
    stopped: bool = False
    finished: bool = False


class TrainingState:
    """Saves variables and progress, and restores them. Of several workers, the chief saves.

    Args:
        folder: where; None keeps nothing.
        name: of the training, which the files have as well.
        variables: lists of variables, by a name for each. A run that resumes must have the same.
        plan: what identifies the run, as JSON can hold it; the state of another plan is refused.

    Example:

    >>> import tempfile
    >>> step = keras.Variable(3.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     TrainingState(folder, "search", {"network": [step]}).save()
    ...     _ = step.assign(0.0)
    ...     restored = TrainingState(folder, "search", {"network": [step]}).restore()
    >>> restored, float(step)
    (True, 3.0)
    """

    def __init__(
        self,
        folder: StatePlace,
        name: str,
        variables: Mapping[str, Sequence[keras.Variable]],
        plan: Mapping[str, Any] | None = None,
    ):
        if folder is not None and not isinstance(folder, StateFolder):
            folder = StateFolder(folder)
        self._folder, self._name = folder, name
        self._variables = {
            f"{group}/{i}": v for group, vs in variables.items() for i, v in enumerate(vs)
        }
        self._plan = json.loads(json.dumps(plan or {}))
        self._generation = 0
        self.progress = Progress()

    def save(self) -> None:
        """Writes the next generation, and then the history.

        Raises:
            StateError: it could not be written; the generation before is still there.
        """
        if self._folder is None or not workers.is_chief():
            return
        generation, content = self._generation + 1, self._content()
        with self._telling_briefly():
            with replaced_atomically(self._path / self._file(generation)) as partial:
                partial.write_bytes(content)
            self._generation = generation
            self._tidy()

    def restore(self) -> bool:
        """Takes up the newest state that is whole; False if there is none at all.

        Raises:
            StateError: there are states, and none of them is whole.
            ValueError: they are of another run.
        """
        if self._folder is None:
            return False
        generation, kept = self._newest(self._path)
        own = kept is not None
        if not own and self._folder.begin_from is not None:
            _, kept = self._newest(pathlib.Path(self._folder.begin_from))
        if kept is None:
            return False
        self._check(kept, () if own else ("targets",))
        for name, variable in self._variables.items():
            variable.assign(kept.arrays[name])
        self.progress, self._generation = kept.progress, generation
        if workers.is_chief():
            with self._telling_briefly():
                self._tidy()
        return True

    @property
    def _path(self) -> pathlib.Path:
        return pathlib.Path(self._where.path)

    @property
    def _where(self) -> StateFolder:
        if self._folder is None:
            raise ValueError(f"No state of the {self._name} is kept: it has no folder.")
        return self._folder

    @contextlib.contextmanager
    def _telling_briefly(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(
                f"The state of epoch {self.progress.epochs} cannot be written to {self._path} "
                f"({error.strerror or error}): make room for it and run the same again, which goes "
                "on from the last epoch that was."
            ) from error

    def _content(self) -> bytes:
        arrays: dict[str, Any] = {
            n: keras.ops.convert_to_numpy(v) for n, v in self._variables.items()
        }
        progress = json.dumps({**dataclasses.asdict(self.progress), "plan": self._plan})
        arrays[_PROGRESS] = np.array(progress.encode())  # numpy's own text takes four times as much
        memory = io.BytesIO()
        arrays[_CHECKSUM] = np.array(_digest(arrays))
        np.savez(memory, **arrays)
        return memory.getvalue()

    def _file(self, generation: int | str) -> str:
        return f"{self._name}_state.{generation}.npz"

    def _files(self, folder: pathlib.Path) -> dict[int, pathlib.Path]:
        """The generations in a folder, the newest first."""
        pattern = re.compile(re.escape(self._file("N")).replace("N", r"(\d{1,9})"))
        found = ((pattern.fullmatch(p.name), p) for p in folder.glob(self._file("*")))
        return dict(sorted(((int(m[1]), p) for m, p in found if m), reverse=True))

    def _newest(self, folder: pathlib.Path) -> "tuple[int, _Kept | None]":
        damaged = {}
        for generation, path in self._files(folder).items():
            try:
                kept = _read(path)
            except Exception as error:  # whatever is in the file
                damaged[path] = (str(error).splitlines() or [type(error).__name__])[0]
                continue
            if damaged:
                names = " and ".join(p.name for p in damaged)
                logging.warning("%s is damaged: going on from %s, an epoch before", names, path)
            return generation, kept
        if damaged:
            names = " and ".join(map(str, damaged))
            raise StateError(
                f"Every kept state of the {self._name} is damaged: remove {names} to begin it anew "
                f"({next(iter(damaged.values()))})."
            )
        return 0, None

    def _check(self, kept: "_Kept", may_differ: Sequence[str]) -> None:
        names = {*kept.plan, *self._plan} - {*may_differ}
        there: Any
        here: Any
        there, here = ({n: p.get(n) for n in sorted(names)} for p in (kept.plan, self._plan))
        shapes = {n: tuple(v.shape) for n, v in self._variables.items()}
        if there == here and shapes != {n: array.shape for n, array in kept.arrays.items()}:
            there, here = "other variables", f"{len(shapes)} variables"
        elif there == here:
            return
        else:
            different = [n for n in there if there[n] != here[n]]
            there, here = ({n: p[n] for n in different} for p in (there, here))
        raise ValueError(
            f"The state in {self._where.path} is that of another run: resume it with the same "
            f"network and settings, or remove the files {self._file('*')}. It was made with "
            f"{there}. Received: {here}"
        )

    def _tidy(self) -> None:
        """What follows from the generation that counts: which others stay, and the history."""
        for number, path in self._files(self._path).items():
            if number <= self._generation - _KEPT:
                path.unlink(missing_ok=True)
        remove_partials(self._path)
        history = self._where.history
        if history is None:
            return
        rows = [{"epoch": i, **logs} for i, logs in enumerate(self.progress.logs)]
        with replaced_atomically(pathlib.Path(history)) as partial:
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows))


class KeepState(keras.callbacks.Callback):
    """Saves a state at the end of every epoch: last of the callbacks, so that all logs are there.

    Args:
        state: to save.
        passes: tells how often the training data was iterated over.
    """

    def __init__(self, state: TrainingState, passes: Callable[[], int] = lambda: 0):
        super().__init__()
        self._state, self._passes = state, passes

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        progress = self._state.progress
        progress.epochs = epoch + 1
        progress.passes = self._passes()
        progress.logs.append({k: float(v) for k, v in (logs or {}).items()})
        progress.stopped = bool(self.model.stop_training)
        self._state.save()


def state_of(model: keras.Model) -> list[keras.Variable]:
    """Weights and the state of random layers, without metrics."""
    metrics = {id(v) for v in model.metrics_variables}
    return [v for v in model.variables if id(v) not in metrics]


def history_of(model: keras.Model, logs: Sequence[Mapping[str, float]]) -> keras.callbacks.History:
    """What `fit` returns, from the logs of all epochs."""
    history = keras.callbacks.History()
    history.set_model(model)
    history.on_train_begin()
    for epoch, entry in enumerate(logs):
        history.on_epoch_end(epoch, dict(entry))
    return history


@dataclasses.dataclass(frozen=True)
class _Kept:
    """What a file holds."""

    arrays: dict[str, np.ndarray]
    progress: Progress
    plan: dict[str, Any]


def _read(path: pathlib.Path) -> _Kept:
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    if str(arrays.pop(_CHECKSUM)) != _digest(arrays):
        raise ValueError("its checksum is another")
    progress = json.loads(arrays.pop(_PROGRESS).item())
    return _Kept(arrays, plan=dict(progress.pop("plan")), progress=Progress(**progress))


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}\n{array.dtype.str}\n{arrays[name].shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
