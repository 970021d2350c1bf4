"""What each activation becomes in int8: an operator, part of the operator before it, or nothing.

Activations are told by the function itself, never by its name: a function of the user's own that
happens to be called `relu` is not known, and is refused.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers as kl


@dataclasses.dataclass(frozen=True)
class Activation:
    """One activation.

    Attributes:
        name: as `keras.activations` calls it.
        operator: TFLite's, if it stands alone; None for the identity. Those that TFLite has not,
            or TFLM not in int8, are names of what is written as several operators.
        options: of that operator.
        fuses: whether it becomes part of the convolution or elementwise operator before it.
        range: what TFLite prescribes for its output, or where 8 bits are to saturate because the
            activation has its limits there; None if that follows from data.
        limited: whether the limits of `range` are the activation's own.
        saturates: beyond this, on either side of zero, its int8 output stays at an end.
        mixes_channels: whether an output depends on several channels.
        refused: why it cannot be exported; None if it can.
    """

    name: str
    operator: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fuses: bool = False
    range: tuple[float, float] | None = None
    limited: bool = False
    saturates: float | None = None
    mixes_channels: bool = False
    refused: str | None = None


LINEAR = Activation("linear")
_RELU = Activation("relu", "RELU", fuses=True)
_RELU6 = Activation("relu6", "RELU6", fuses=True)
_SIGMOID = Activation("sigmoid", "LOGISTIC", range=(0.0, 255 / 256), saturates=8.0)
_TANH = Activation("tanh", "TANH", range=(-1.0, 127 / 128), saturates=4.0)
_SOFTMAX = Activation("softmax", "SOFTMAX", range=(0.0, 255 / 256), mixes_channels=True)
_SILU = Activation("silu", "SILU")
_HARD_SILU = Activation("hard_silu", "HARD_SWISH")
_GELU = Activation("gelu", "GELU")
_TANH_SHRINK = Activation("tanh_shrink", "TANH_SHRINK")
_SOFTPLUS = Activation("softplus", "SOFTPLUS")
_LOG_SIGMOID = Activation("log_sigmoid", "LOG_SIGMOID")
_MISH = Activation("mish", "MISH")
_SOFTSIGN = Activation("softsign", "SOFTSIGN")
_SPARSE_PLUS = Activation("sparse_plus", "SPARSE_PLUS")
_SQUARE = Activation("square", "SQUARE")
_ABS = Activation("abs", "ABS")
_SELU = Activation("selu", "SELU", {"alpha": 1.6732632423543772, "scale": 1.0507009873554805})

_MIXES_CHANNELS = ("log_softmax", "sparsemax", "glu")
# What to take instead of those that have no int8 operator.
_INSTEAD = {
    "exponential": "take softplus or elu",
    "glu": "take keras.ops.split, and multiply one half with the sigmoid of the other",
    "hard_shrink": "take soft_shrink",
    "log_softmax": "take softmax, or none and a loss with from_logits=True",
    "sparsemax": "take softmax",
    "threshold": "take relu",
}


def _leaky(slope: float) -> Activation:
    return Activation("leaky_relu", "LEAKY_RELU", {"alpha": float(slope)})


def _elu(alpha: float) -> Activation:
    return Activation("elu", "ELU" if alpha == 1 else "SELU", {"alpha": float(alpha), "scale": 1.0})


def _celu(alpha: float) -> Activation:
    if alpha == 1:
        return _elu(1.0)
    if not alpha > 0:
        why = f"a CELU with alpha {alpha} has no int8 operator; take one above zero"
        return Activation("celu", refused=why)
    return Activation("celu", "CELU", {"alpha": float(alpha)})


def _squareplus(b: float) -> Activation:
    if not b > 0:
        why = f"a squareplus with b {b} has no int8 operator; take one above zero"
        return Activation("squareplus", refused=why)
    return Activation("squareplus", "SQUAREPLUS", {"b": float(b)})


def _soft_shrink(threshold: float) -> Activation:
    if threshold < 0:
        why = f"a soft_shrink with threshold {threshold} has no int8 operator; take one above zero"
        return Activation("soft_shrink", refused=why)
    return Activation("soft_shrink", "SOFT_SHRINK", {"threshold": float(threshold)})


def _ramp(name: str, low: float, high: float, factor: float = 1, offset: float = 0) -> Activation:
    """factor * x + offset between two limits, at which 8 bits saturate."""
    if not (low <= 0 <= high and low < high):
        why = f"limits of {low} and {high} have no int8 operator here; take some around zero"
        return Activation(name, refused=why)
    options = {"factor": factor, "offset": offset}
    return Activation(name, "RAMP", options, range=_limits(low, high), limited=True)


def _limits(low: float, high: float) -> tuple[float, float]:
    """As variables hold them, in float32."""
    return float(np.float32(low)), float(np.float32(high))


# Functions of `keras.activations`; names that Keras has since given up lead to the same functions.
_FUNCTIONS: dict[Callable, Activation] = {
    keras.activations.linear: LINEAR,
    keras.activations.relu: _RELU,
    keras.activations.relu6: _RELU6,
    keras.activations.sigmoid: _SIGMOID,
    keras.activations.tanh: _TANH,
    keras.activations.softmax: _SOFTMAX,
    keras.activations.silu: _SILU,
    keras.activations.hard_silu: _HARD_SILU,
    keras.activations.leaky_relu: _leaky(0.2),
    keras.activations.elu: _elu(1.0),
    keras.activations.celu: _celu(1.0),
    keras.activations.selu: _SELU,
    keras.activations.gelu: _GELU,
    keras.activations.hard_sigmoid: _ramp("hard_sigmoid", 0, 1, 1 / 6, 0.5),
    keras.activations.sparse_sigmoid: _ramp("sparse_sigmoid", 0, 1, 0.5, 0.5),
    keras.activations.hard_tanh: _ramp("hard_tanh", -1, 1),
    keras.activations.tanh_shrink: _TANH_SHRINK,
    keras.activations.softplus: _SOFTPLUS,
    keras.activations.log_sigmoid: _LOG_SIGMOID,
    keras.activations.mish: _MISH,
    keras.activations.softsign: _SOFTSIGN,
    keras.activations.squareplus: _squareplus(4.0),
    keras.activations.sparse_plus: _SPARSE_PLUS,
    keras.activations.soft_shrink: _soft_shrink(0.5),
}
# The same functions by the names that others give them.
_FUNCTIONS |= {
    getattr(home, known.name): known
    for home in (keras.ops, tf.nn)
    for known in tuple(_FUNCTIONS.values())
    if hasattr(home, known.name)
}
# Operations of `keras.ops` in a functional model, by the name of their class.
_OPERATIONS: dict[str, Activation | Callable[[Any], Activation]] = {
    "Relu": _RELU,
    "Relu6": _RELU6,
    "Sigmoid": _SIGMOID,
    "Tanh": _TANH,
    "Silu": _SILU,
    "HardSilu": _HARD_SILU,
    "HardSwish": _HARD_SILU,
    "HardSigmoid": _FUNCTIONS[keras.activations.hard_sigmoid],
    "SparseSigmoid": _FUNCTIONS[keras.activations.sparse_sigmoid],
    "HardTanh": _FUNCTIONS[keras.activations.hard_tanh],
    "TanhShrink": _TANH_SHRINK,
    "Gelu": _GELU,
    "Selu": _SELU,
    "Softplus": _SOFTPLUS,
    "LogSigmoid": _LOG_SIGMOID,
    "Mish": _MISH,
    "Softsign": _SOFTSIGN,
    "SoftSign": _SOFTSIGN,
    "SparsePlus": _SPARSE_PLUS,
    "Squareplus": lambda operation: _squareplus(operation.b),
    "SoftShrink": lambda operation: _soft_shrink(operation.threshold),
    "Square": _SQUARE,
    "Abs": _ABS,
    "Absolute": _ABS,
    "Elu": lambda operation: _elu(operation.alpha),
    "Celu": lambda operation: _celu(operation.alpha),
    "LeakyRelu": lambda operation: _leaky(operation.negative_slope),
    "Softmax": lambda operation: _softmax(operation.axis),
    "Clip": lambda operation: _clip(operation.x_min, operation.x_max),
}
OPERATIONS = tuple(_OPERATIONS)


# Of those that are written as several operators: how many of these scale channels and shift them,
# each with a factor and an offset per channel.
LINES = {
    **{"SOFTPLUS": 5, "LOG_SIGMOID": 5, "MISH": 5, "SQUAREPLUS": 2, "SPARSE_PLUS": 2, "CELU": 2},
    **{"SOFT_SHRINK": 2, "SOFTSIGN": 1, "GELU": 1, "SELU": 1, "RAMP": 1, "LIMIT": 2},
}


def of_function(function: Callable | None) -> Activation:
    """What a layer's `activation` is.

    >>> of_function(keras.activations.relu).operator
    'RELU'
    >>> of_function(keras.activations.exponential).refused
    "the activation 'exponential' has no int8 operator here; take softplus or elu"
    """
    if function is None:
        return LINEAR
    with contextlib.suppress(TypeError):  # a callable without a hash is none of Keras'
        if function in _FUNCTIONS:
            return _FUNCTIONS[function]
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(function, keras.layers.Layer):
        why = (
            f"the layer {name} as an activation has no int8 operator here; put it behind the layer"
        )
        return Activation(name, mixes_channels=True, refused=why)
    instead = _INSTEAD.get(name, "take relu, gelu or silu")
    own = getattr(keras.activations, name, None) is not function
    what = f"a function of its own, {name!r}," if own else f"the activation {name!r}"
    return Activation(
        name,
        mixes_channels=own or name in _MIXES_CHANNELS,
        refused=f"{what} has no int8 operator here; {instead}",
    )


def of_name(name: str) -> Activation:
    """That of a function of `keras.activations`."""
    return of_function(getattr(keras.activations, name))


def of_operation(operation: Any) -> Activation | None:
    """What an operation of `keras.ops` applies; None if it is no activation."""
    known = _OPERATIONS.get(type(operation).__name__)
    return known(operation) if callable(known) else known


def of_layer(layer: keras.Operation, rank: int | None = None) -> Activation:
    """What a layer applies to its result, or all that it does.

    Args:
        layer: any layer; without an activation it is `LINEAR`.
        rank: of its output, if known: a softmax may count its axis from the front.

    >>> of_layer(kl.ReLU(6.0)).name, of_layer(kl.Dense(2, activation="tanh")).range
    ('relu6', (-1.0, 0.9921875))
    """
    if isinstance(layer, kl.ReLU):
        return _relu_layer(layer)
    if isinstance(layer, kl.LeakyReLU):
        return _leaky(layer.negative_slope)
    if isinstance(layer, kl.ELU):
        return _elu(layer.alpha)
    if isinstance(layer, kl.Softmax):
        return _softmax(layer.axis, rank)
    if not isinstance(layer, keras.layers.Layer):
        return of_operation(layer) or LINEAR
    return of_function(getattr(layer, "activation", None))


def _relu_layer(layer: kl.ReLU) -> Activation:
    if layer.threshold:
        shape = f"a threshold of {layer.threshold}"
        why = f"a ReLU with {shape} has no int8 operator here; take one without"
        return Activation("relu", refused=why)
    if not layer.negative_slope:
        if layer.max_value in (None, 6):
            return _RELU if layer.max_value is None else _RELU6
        limits = _limits(0, layer.max_value)
        return dataclasses.replace(_RELU, name="limited_relu", range=limits, limited=True)
    if layer.max_value is None:
        return _leaky(layer.negative_slope)
    why = "a leaky ReLU with a maximum has no int8 operator here; take one of the two"
    return Activation("relu", refused=why)


def _clip(low: Any, high: Any) -> Activation:
    if not all(isinstance(limit, (int, float)) for limit in (low, high)):
        why = "a clip without two numbers has no int8 operator here; give it two numbers"
        return Activation("clip", refused=why)
    return _ramp("clip", low, high)


def _softmax(axis: Any, rank: int | None = None) -> Activation:
    if axis == -1 or (rank is not None and axis == rank - 1):
        return _SOFTMAX
    why = f"a softmax over axis {axis} has no int8 operator here; take axis=-1"
    return dataclasses.replace(_SOFTMAX, refused=why)
