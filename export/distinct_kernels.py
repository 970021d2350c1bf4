"""Kernels of equal integers are given scales that differ, for Vela's sake.

Vela 5.2 codes weights, biases and scales of an operator together, and takes what it has coded
before where weights and scales are the same. It does not look at the biases: of two operators with
equal weights and equal multipliers, the second gets the biases of the first. `x * 2 + 1` is enough,
if its two ranges are alike. A scale one step of float32 away, a ten-millionth, keeps them apart.
Where they differ anyway they stay: a finetuned network rounds as its own scales say.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from udc_tf.export.integer_network import Quantization, Step

_CLOSE = 2.0**-22  # relative; a step of float32 is at most half of it


def keep_apart(steps: Sequence[Step], quantizations: Sequence[Quantization]) -> None:
    """Moves scales of kernels that have the integers and the scales of another layer's kernel.

    Dense layers stay: their scales are settled (`dense_scale`), and Vela codes them apart.
    """
    # By integers and layer: its scales, and the multipliers of its calls.
    found: dict[tuple, dict[str, list[np.ndarray]]] = {}
    convolutions = [step for step in steps if step.kind != "FULLY_CONNECTED"]
    for step in convolutions:
        scales = np.asarray(step.weights.scales, np.float32).astype(np.float64)
        source, target = (float(quantizations[i].scale) for i in (step.inputs[0], step.output))
        of_layer = found.setdefault(_integers(step), {}).setdefault(step.weights.layer, [scales])
        of_layer.append(scales * source / target)
    for step in convolutions:
        layers, own = found[_integers(step)], step.weights.layer
        before = list(layers)[: list(layers).index(own)]
        alike = sum(_clash(layers[layer], layers[own]) for layer in before)
        if alike:
            scales = np.asarray(step.weights.scales, np.float32)
            moved = (scales + alike * np.spacing(scales)).astype(np.float64)
            step.kernel = dataclasses.replace(step.weights, scales=moved)


def _integers(step: Step) -> tuple:
    return step.weights.codes.shape, step.weights.codes.tobytes()


def _clash(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    """Whether two layers have the same scales, or the same multipliers in some calls."""
    pairs = [(ours[0], theirs[0]), *itertools.product(ours[1:], theirs[1:])]
    return any((np.abs(a - b) <= _CLOSE * np.abs(b)).all() for a, b in pairs if a.shape == b.shape)
