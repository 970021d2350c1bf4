"""TensorFlow Lite Micro, the runtime of the firmware, run on the host: the golden reference."""

import contextlib
import os
import tempfile
from collections.abc import Sequence

import numpy as np

from udc_tf.export import tflite_file
from udc_tf.export.errors import ExportError

_LARGEST_ARENA = 1 << 28


def run(content: bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """int8 outputs of a .tflite for int8 inputs, first axis the batch.

    Raises:
        ExportError: TFLM cannot run the model; with its own words.
    """
    from tflite_micro import runtime

    file = tflite_file.read(content)
    arena = 1 << 20
    while True:
        try:
            with _captured_stderr() as said:
                interpreter = runtime.Interpreter.from_bytes(content, arena_size=arena)
            break
        except RuntimeError as error:
            arena *= 4
            if arena > _LARGEST_ARENA:
                raise ExportError(f"TFLM does not run the model: {error}. {said()}") from error
    collected: list[list[np.ndarray]] = [[] for _ in file.outputs]
    for sample in zip(*inputs, strict=True):
        for index, array in enumerate(sample):
            interpreter.set_input(np.ascontiguousarray(array[None]), index)
        interpreter.invoke()
        for index, rows in enumerate(collected):
            rows.append(interpreter.get_output(index).copy())
    return [np.concatenate(rows) for rows in collected]


@contextlib.contextmanager
def _captured_stderr():
    """TFLM says why it failed on the process's standard error: keeps it for the message."""
    saved = os.dup(2)
    text = ""

    def said() -> str:
        return text

    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            sink.seek(0)
            text = sink.read().decode("utf-8", "replace").strip()
