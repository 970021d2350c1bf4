"""`tflm`: TFLite Micro, the code that runs on the device's CPU. The golden reference."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from udc_tf.export.npu import container
from udc_tf.export.npu.container import CpuOperator
from udc_tf.export.npu.tensor_trace import ReferenceTensor
from udc_tf.export.runners.base import Runner, RunResult, check_inputs, item_shape

_ARENA_TOTAL = re.compile(rb"Arena allocation total (\d+) bytes")


class TflmRunner(Runner):
    """Runs an uncompiled .tflite with TFLite Micro."""

    name = "tflm"
    takes_compiled = False

    def unavailable(self) -> str | None:
        try:
            _runtime()
        except ImportError as error:
            return f"tflite-micro does not import: {error} (pip install --pre tflite-micro)"
        return None

    def load(self, path: str | os.PathLike[str]) -> None:
        self.require()
        self._data = self.read(path)
        self._graph = container.parse_uncompiled(self._data)
        self._interpreter = self._new_interpreter(preserve=False)

    def run(self, inputs: Sequence[np.ndarray]) -> RunResult:
        graph = self._graph
        infos = [graph.tensors[i] for i in graph.inputs]
        batch = check_inputs(inputs, [(t.name, item_shape(t.shape), t.dtype) for t in infos])
        outputs: list[list[np.ndarray]] = [[] for _ in graph.outputs]
        start = time.perf_counter()
        for i in range(batch):
            self._invoke(self._interpreter, inputs, i)
            for number, column in enumerate(outputs):
                value = self._interpreter.get_output(number).copy()
                column.append(value.reshape(item_shape(graph.tensors[graph.outputs[number]].shape)))
        seconds = time.perf_counter() - start
        return RunResult(
            self.name,
            [np.stack(column) for column in outputs],
            seconds,
            arena_bytes=self._arena_bytes(),
        )

    def tensors(self, inputs: Sequence[np.ndarray]) -> list[ReferenceTensor]:
        """Every tensor that an operator makes of the first input of the batch, in order."""
        interpreter = self._new_interpreter(preserve=True)
        self._invoke(interpreter, inputs, 0)
        found = []
        for operator in self._graph.operators:
            kind = operator.name if isinstance(operator, CpuOperator) else "ethos-u"
            for index in operator.outputs:
                value = np.array(interpreter.GetTensor(index, 0)["tensor_data"])
                value = value.reshape(self._graph.tensors[index].shape)
                label = f"operator {operator.index} {kind}"
                found.append(ReferenceTensor(label, value))
        return found

    def _invoke(self, interpreter: Any, inputs: Sequence[np.ndarray], item: int) -> None:
        for number, array in enumerate(inputs):
            info = self._graph.tensors[self._graph.inputs[number]]
            interpreter.set_input(np.ascontiguousarray(array[item]).reshape(info.shape), number)
        interpreter.invoke()

    def _new_interpreter(self, preserve: bool) -> Any:
        runtime = _runtime()
        config = runtime.InterpreterConfig
        # Room for every tensor at once and for what the operators keep beside them.
        tensors = sum(t.nbytes for t in self._graph.tensors if t.data is None)
        return runtime.Interpreter.from_bytes(
            self._data,
            arena_size=3 * tensors + len(self._data) + (1 << 20),
            intrepreter_config=(
                config.kPreserveAllTensors if preserve else config.kAllocationRecording
            ),
        )

    def _arena_bytes(self) -> int | None:
        with _captured_stderr() as text:
            self._interpreter.print_allocations()
        found = _ARENA_TOTAL.search(bytes(text))
        return int(found.group(1)) if found else None


def _runtime() -> Any:
    from tflite_micro import runtime

    return runtime


@contextlib.contextmanager
def _captured_stderr() -> Iterator[bytearray]:
    """Collects what compiled code prints to stderr: TFLM reports its arena there only."""
    sys.stderr.flush()
    collected = bytearray()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield collected
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            collected += file.read()
