"""What is written as several operators, because neither TFLite nor TFLM's int8 has it as one."""

import math
from collections.abc import Callable

import numpy as np

from udc_tf.export.curves import CURVES, Curve
from udc_tf.export.emitter import Emitter
from udc_tf.graph import activations
from udc_tf.graph.activations import Activation
from udc_tf.graph.affine import Affine
from udc_tf.graph.trace import Node

_SIGMOID = activations.of_name("sigmoid")
_TANH = activations.of_name("tanh")
# Beyond these a sigmoid is 0 or 1 in 8 bits; within them its argument has all 256 values.
_REACH_OF_SIGMOID = (-8.0, 8.0)


def apply(
    emitter: Emitter, node: Node, value: int, activation: Activation, suffix: str = ""
) -> int:
    """An activation as operators of its own."""
    shape, options = emitter.shape(value), dict(activation.options)
    if activation.operator in _RECIPES:
        output = _RECIPES[activation.operator](emitter, node, value, options, suffix)
    elif activation.operator in CURVES:
        output = CURVES[activation.operator](Curve(emitter, node, suffix), value, options)
    else:
        # TFLM cuts a RELU6 off in its input's units and does not scale it to others.
        follows = value if activation.operator == "RELU6" else None
        output = emitter.emit(
            activation.operator or "",
            node,
            (value,),
            shape,
            follows=follows,
            options=options,
            suffix=suffix,
        )
    if activation.range is not None:
        emitter.prescribe(output, activation.range)
        if activation.limited:
            emitter.made_by(output).limits = activation.range
    return output


def scaled(emitter: Emitter, node: Node, value: int, factor: float, suffix: str = "") -> int:
    """All channels times a number."""
    ones = np.ones(emitter.shape(value)[-1])
    return emitter.affine(node, value, Affine(factor * ones, 0 * ones), suffix=suffix)


def _ramp(emitter: Emitter, node: Node, value: int, options: dict, suffix: str) -> int:
    ones = np.ones(emitter.shape(value)[-1])
    affine = Affine(options["factor"] * ones, options["offset"] * ones)
    return emitter.affine(node, value, affine, suffix=suffix)


def _product(emitter: Emitter, node: Node, a: int, b: int, suffix: str) -> int:
    return emitter.emit("MUL", node, (a, b), emitter.shape(a), suffix=suffix)


def _silu(emitter: Emitter, node: Node, value: int, options: dict, suffix: str) -> int:
    """x * sigmoid(x)."""
    gate = apply(emitter, node, value, _SIGMOID, suffix=f"{suffix}_gate")
    return _product(emitter, node, value, gate, suffix)


def _gelu(emitter: Emitter, node: Node, value: int, options: dict, suffix: str) -> int:
    """x * sigmoid(2 c (x + 0.044715 x^3)), c = sqrt(2 / pi): within 0.0005 of the exact one."""
    ones = np.ones(emitter.shape(value)[-1])
    steepness = 2 * math.sqrt(2 / math.pi)
    square = _product(emitter, node, value, value, f"{suffix}_square")
    line = Affine(steepness * 0.044715 * ones, steepness * ones)
    slope = emitter.affine(node, square, line, suffix=f"{suffix}_slope")
    argument = _product(emitter, node, value, slope, f"{suffix}_argument")
    emitter.prescribe(argument, _REACH_OF_SIGMOID)
    gate = apply(emitter, node, argument, _SIGMOID, suffix=f"{suffix}_gate")
    return _product(emitter, node, value, gate, suffix)


def _selu(emitter: Emitter, node: Node, value: int, options: dict, suffix: str) -> int:
    """scale * leaky_relu(elu(x), alpha): beyond zero an ELU has the sign of its argument."""
    shape, last = emitter.shape(value), options["scale"] == 1
    curve = emitter.emit("ELU", node, (value,), shape, suffix=f"{suffix}_curve")
    bent = emitter.emit(
        "LEAKY_RELU",
        node,
        (curve,),
        shape,
        options={"alpha": options["alpha"]},
        suffix=suffix if last else f"{suffix}_bent",
    )
    return bent if last else scaled(emitter, node, bent, options["scale"], suffix)


def _tanh_shrink(emitter: Emitter, node: Node, value: int, options: dict, suffix: str) -> int:
    """x - tanh(x)."""
    tanh = apply(emitter, node, value, _TANH, suffix=f"{suffix}_tanh")
    return emitter.emit("SUB", node, (value, tanh), emitter.shape(value), suffix=suffix)


def _square(emitter: Emitter, node: Node, value: int, options: dict, suffix: str) -> int:
    return _product(emitter, node, value, value, suffix)


_RECIPES: dict[str, Callable[[Emitter, Node, int, dict, str], int]] = {
    "RAMP": _ramp,
    "SILU": _silu,
    "GELU": _gelu,
    "SELU": _selu,
    "TANH_SHRINK": _tanh_shrink,
    "SQUARE": _square,
}
