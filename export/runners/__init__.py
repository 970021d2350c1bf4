"""Ways to run a network before a board exists, behind one call.

`tflite` and `tflm` take the .tflite before Vela; `npu`, `qemu`, `arm` and `fvp` take Vela's output.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from udc_tf.export.runners.base import (
    RunFailedError,
    Runner,
    RunnerUnavailableError,
    RunResult,
    as_list,
)

__all__ = [
    "RUNNERS",
    "RunFailedError",
    "RunResult",
    "Runner",
    "RunnerUnavailableError",
    "make_runner",
    "run",
]

# Name -> module and class: imported on use, since one of them brings all of TensorFlow.
RUNNERS = {
    "tflite": ("desktop", "TfliteRunner"),
    "tflm": ("tflm", "TflmRunner"),
    "npu": ("executor", "NpuRunner"),
    "qemu": ("qemu", "QemuRunner"),
    "arm": ("arm", "ArmRunner"),
    "fvp": ("fvp", "FvpRunner"),
}


def make_runner(name: str, **options: Any) -> Runner:
    """A runner by name.

    Example:
        >>> make_runner("npu").unavailable() is None
        True
    """
    if name not in RUNNERS:
        raise ValueError(f"`on` should be one of {', '.join(RUNNERS)}. Received: {name!r}")
    module, kind = RUNNERS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)(**options)


def run(
    path: str | os.PathLike[str],
    inputs: np.ndarray | Sequence[np.ndarray],
    on: str = "npu",
    **options: Any,
) -> RunResult:
    """Runs a network on a batch of inputs.

    Args:
        path: for `tflite` and `tflm` the .tflite, for the others what Vela made of it.
        inputs: an array whose first axis is the batch, of the network's own element type; a list
            of arrays for a network with several inputs.
        on: "tflite" (desktop), "tflm" (TFLite Micro, the reference), "npu" (executes the Vela
            command stream; equal to TFLM but for rare roundings, see `udc_tf.export.npu`), "qemu"
            (our firmware on an emulated Cortex-M55, the executor as its NPU), "arm" (Arm's own
            inference runner in its place: TFLM, driver, application) or "fvp" (the same on Arm's
            model of Corstone-300, if installed).
        **options: of the runner, such as `fvp="/path/to/FVP_Corstone_SSE-300_Ethos-U55"`.

    Returns:
        Outputs, cycles and arena bytes where the runner knows them, and time.

    Raises:
        RunnerUnavailableError: the runner needs something this machine does not have.
        NpuError: the compiled file is damaged or asks for what an Ethos-U55 cannot do.

    Example:
        >>> result = udc_tf.export.run("model_vela.tflite", images, on="npu")  # doctest: +SKIP
        >>> result.outputs[0].shape                                           # doctest: +SKIP
        (16, 10)
    """
    runner = make_runner(on, **options)
    runner.require()
    runner.load(path)
    return runner.run(as_list(inputs))
