"""Operator by operator: whether TFLM computes of a file what each of its operators stands for.

Each operator is judged by the inputs that it had in TFLM itself, so that nothing has accumulated.
In a deep network a rounding that goes the other way early moves the outputs by many steps, and so
do kernels of TFLM that round more than once, as HARD_SWISH does; neither is a fault. Nor is a bias
that was moved to repair what the layers before it did (`bias_rounding`): the written one counts.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from udc_tf.export import simulation, tflm_check
from udc_tf.export.bias_rounding import written_bias
from udc_tf.export.int8 import Int8Model
from udc_tf.export.integer_network import Quantization, Step

STEPS = 1.0  # root mean square that rounding may be apart; HARD_SWISH comes to 0.7


@dataclasses.dataclass(frozen=True)
class OperatorFault:
    """An operator that computes something else, and how far from it, in steps of its output."""

    name: str
    steps: float


def first_fault(exact: Int8Model, inputs: Sequence[np.ndarray]) -> OperatorFault | None:
    """The first operator that is not what it stands for; None if all are.

    Args:
        exact: the file.
        inputs: real values; the first of the batch is taken.

    Example:

    >>> import keras
    >>> from udc_tf.export.int8 import to_int8
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    >>> data = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    >>> first_fault(to_int8(model, data), [data]) is None
    True
    """
    network, quantizations = exact.network, exact.quantizations
    codes = [array[:1] for array in exact.quantize_inputs(inputs)]
    held = {
        index: _real(exact, index, array)
        for index, array in zip(network.inputs, codes, strict=True)
    }
    written = [_as_written(step, quantizations) for step in network.steps]
    for step, found in zip(written, tflm_check.tensors(exact.content, codes), strict=True):
        quantization = quantizations[step.output]
        result = simulation.apply(network, step, held)
        if network.values[step.output].rounds_twice:
            result = simulation.scaled_twice(network, step, result, quantizations)
        expected = quantization.quantize(simulation.finish(step, result, quantization).numpy())
        difference = found.reshape(expected.shape).astype(float) - expected
        steps = float(np.sqrt(np.mean(np.square(difference))))
        if steps > STEPS:
            return OperatorFault(step.name, steps)
        held[step.output] = _real(exact, step.output, found.reshape(expected.shape))
    return None


def _as_written(step: Step, quantizations: Sequence[Quantization]) -> Step:
    if step.kernel is None:
        return step
    kernel = dataclasses.replace(step.kernel, bias=written_bias(step, quantizations))
    return dataclasses.replace(step, kernel=kernel)


def _real(exact: Int8Model, index: int, codes: np.ndarray) -> tf.Tensor:
    return tf.constant(exact.quantizations[index].dequantize(codes), tf.float32)
