"""Runs the compiled command stream before anybody flashes it, where the executor knows the NPU.

What was run and what was not goes into the manifest. Values that differ from TFLM's are counted and
said, and beyond what is allowed they are an error. A stream that cannot be run here is no reason
to refuse it: TFLM has shown that the file Vela compiled computes what the Keras model does.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from udc_tf.export.errors import MismatchError
from udc_tf.export.npu import NpuError, NpuNetwork

_SAMPLES = 2  # the executor is no faster than it must be


def execute(
    compiled: bytes,
    inputs: Sequence[np.ndarray],
    golden: Sequence[np.ndarray],
    allowed_steps: Sequence[float],
) -> dict[str, Any]:
    """The manifest's `executed`.

    Args:
        compiled: what Vela wrote.
        inputs: int8, first axis the batch.
        golden: what TFLM made of them with the file before Vela.
        allowed_steps: for each output, how far it may be from the golden on average (as a root mean
            square, in steps).

    Raises:
        MismatchError: the stream ran, and computed something else.
    """
    samples = min(_SAMPLES, len(inputs[0]))
    found: dict[str, Any] = {"tflite": {"on": "tflm", "samples": len(inputs[0])}}
    try:
        outputs = NpuNetwork(compiled).run([x[:samples] for x in inputs])
    except NpuError as error:
        found["compiled"] = {"on": None, "why_not": " ".join(str(error).split())}
        return found
    differing = 0
    for number, (got, all_of_it) in enumerate(zip(outputs, golden, strict=True)):
        want = all_of_it[:samples].astype(int)
        steps = got.reshape(want.shape).astype(int) - want
        apart = float(np.sqrt(np.mean(np.square(steps))))
        if apart > max(allowed_steps[number], 1.0):
            raise MismatchError(
                f"The compiled command stream does not compute what the network before Vela does: "
                f"output {number} is {apart:.1f} steps apart, {allowed_steps[number]:.1f} are "
                "allowed. Nothing was written."
            )
        differing += int(np.count_nonzero(steps))
    if differing:
        logging.warning(
            "The compiled command stream has %d output values otherwise than TFLM has them with "
            "the file before Vela, within what is allowed; `udc-run --on=npu --trace` says from "
            "which operation on. The golden outputs are TFLM's: expect a device to differ there.",
            differing,
        )
    found["compiled"] = {"on": "npu", "samples": samples, "values_unlike_tflm": differing}
    return found
