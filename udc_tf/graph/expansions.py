"""Layers of Keras that are several operators in int8: each as a small model of simpler ones.

`trace` lays these models out in the layers' place, so that what is inside of them is searched,
rounded in finetuning and exported as if the network had been written so. The entries say besides
why a layer cannot be expanded: settings for which there are no operators.
"""

import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers as kl
from keras import ops

from udc_tf.layers.channel_scale import ChannelScale
from udc_tf.layers.reciprocal_root import ReciprocalRoot

Shapes = Sequence[tuple[int | None, ...]]
_OF_UNIT_NORMALIZATION = 1e-12  # Keras' epsilon, which is no setting
_MOST_GROUPS = 8  # each is some eight operators


@dataclasses.dataclass(frozen=True)
class Expansion:
    """How one kind of layer is expanded.

    Attributes:
        why_not: the reason why a call of the layer on inputs of these shapes cannot be; None if it
            can.
        build: the outputs on symbolic inputs, with the layer's weights.
    """

    why_not: Callable[[Any, Shapes], str | None]
    build: Callable[[Any, list[keras.KerasTensor]], keras.KerasTensor]


def inputs_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors, or references to them, that a layer is called with, in its own order."""
    named = [kwargs[name] for name in ("inputs", "query", "value", "key") if name in kwargs]
    return [x for x in keras.tree.flatten((tuple(args), named)) if hasattr(x, "shape")]


def why_not(layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why a call cannot be expanded; None if it can."""
    entry = EXPANSIONS.get(type(layer))
    if entry is None:
        return f"{type(layer).__name__} is known here only as Keras has it; take that one"
    given = {k: v for k, v in kwargs.items() if v is not None and k != "training"}
    for name in ("mask", "attention_mask", "query_mask", "value_mask", "key_mask"):
        if name in given:
            return f"a call with `{name}` has no int8 operator here; leave the mask out"
    for name in ("use_causal_mask", "return_attention_scores"):
        if given.get(name):
            return f"a call with `{name}` has no int8 operator here; leave it out"
    return entry.why_not(layer, [tuple(x.shape) for x in inputs_of(args, kwargs)])


def distinct(tensors: Sequence[Any]) -> list[Any]:
    """Each tensor once: a sequence may attend to itself."""
    return list({id(x): x for x in tensors}.values())


def expand(layer: Any, inputs: Sequence[keras.KerasTensor]) -> keras.Model:
    """The model of simpler layers that computes what `layer` does to the distinct `inputs`."""
    own = {id(x): keras.Input(batch_shape=x.shape, dtype=x.dtype) for x in inputs}
    outputs = EXPANSIONS[type(layer)].build(layer, [own[id(x)] for x in inputs])
    return keras.Model(list(own.values()), outputs, name=layer.name)


def role_of(part: Any) -> str:
    """What an operation of an expansion is there; the same in every trace."""
    if isinstance(part, keras.layers.Layer):
        return part.name.partition(_NUMBERED)[0]
    return type(part).__name__.lower()  # Keras names operations by counting them


_NUMBERED = "__"
_numbers = itertools.count()


def _unique(role: str) -> str:
    """A name that no other layer of a model has, as Keras asks for."""
    return f"{role}{_NUMBERED}{next(_numbers)}"


# Normalizations.


def _normalized(x: Any, axes: tuple[int, ...], epsilon: float, centred: bool = True) -> Any:
    if centred:
        x = x - ops.mean(x, axes, keepdims=True)
    return x * _root(ops.mean(ops.square(x), axes, keepdims=True), epsilon)


def _root(x: Any, epsilon: float) -> Any:
    return ReciprocalRoot(epsilon, name=_unique("root"))(x + epsilon)


def _over_channels(layer: Any, shapes: Shapes) -> str | None:
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    rank = len(shapes[0])
    if [axis % rank for axis in axes] != [rank - 1]:
        kind = type(layer).__name__
        return f"a {kind} over axes {tuple(axes)} has no int8 operator here; take axis=-1"
    if getattr(layer, "rms_scaling", False):
        return "`rms_scaling` has no int8 operator here; take RMSNormalization"
    return None


