"""What TFLM does not do in one operator is written as several, all of one scale.

- It joins ten tensors at most: more become concatenations of concatenations.
- Its transposed convolution has no ReLU of its own. Mostly the range of the output is one, which
  begins at zero; where it goes on below, as where tensors are joined, the ReLU is on its own.
"""

import dataclasses
from collections.abc import Sequence

from udc_tf.export.integer_network import IntegerNetwork, Quantization, Step, Value

_MOST_JOINED = 10
_ENDS = {"RELU": (0.0, float("inf")), "RELU6": (0.0, 6.0)}


def split(
    network: IntegerNetwork, quantizations: Sequence[Quantization]
) -> tuple[IntegerNetwork, list[Quantization]]:
    """The same network in operators that TFLM has, and the quantizations of its values."""
    values, scales = list(network.values), list(quantizations)
    steps: list[Step] = []

    def between(like: int, name: str, shape: Sequence[int]) -> int:
        """A new value of the scale of another."""
        values.append(Value(name, tuple(shape), follows=like))
        scales.append(scales[like])
        return len(values) - 1

    for step in network.steps:
        output = values[step.output]
        while step.kind == "CONCATENATION" and len(step.inputs) > _MOST_JOINED:
            axis, joined = step.options["axis"], []
            for first in range(0, len(step.inputs), _MOST_JOINED):
                part = step.inputs[first : first + _MOST_JOINED]
                shape = list(output.shape)
                shape[axis] = sum(values[index].shape[axis] for index in part)
                joined.append(between(step.output, f"{output.name}_of_{len(values)}", shape))
                steps.append(dataclasses.replace(step, inputs=part, output=joined[-1]))
            step = dataclasses.replace(step, inputs=tuple(joined))
        if step.kind == "TRANSPOSE_CONV" and _goes_beyond(step, scales[step.output]):
            whole = between(step.output, f"{output.name}_whole", output.shape)
            values[whole] = dataclasses.replace(values[whole], rounds_twice=output.rounds_twice)
            plain = dataclasses.replace(step, output=whole, activation="NONE", limits=None)
            steps.append(plain)
            step = Step(step.activation, step.name, (whole,), step.output)
        steps.append(step)
    return dataclasses.replace(network, values=values, steps=steps), scales


def _goes_beyond(step: Step, quantization: Quantization) -> bool:
    """Whether 8 bits hold values that the fused ReLU of a step would cut off."""
    if step.activation not in _ENDS:
        return False
    (low, high), half = quantization.limits, float(quantization.scale) / 2
    least, most = _ENDS[step.activation]
    return low < least - half or high > most + half
