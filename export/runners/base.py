"""The contract of all that can run a network: desktop, TFLM, the executor, simulators."""

from __future__ import annotations

import abc
import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from udc_tf.export.npu import container
from udc_tf.export.npu.faults import NpuError

ESTIMATE_NOTE = "NPU cycles are an estimate by Vela's cost model: nothing simulated the NPU's time"


class RunnerUnavailableError(RuntimeError):
    """A runner cannot work here; the message says what is missing and how to get it."""


class RunFailedError(RuntimeError):
    """A runner started and did not come to a result."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a run gave.

    Attributes:
        runner: the runner's name.
        outputs: one array per network output, first axis the batch.
        seconds: wall-clock time of the whole batch, loading excluded.
        cycles: NPU cycles of one inference, if the runner counts them.
        cycles_estimated: True if they come from a cost model and not from an NPU or its simulation.
        arena_bytes: working memory the network takes there, if known.
        notes: what a reader of the numbers should know.
    """

    runner: str
    outputs: list[np.ndarray]
    seconds: float
    cycles: int | None = None
    arena_bytes: int | None = None
    notes: tuple[str, ...] = ()
    cycles_estimated: bool = False


class Runner(abc.ABC):
    """Loads one network and runs batches of it.

    Subclasses say by `takes_compiled` whether they want Vela's output or its input, and by
    `families` which NPUs they have.
    """

    name: ClassVar[str]
    takes_compiled: ClassVar[bool]
    families: ClassVar[tuple[str, ...]] = ("ethos-u55",)

    @abc.abstractmethod
    def unavailable(self) -> str | None:
        """Why this runner cannot work on this machine; None if it can."""

    @abc.abstractmethod
    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads the network."""

    @abc.abstractmethod
    def run(self, inputs: Sequence[np.ndarray]) -> RunResult:
        """Runs a batch: one array per network input, first axis the batch."""

    def require(self) -> None:
        """Raises `RunnerUnavailableError` if the runner cannot work here."""
        reason = self.unavailable()
        if reason is not None:
            raise RunnerUnavailableError(f"{self.name!r} is not available because {reason}")

    def read(self, path: str | os.PathLike[str]) -> bytes:
        """The file's bytes, if it is of the kind this runner takes."""
        data = pathlib.Path(path).read_bytes()
        compiled = container.is_compiled(data)
        if compiled and not self.takes_compiled:
            raise ValueError(
                f"{self.name!r} runs the network before Vela. Received: {str(path)!r}, which holds "
                "an `ethos-u` operator; pass the .tflite it was compiled from"
            )
        if self.takes_compiled and not compiled:
            raise NpuError(
                f"{self.name!r} runs what Vela wrote. Received: {str(path)!r}, which has no "
                "`ethos-u` operator; compile it with `udc_tf.export.compile_with_vela`"
            )
        if compiled:
            self._require_family(data)
        return data

    def _require_family(self, data: bytes) -> None:
        try:
            accelerator = container.parse(data).accelerator
        except NpuError:
            return  # damage is told by whoever loads it
        if not accelerator.startswith(self.families):
            raise RunnerUnavailableError(
                f"{self.name!r} is not available because it runs networks for "
                f"{' and '.join(self.families)}. Received: one for {accelerator}"
            )


def as_list(inputs: np.ndarray | Sequence[np.ndarray]) -> list[np.ndarray]:
    """One array for a network with one input, or a list of arrays, as a list."""
    if isinstance(inputs, np.ndarray):
        return [inputs]
    return [np.asarray(array) for array in inputs]


def check_inputs(
    inputs: Sequence[np.ndarray], infos: Sequence[tuple[str, tuple[int, ...], np.dtype]]
) -> int:
    """The batch size of `inputs`, after comparing them with names, item shapes and types."""
    if len(inputs) != len(infos):
        raise ValueError(f"the network has {len(infos)} inputs. Received: {len(inputs)}")
    for array, (name, item, dtype) in zip(inputs, infos, strict=True):
        if array.dtype != dtype or array.shape[1:] != item or not len(array):
            raise ValueError(
                f"input {name!r} takes {np.dtype(dtype).name} of shape (batch, "
                f"{', '.join(map(str, item))}). Received: {array.dtype} of {array.shape}"
            )
    batches = {len(array) for array in inputs}
    if len(batches) != 1:
        raise ValueError(f"all inputs have the same batch. Received: {sorted(batches)}")
    return batches.pop()


def item_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A tensor's shape without its leading batch of one."""
    shape = tuple(int(n) for n in shape)
    return shape[1:] if shape[:1] == (1,) else shape