def _scaled(layer: Any, x: Any, gamma: str = "gamma") -> Any:
    """`x` behind the factors and offsets of a normalization."""
    weights = {v.name: v.numpy() for v in layer.weights}
    names = [name for name in (gamma, "beta") if name in weights]
    if not names:
        return x
    settings = {
        f"{name}_{kind}": getattr(layer, f"{name}_{kind}", None)
        for name in ("gamma", "beta")
        for kind in ("regularizer", "constraint")
    }
    scale = ChannelScale(gamma in weights, "beta" in weights, **settings, name=_unique("scale"))
    scaled = scale(x)
    scale.set_weights([np.ravel(weights[name]) for name in names])
    return scaled


def _layer_normalization(layer: Any, inputs: list[Any]) -> Any:
    return _scaled(layer, _normalized(inputs[0], (-1,), layer.epsilon))


def _rms_normalization(layer: Any, inputs: list[Any]) -> Any:
    return _scaled(layer, _normalized(inputs[0], (-1,), layer.epsilon, centred=False), "scale")


def _unit_normalization(layer: Any, inputs: list[Any]) -> Any:
    (x,) = inputs
    return x * _root(ops.sum(ops.square(x), -1, keepdims=True), _OF_UNIT_NORMALIZATION)


def _groups(layer: Any, channels: int) -> int:
    return channels if layer.groups == -1 else layer.groups


def _cannot_group(layer: Any, shapes: Shapes) -> str | None:
    rank, channels = len(shapes[0]), shapes[0][-1] or 0
    if layer.axis % rank != rank - 1:
        return f"a GroupNormalization over axis {layer.axis} has no int8 operator; take axis=-1"
    groups = _groups(layer, channels)
    if rank == 2 and groups == channels:
        return "a GroupNormalization of single values is nothing but its offset; leave it out"
    if _MOST_GROUPS < groups < channels:
        return (
            f"a GroupNormalization of {groups} groups is too many operators; take up to "
            f"{_MOST_GROUPS} groups, one per channel, or BatchNormalization"
        )
    return None


def _group_normalization(layer: Any, inputs: list[Any]) -> Any:
    (x,) = inputs
    rank, channels = len(x.shape), x.shape[-1]
    groups = _groups(layer, channels)
    if groups == channels:
        return _scaled(layer, _normalized(x, tuple(range(1, rank - 1)), layer.epsilon))
    everything = tuple(range(1, rank))
    parts = [x] if groups == 1 else ops.split(x, groups, axis=-1)
    parts = [_normalized(part, everything, layer.epsilon) for part in parts]
    return _scaled(layer, parts[0] if groups == 1 else ops.concatenate(parts, axis=-1))


# Products.


def _cannot_dot(layer: Any, shapes: Shapes) -> str | None:
    first, second = _dot_axes(layer, shapes)
    if [len(shape) for shape in shapes] == [2, 2] and (first, second) == (1, 1):
        return None
    if [len(shape) for shape in shapes] != [3, 3] or not {first, second} <= {1, 2}:
        return f"a Dot of the shapes {list(shapes)} has no int8 operator here; take 2 or 3 axes"
    if layer.normalize:
        return "a Dot of sequences with `normalize` has no int8 operator; take UnitNormalization"
    return None


def _dot_axes(layer: Any, shapes: Shapes) -> tuple[int, int]:
    axes = (layer.axes, layer.axes) if isinstance(layer.axes, int) else layer.axes
    first, second = (axis % len(shape) for axis, shape in zip(axes, shapes, strict=True))
    return first, second


def _dot(layer: Any, inputs: list[Any]) -> Any:
    first, second = _dot_axes(layer, [x.shape for x in inputs])
    one, two = inputs
    if layer.normalize:
        one, two = (
            kl.UnitNormalization(name=_unique(f"unit_{n}"))(x) for n, x in enumerate(inputs)
        )
    if len(one.shape) == 2:
        return ops.sum(one * two, -1, keepdims=True)
    one = one if first == 2 else ops.swapaxes(one, 1, 2)
    return ops.matmul(one, two if second == 1 else ops.swapaxes(two, 1, 2))


def _cannot_attend(layer: Any, shapes: Shapes) -> str | None:
    if layer.score_mode != "dot" or layer.use_scale:
        return "an Attention with weights of its own has no int8 operator; take score_mode='dot'"
    return _not_sequences(shapes)


