"""Kernels of equal integers are given scales that differ, for Vela's sake.

Vela 5.2 codes weights, biases and scales of an operator together, and takes what it has coded
before where weights and scales are the same. It does not look at the biases: of two operators with
equal weights and equal multipliers, the second gets the biases of the first. `x * 2 + 1` is enough,
if its two ranges are alike. A scale one step of float32 away, a ten-millionth, keeps them apart.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from udc_tf.export.integer_network import Step


def keep_apart(steps: Sequence[Step]) -> None:
    """Moves the scales of kernels that have the integers of another layer's kernel.

    Dense layers stay: their scales are settled (`dense_scale`), and Vela codes them apart.
    """
    seen: dict[tuple, list[str]] = {}
    for step in steps:
        if step.kind == "FULLY_CONNECTED":
            continue
        kernel = step.weights
        codes = kernel.codes
        layers = seen.setdefault((codes.shape, codes.tobytes()), [])
        if kernel.layer not in layers:
            layers.append(kernel.layer)
        nth = layers.index(kernel.layer)
        if nth:
            scales = np.asarray(kernel.scales, np.float32)
            moved = (scales + nth * np.spacing(scales)).astype(np.float64)
            step.kernel = dataclasses.replace(kernel, scales=moved)
