"""UDC's second integer deployment: f(x, Q(theta - sign(theta)*beta)) + beta*f(x, sign(theta)).

A weight of the shifted number format is d * sign * (m + k): one tensor holds sign * k, a second one
the signs of what is not pruned, and the two results are added. Each result is rounded to int8 by
itself, which the single tensor of sign * (m + k) does not need.
"""

import dataclasses

import numpy as np

from udc_tf.export.integer_network import IntegerNetwork, Kernel, Step, Value

SUFFIX = "_sign"  # of the second operator's name


def split(network: IntegerNetwork) -> IntegerNetwork:
    """`network` with two operators and an addition for each kernel in the shifted format.

    Example:

    >>> codes = np.array([[[[-3]]], [[[0]]], [[[2]]]], np.int8)  # two steps of d, and one beyond
    >>> kernel = Kernel("conv", codes, 0, np.ones(3), np.zeros(3), bits=2, shift=2)
    >>> levels, signs = parts(kernel)
    >>> levels.codes.ravel().tolist(), signs.codes.ravel().tolist(), signs.scales.tolist()
    ([-1, 0, 0], [-1, 0, 1], [2.0, 2.0, 2.0])
    """
    values, steps = list(network.values), []
    for step in network.steps:
        if step.kernel is None or not step.kernel.shift:
            steps.append(step)
            continue
        shape, terms = values[step.output].shape, []
        for name, kernel in zip((step.name, step.name + SUFFIX), parts(step.kernel), strict=True):
            values.append(Value(f"{name}_term", shape))
            terms.append(len(values) - 1)
            term = dataclasses.replace(step, name=name, kernel=kernel, activation="NONE")
            steps.append(dataclasses.replace(term, output=terms[-1]))
        steps.append(
            Step("ADD", f"{step.name}_sum", tuple(terms), step.output, None, step.activation)
        )
    return dataclasses.replace(network, values=values, steps=steps)


def parts(kernel: Kernel) -> tuple[Kernel, Kernel]:
    """Levels above the shift, with the bias; and signs, with a scale `shift` times as large."""
    signs = np.sign(kernel.codes)
    levels = (kernel.codes - kernel.shift * signs).astype(np.int8)
    return (
        dataclasses.replace(kernel, codes=levels, shift=0),
        dataclasses.replace(
            kernel,
            codes=signs.astype(np.int8),
            scales=kernel.scales * kernel.shift,
            bias=np.zeros_like(kernel.bias),
            bits=1,
            shift=0,
        ),
    )


def shifts(network: IntegerNetwork) -> dict[str, int]:
    """Layer -> how many steps its signs count for, for the layers that `split` would split."""
    return {s.name: s.weights.shift for s in network.kernels if s.weights.shift}