def _not_sequences(shapes: Shapes) -> str | None:
    if {len(shape) for shape in shapes} == {3}:
        return None
    return f"attention over the shapes {list(shapes)} has no int8 operator here; take 3 axes"


def _attention(layer: Any, inputs: list[Any]) -> Any:
    query, value, key = (*inputs, inputs[1])[:3]
    return _attended(query, ops.swapaxes(key, 1, 2), value, layer.dropout)


def _attended(query: Any, key: Any, value: Any, dropout: float) -> Any:
    """What is at the positions that a query is like; keys are transposed."""
    weights = kl.Softmax(name=_unique("weights"))(ops.matmul(query, key))
    if dropout:
        weights = kl.Dropout(dropout, name=_unique("dropout"))(weights)
    return ops.matmul(weights, value)


_UNUSUAL_HEADS = ("attention_axes", "sliding_window", "use_gate", "flash_attention")


def _cannot_attend_with_heads(layer: Any, shapes: Shapes) -> str | None:
    if why := _not_sequences(shapes):
        return why
    config = layer.get_config()
    if tuple(config.get("attention_axes") or (1,)) == (1,):
        config.pop("attention_axes", None)  # a sequence has no other
    for name in _UNUSUAL_HEADS:
        if config.get(name):
            return f"a MultiHeadAttention with `{name}` has no int8 operator here; leave it out"
    if len(config.get("output_shape") or ()) > 1:
        return "a MultiHeadAttention with an `output_shape` of several axes; take one"
    return None


def _multi_head_attention(layer: Any, inputs: list[Any]) -> Any:
    query, value, key = (*inputs, inputs[1])[:3]
    heads, weights = layer.num_heads, _by_part(layer)

    def projected(part: str, x: Any, factor: float = 1.0) -> Any:
        """Heads apart: [batch, length, heads, channels]."""
        kernel = factor * weights[part]["kernel"]
        flat = _dense(layer, part, x, kernel.reshape(x.shape[-1], -1), weights[part], factor)
        return kl.Reshape((x.shape[1], heads, kernel.shape[-1]), name=_unique(f"{part}_heads"))(
            flat
        )

    # The factor that keeps scores from growing with the channels is part of the query's kernel.
    asking = ops.transpose(projected("query", query, layer.key_dim**-0.5), (0, 2, 1, 3))
    keys = ops.transpose(projected("key", key), (0, 2, 3, 1))
    values = ops.transpose(projected("value", value), (0, 2, 1, 3))
    found = ops.transpose(_attended(asking, keys, values, layer.dropout), (0, 2, 1, 3))
    found = kl.Reshape((query.shape[1], heads * layer.value_dim), name=_unique("joined"))(found)
    kernel = weights["attention_output"]["kernel"]
    kernel = kernel.reshape(heads * layer.value_dim, -1)
    return _dense(layer, "attention_output", found, kernel, weights["attention_output"])


