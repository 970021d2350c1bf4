"""TensorFlow Lite Micro on bytes in memory: the golden reference for what was just written."""

import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from udc_tf.export.errors import ExportError
from udc_tf.export.runners.base import RunnerUnavailableError
from udc_tf.export.runners.tflm import TflmRunner


def run(content: bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """int8 outputs of a .tflite for int8 inputs, first axis the batch.

    Raises:
        ExportError: TFLM is not there or cannot run the model; with its own words.
    """
    return _with_runner(content, lambda runner: runner.run(list(inputs)).outputs)


def load(content: bytes) -> None:
    """Has TFLM prepare all operators of a .tflite.

    Raises:
        ExportError: TFLM is not there or cannot run the model; with its own words.
    """
    _with_runner(content, lambda runner: None)


def tensors(content: bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What each operator of a .tflite makes of the first of some int8 inputs, in order."""
    found = _with_runner(content, lambda runner: runner.tensors(list(inputs)))
    return [tensor.value for tensor in found]


def _with_runner(content: bytes, use: Callable[[TflmRunner], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        path.write_bytes(content)
        try:
            runner = TflmRunner()
            runner.load(path)
            return use(runner)
        except (RuntimeError, RunnerUnavailableError) as error:
            raise ExportError(f"TFLM does not run the model: {error}") from error
