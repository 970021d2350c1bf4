"""Biases in whole units of the accumulators, and what that rounding does repaired downstream.

TFLite counts a bias in units of input scale times weight scale. With few-bit weights that unit is
coarse (for +-1 weights it can be half an output step), and rounding shifts a channel everywhere by
the same amount. TFLM and the NPU also scale an accumulator in two roundings, which for coarse units
leans away from zero. Neither averages out over positions. Where data are at hand, each layer's bias
therefore takes up the mean error that the layers before it left, and only the last one remains.
A finetuned network has whole biases and rounds twice itself; there is nothing to repair. A kernel
that is called several times keeps its bias: Vela 5.2 would take the first call's for all of them.
"""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from udc_tf.export import simulation
from udc_tf.export.integer_network import (
    IntegerNetwork,
    Kernel,
    Quantization,
    Step,
    bias_scales,
)

_SAMPLES = 64
_INT32 = np.iinfo(np.int32)


def round_biases(
    network: IntegerNetwork,
    quantizations: Sequence[Quantization],
    samples: Sequence[np.ndarray] | None,
) -> None:
    """Sets `bias_codes` of every kernel; without samples to the nearest integers."""
    if samples is None:
        for step in network.kernels:
            step.kernel = _rounded(step, step.weights.bias, quantizations)
        return
    exact: dict[int, tf.Tensor] = {}  # biases as trained
    rounded: dict[int, tf.Tensor] = {}  # biases as written
    for index, array in zip(network.inputs, samples, strict=True):
        values = tf.constant(array[:_SAMPLES], tf.float32)
        exact[index] = rounded[index] = simulation.fake_quantize(values, quantizations[index])
    calls = collections.Counter(step.weights.layer for step in network.kernels)
    for step in network.steps:
        here = simulation.apply(network, step, exact)
        there = simulation.apply(network, step, rounded)
        twice = network.values[step.output].rounds_twice
        if step.kernel is not None:
            error = 0.0
            if not twice and calls[step.kernel.layer] == 1:
                axes = tuple(range(here.shape.rank - 1))
                error = tf.reduce_mean(there - here, axis=axes).numpy().astype(np.float64)
            step.kernel = _rounded(step, step.kernel.bias - error, quantizations)
            shift = written_bias(step, quantizations) - step.kernel.bias
            there = there + shift.astype(np.float32)
        if twice:
            here = simulation.scaled_twice(network, step, here, quantizations)
        there = simulation.scaled_twice(network, step, there, quantizations)
        finish = quantizations[step.output]
        exact[step.output] = simulation.finish(step, here, finish)
        rounded[step.output] = simulation.finish(step, there, finish)


def written_bias(step: Step, quantizations: Sequence[Quantization]) -> np.ndarray:
    """The bias that the file holds, as real numbers."""
    codes = step.weights.written_bias
    return codes * bias_scales(step, quantizations).astype(np.float64)


def _rounded(step: Step, bias: np.ndarray, quantizations: Sequence[Quantization]) -> Kernel:
    codes = np.round(bias / bias_scales(step, quantizations).astype(np.float64))
    codes = np.clip(codes, _INT32.min, _INT32.max).astype(np.int32)
    return dataclasses.replace(step.weights, bias_codes=codes)