def _by_part(layer: Any) -> dict[str, dict[str, np.ndarray]]:
    """Weights by the part of a layer and their own name."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for variable in layer.weights:
        part, name = variable.path.split("/")[-2:]
        found.setdefault(part, {})[name] = variable.numpy()
    return found


_OF_KERNELS = ("initializer", "regularizer", "constraint")


def _dense(
    layer: Any,
    name: str,
    x: Any,
    kernel: np.ndarray,
    weights: Mapping[str, np.ndarray],
    factor: float = 1.0,
    activation: Any = None,
) -> Any:
    """A dense layer with a given kernel, and else the settings of the layer it is a part of."""
    config = layer.get_config()
    settings = {f"{n}_{k}": config.get(f"{n}_{k}") for n in ("kernel", "bias") for k in _OF_KERNELS}
    settings = {key: value for key, value in settings.items() if value is not None}
    has_bias = "bias" in weights
    made = kl.Dense(
        kernel.shape[-1], use_bias=has_bias, activation=activation, name=_unique(name), **settings
    )
    outputs = made(x)
    made.set_weights([kernel, *([factor * np.ravel(weights["bias"])] if has_bias else [])])
    return outputs


# Einstein's sums.


def _einsum_parts(equation: str, rank: int) -> tuple[str, str, str] | None:
    """The axes that stay, those that are summed over and the new ones; None if it is no Dense."""
    sources, _, target = equation.replace(" ", "").partition("->")
    source, _, kernel = sources.partition(",")
    if "..." in source:
        known = source.replace("...", "")
        unused = [c for c in "ABCDEFGH" if c not in equation][: rank - len(known)]
        source, target = (s.replace("...", "".join(unused)) for s in (source, target))
    summed = "".join(c for c in source if c in kernel and c not in target)
    stay, new = source.removesuffix(summed), target[len(source) - len(summed) :]
    is_dense = (source, kernel, target) == (stay + summed, summed + new, stay + new)
    return (stay, summed, new) if is_dense and stay and summed and new else None


def _cannot_sum(layer: Any, shapes: Shapes) -> str | None:
    parts = _einsum_parts(layer.equation, len(shapes[0]))
    if parts is None:
        return (
            f"an EinsumDense of {layer.equation!r} is no dense layer, which sums over the last "
            "axes and appends new ones; take keras.ops.transpose and Dense"
        )
    stay, _, new = parts
    if len(stay) + len(new) > 4:
        return "an EinsumDense with outputs of more than 4 axes; take Dense and fewer axes"
    if layer.bias_axes and set(layer.bias_axes) != set(new):
        return f"an EinsumDense with one bias for several outputs; take bias_axes={new!r}"
    return None


def _einsum_dense(layer: Any, inputs: list[Any]) -> Any:
    (x,) = inputs
    stay, summed, new = _einsum_parts(layer.equation, len(x.shape)) or ("", "", "")
    weights = {v.name: v.numpy() for v in layer.weights}
    sizes = weights["kernel"].shape
    kernel = weights["kernel"].reshape(math.prod(sizes[: len(summed)]), -1)
    outer = tuple(x.shape[1 : len(stay)])
    if len(summed) > 1:
        x = kl.Reshape((*outer, len(kernel)), name=_unique("flat"))(x)
    alone = len(new) == 1
    x = _dense(layer, "dense", x, kernel, weights, activation=layer.activation if alone else None)
    if alone:
        return x
    x = kl.Reshape((*outer, *sizes[len(summed) :]), name=_unique("axes"))(x)
    return kl.Activation(layer.activation, name=_unique("activation"))(x)


# Layers that only networks of keras.applications have.


def _residual(layer: Any, inputs: list[Any]) -> Any:
    return inputs[0] + inputs[1] * layer.scale


def _layer_scale(layer: Any, inputs: list[Any]) -> Any:
    scale = ChannelScale(center=False, name=_unique("scale"))
    scaled = scale(inputs[0])
    scale.set_weights([layer.gamma.numpy()])
    return scaled


def _of_application(network: Callable, name: str) -> type | None:
    """A class beside the function that makes a network; None where a Keras version has no such."""
    return getattr(sys.modules[network.__module__], name, None)


_OF_APPLICATIONS = {
    _of_application(keras.applications.InceptionResNetV2, "CustomScaleLayer"): _residual,
    _of_application(keras.applications.ConvNeXtTiny, "LayerScale"): _layer_scale,
}
STOCHASTIC_DEPTH = _of_application(keras.applications.ConvNeXtTiny, "StochasticDepth")

EXPANSIONS: dict[type, Expansion] = {
    kl.LayerNormalization: Expansion(_over_channels, _layer_normalization),
    kl.RMSNormalization: Expansion(_over_channels, _rms_normalization),
    kl.UnitNormalization: Expansion(_over_channels, _unit_normalization),
    kl.GroupNormalization: Expansion(_cannot_group, _group_normalization),
    kl.Dot: Expansion(_cannot_dot, _dot),
    kl.Attention: Expansion(_cannot_attend, _attention),
    kl.MultiHeadAttention: Expansion(_cannot_attend_with_heads, _multi_head_attention),
    kl.EinsumDense: Expansion(_cannot_sum, _einsum_dense),
    **{
        kind: Expansion(lambda layer, shapes: None, build)
        for kind, build in _OF_APPLICATIONS.items()
        if kind is not None
    },
}
