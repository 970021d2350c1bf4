"""`tflite`: TensorFlow Lite on the desktop. Close to the device, but not bit for bit."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence

import numpy as np

from udc_tf.export.runners.base import Runner, RunResult, check_inputs, item_shape


class TfliteRunner(Runner):
    """Runs an uncompiled .tflite with TensorFlow Lite's built-in kernels, without delegates.

    Its fully connected and XNNPACK kernels round once where TFLM and the NPU round twice, so an
    output may differ from theirs by one step.
    """

    name = "tflite"
    takes_compiled = False

    def unavailable(self) -> str | None:
        try:
            import tensorflow  # noqa: F401
        except ImportError as error:
            return f"TensorFlow does not import: {error}"
        return None

    def load(self, path: str | os.PathLike[str]) -> None:
        self.require()
        from tensorflow import lite

        with warnings.catch_warnings():
            # It announces a successor in another package; this one is what TensorFlow ships.
            warnings.simplefilter("ignore", UserWarning)
            self._interpreter = lite.Interpreter(
                model_content=self.read(path),
                num_threads=1,
                experimental_op_resolver_type=(
                    lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
                ),
            )
        self._interpreter.allocate_tensors()

    def run(self, inputs: Sequence[np.ndarray]) -> RunResult:
        details = self._interpreter.get_input_details()
        results = self._interpreter.get_output_details()
        infos = [(d["name"], item_shape(d["shape"]), np.dtype(d["dtype"])) for d in details]
        batch = check_inputs(inputs, infos)
        outputs: list[list[np.ndarray]] = [[] for _ in results]
        start = time.perf_counter()
        for i in range(batch):
            for detail, array in zip(details, inputs, strict=True):
                self._interpreter.set_tensor(detail["index"], array[i].reshape(detail["shape"]))
            self._interpreter.invoke()
            for column, detail in zip(outputs, results, strict=True):
                value = self._interpreter.get_tensor(detail["index"])
                column.append(value.reshape(item_shape(detail["shape"])))
        seconds = time.perf_counter() - start
        notes = ("desktop kernels may differ from the device by one step",)
        return RunResult(self.name, [np.stack(c) for c in outputs], seconds, notes=notes)
