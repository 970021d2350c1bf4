"""Everything a killed run needs to go on as if nothing had happened, in one file."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from udc_tf.training import workers


@dataclasses.dataclass
class Progress:
    """How far a run is.

    Attributes:
        epochs: that are done.
        passes: how often the training data was iterated over, which is what decides the order in
            which a shuffled `tf.data.Dataset` gives its next pass.
        logs: of each epoch.
    """

    epochs: int = 0
    passes: int = 0
    logs: list[dict[str, float]] = dataclasses.field(default_factory=list)
    finished: bool = False


class TrainingState:
    """Saves variables and progress, and restores them. Of several workers, the chief saves.

    Args:
        path: of the file; None keeps nothing.
        variables: lists of variables, by a name for each. A run that resumes must have the same.
        plan: what identifies the run, as text; a file of another plan is refused.
    """

    def __init__(
        self,
        path: str | os.PathLike | None,
        variables: Mapping[str, Sequence[keras.Variable]],
        plan: str = "",
    ):
        self._path = None if path is None else pathlib.Path(path)
        self._variables, self._plan = variables, plan
        self.progress = Progress()

    def save(self) -> None:
        if self._path is None or not workers.is_chief():
            return
        arrays = {
            f"{group}/{i}": keras.ops.convert_to_numpy(v)
            for group, variables in self._variables.items()
            for i, v in enumerate(variables)
        }
        text = json.dumps({**dataclasses.asdict(self.progress), "plan": self._plan})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A kill while writing must leave the file of the epoch before.
        partial = self._path.with_suffix(".partial.npz")
        np.savez(partial, progress=np.array(text), **arrays)
        os.replace(partial, self._path)

    def restore(self) -> bool:
        """Whether there was something to restore."""
        if self._path is None or not self._path.exists():
            return False
        with np.load(self._path) as stored:
            progress = json.loads(str(stored["progress"]))
            plan = progress.pop("plan")
            if plan != self._plan:
                raise ValueError(
                    f"{self._path} is the state of another run: resume it with the same network and"
                    f" stages, or remove the file. It was made with {plan}. Received: {self._plan}"
                )
            for group, variables in self._variables.items():
                for i, variable in enumerate(variables):
                    variable.assign(stored[f"{group}/{i}"])
        self.progress = Progress(**progress)
        return True
