"""Curves that neither TFLite nor TFLM's int8 has as an operator, written with those that both have.

TFLM and Vela agree bit for bit on ELU, TANH and RSQRT, which both compute as tables, and on sums
and products: what is written with these runs on the NPU as it does in TFLM.
"""

from collections.abc import Callable

import numpy as np

from udc_tf.export.emitter import Emitter
from udc_tf.graph import activations
from udc_tf.graph.activations import LINEAR
from udc_tf.graph.affine import Affine
from udc_tf.graph.trace import Node

_RELU = activations.of_name("relu")
_TANH = activations.of_name("tanh")
# log(2 + e) for e of -1 to 0 as (1 + e) (a + b e + c e^2), within 0.0007, exact at both ends.
_LOGARITHM = (0.693147, -0.182745, 0.110363)


class Curve:
    """Writes the operators of one call; a name of "" is that of the call's own result."""

    def __init__(self, emitter: Emitter, node: Node, suffix: str = ""):
        self._emitter, self._node, self._suffix = emitter, node, suffix

    def _named(self, name: str) -> str:
        return f"{self._suffix}_{name}" if name else self._suffix

    def line(
        self, value: int, factor: float, offset: float, name: str = "", relu: bool = False
    ) -> int:
        """factor * x + offset, or zero where that is negative."""
        ones = np.ones(self._emitter.shape(value)[-1])
        return self._emitter.affine(
            self._node,
            value,
            Affine(factor * ones, offset * ones),
            _RELU if relu else LINEAR,
            suffix=self._named(name),
        )

    def apply(self, operator: str, *values: int, name: str = "", **options: float) -> int:
        shape, suffix = self._emitter.shape(values[0]), self._named(name)
        return self._emitter.emit(
            operator, self._node, values, shape, suffix=suffix, options=options
        )

    def tanh(self, value: int, name: str) -> int:
        output = self.apply("TANH", value, name=name)
        if _TANH.range is not None:
            self._emitter.prescribe(output, _TANH.range)
        return output

    def between(self, value: int, limits: tuple[float, float]) -> int:
        """Cuts a value off where its 8 bits end."""
        self._emitter.prescribe(value, limits)
        self._emitter.made_by(value).limits = limits
        return value


def beyond(curve: Curve, value: int, number: float, largest: bool) -> int:
    """The larger, or smaller, of a value and a number."""
    if largest and not number:
        return curve.apply("RELU", value)
    sign = 1.0 if largest else -1.0
    rest = curve.line(value, sign, -sign * number, "rest", relu=True)
    return curve.line(rest, sign, number)


def _softplus(curve: Curve, value: int, options: dict, name: str = "") -> int:
    """max(x, 0) + log(1 + exp(-|x|)); an ELU is exp(x) - 1 for negative x."""
    a, b, c = _LOGARITHM
    size = curve.apply("ABS", value, name=f"{name}size")
    e = curve.apply("ELU", curve.line(size, -1.0, 0.0, f"{name}negative"), name=f"{name}curve")
    inner = curve.apply("MUL", e, curve.line(e, c, b, f"{name}bent"), name=f"{name}inner")
    bend = curve.apply(
        "MUL",
        curve.line(e, 1.0, 1.0, f"{name}fading"),
        curve.line(inner, 1.0, a, f"{name}factor"),
        name=f"{name}bend",
    )
    ramp = curve.line(value, 1.0, 0.0, f"{name}ramp", relu=True)
    return curve.apply("ADD", ramp, bend, name=name.removesuffix("_"))


def _log_sigmoid(curve: Curve, value: int, options: dict) -> int:
    """x - softplus(x)."""
    return curve.apply("SUB", value, _softplus(curve, value, options, "softplus_"))


def _mish(curve: Curve, value: int, options: dict) -> int:
    """x * tanh(softplus(x))."""
    gate = curve.tanh(_softplus(curve, value, options, "softplus_"), "gate")
    return curve.apply("MUL", value, gate)


def _softsign(curve: Curve, value: int, options: dict) -> int:
    """x / (1 + |x|), the quotient as the square of a reciprocal square root."""
    size = curve.line(curve.apply("ABS", value, name="size"), 1.0, 1.0, "beside")
    root = curve.apply("RSQRT", size, name="root", least=1.0)
    return curve.apply("MUL", curve.apply("MUL", value, root, name="half"), root)


def _squareplus(curve: Curve, value: int, options: dict) -> int:
    """(x + s * (1 / sqrt(s))) / 2 with s = x^2 + b."""
    square = curve.line(curve.apply("MUL", value, value, name="square"), 1.0, options["b"], "sum")
    rsqrt = curve.apply("RSQRT", square, name="rsqrt", least=options["b"])
    root = curve.apply("MUL", square, rsqrt, name="root")
    return curve.line(curve.apply("ADD", value, root, name="twice"), 0.5, 0.0)


def _sparse_plus(curve: Curve, value: int, options: dict) -> int:
    """u^2 + max(x - 1, 0), u = (x + 1) / 2 between 0 and 1."""
    u = curve.between(curve.line(value, 0.5, 0.5, "rising"), (0.0, 1.0))
    square = curve.apply("MUL", u, u, name="square")
    return curve.apply("ADD", square, curve.line(value, 1.0, -1.0, "rest", relu=True))


def _soft_shrink(curve: Curve, value: int, options: dict) -> int:
    """max(x - t, 0) - max(-x - t, 0)."""
    edge = options["threshold"]
    above = curve.line(value, 1.0, -edge, "above", relu=True)
    return curve.apply("SUB", above, curve.line(value, -1.0, -edge, "below", relu=True))


def _celu(curve: Curve, value: int, options: dict) -> int:
    """alpha * elu(x / alpha)."""
    alpha = options["alpha"]
    curved = curve.apply("ELU", curve.line(value, 1 / alpha, 0.0, "scaled"), name="curve")
    return curve.line(curved, alpha, 0.0)


CURVES: dict[str, Callable[[Curve, int, dict], int]] = {
    "SOFTPLUS": _softplus,
    "LOG_SIGMOID": _log_sigmoid,
    "MISH": _mish,
    "SOFTSIGN": _softsign,
    "SQUAREPLUS": _squareplus,
    "SPARSE_PLUS": _sparse_plus,
    "SOFT_SHRINK": _soft_shrink,
    "CELU": _celu,
}
