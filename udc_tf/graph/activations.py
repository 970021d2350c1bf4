"""What each activation becomes in int8: an operator, part of the operator before it, or nothing.

Activations are told by the function itself, never by its name: a function of the user's own that
happens to be called `relu` is not known, and is refused.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras import layers as kl


@dataclasses.dataclass(frozen=True)
class Activation:
    """One activation.

    Attributes:
        name: as `keras.activations` calls it.
        operator: TFLite's, if it stands alone; None for the identity.
        options: of that operator.
        fuses: whether it becomes part of the convolution or elementwise operator before it.
        range: what TFLite prescribes for its output; None if that follows from data.
        mixes_channels: whether an output depends on several channels.
        refused: why it cannot be exported; None if it can.
    """

    name: str
    operator: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fuses: bool = False
    range: tuple[float, float] | None = None
    mixes_channels: bool = False
    refused: str | None = None


LINEAR = Activation("linear")
_RELU = Activation("relu", "RELU", fuses=True)
_RELU6 = Activation("relu6", "RELU6", fuses=True)
_SIGMOID = Activation("sigmoid", "LOGISTIC", range=(0.0, 255 / 256))
_TANH = Activation("tanh", "TANH", range=(-1.0, 127 / 128))
_SOFTMAX = Activation("softmax", "SOFTMAX", range=(0.0, 255 / 256), mixes_channels=True)
_SILU = Activation("silu", "SILU")  # written as LOGISTIC and MUL
_HARD_SILU = Activation("hard_silu", "HARD_SWISH")

_MIXES_CHANNELS = ("log_softmax", "sparsemax", "glu")


def _leaky(slope: float) -> Activation:
    return Activation("leaky_relu", "LEAKY_RELU", {"alpha": float(slope)})


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
}
# The same functions by the names that others give them.
_FUNCTIONS |= {
    getattr(home, known.name): known
    for home in (keras.ops, tf.nn)
    for known in tuple(_FUNCTIONS.values())
    if hasattr(home, known.name)
}
# Operations of `keras.ops` in a functional model, by the name of their class.
_OPERATIONS: dict[str, Activation] = {
    "Relu": _RELU,
    "Relu6": _RELU6,
    "Sigmoid": _SIGMOID,
    "Tanh": _TANH,
    "Silu": _SILU,
    "HardSilu": _HARD_SILU,
    "HardSwish": _HARD_SILU,
}


def of_function(function: Callable | None) -> Activation:
    """What a layer's `activation` is.

    >>> of_function(keras.activations.relu).operator
    'RELU'
    >>> of_function(keras.activations.gelu).refused
    "the activation 'gelu' has no int8 operator here"
    """
    if function is None:
        return LINEAR
    with contextlib.suppress(TypeError):  # a callable without a hash is none of Keras'
        if function in _FUNCTIONS:
            return _FUNCTIONS[function]
    name = getattr(function, "__name__", type(function).__name__)
    own = getattr(keras.activations, name, None) is not function
    what = f"a function of its own, {name!r}," if own else f"the activation {name!r}"
    return Activation(
        name,
        mixes_channels=own or name in _MIXES_CHANNELS,
        refused=f"{what} has no int8 operator here",
    )


def of_operation(operation: Any) -> Activation | None:
    """What an operation of `keras.ops` applies; None if it is no activation."""
    kind = type(operation).__name__
    if kind == "LeakyRelu":
        return _leaky(operation.negative_slope)
    if kind == "Softmax":
        return _softmax(operation.axis)
    return _OPERATIONS.get(kind)


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
    if isinstance(layer, kl.Softmax):
        return _softmax(layer.axis, rank)
    if not isinstance(layer, keras.layers.Layer):
        return of_operation(layer) or LINEAR
    return of_function(getattr(layer, "activation", None))


def _relu_layer(layer: kl.ReLU) -> Activation:
    if layer.threshold or layer.max_value not in (None, 6):
        shape = f"a threshold of {layer.threshold} and a maximum of {layer.max_value}"
        return Activation("relu", refused=f"a ReLU with {shape} has no int8 operator here")
    if not layer.negative_slope:
        return _RELU if layer.max_value is None else _RELU6
    if layer.max_value is None:
        return _leaky(layer.negative_slope)
    return Activation("relu", refused="a leaky ReLU with a maximum has no int8 operator here")


def _softmax(axis: Any, rank: int | None = None) -> Activation:
    if axis == -1 or (rank is not None and axis == rank - 1):
        return _SOFTMAX
    why = f"a softmax over axis {axis} has no int8 operator here, only one over the last axis"
    return dataclasses.replace(_SOFTMAX, refused=why)
