"""The rulebook: what each kind of Keras layer becomes in int8, or why it is refused.

Everything that must know asks here: channel groups, the plan and its prices, quantization points,
folding, lowering. The entries are in `rulebook`. What has no entry is refused, never guessed at: a
subclass with methods of its own may compute anything.
"""

import inspect

import keras
from keras import layers as kl

from udc_tf.graph import activations, rulebook
from udc_tf.graph.activations import Activation
from udc_tf.graph.refused_layers import missing
from udc_tf.graph.rule import Channels, Entry, Price, Range, Rule
from udc_tf.graph.trace import Node
from udc_tf.graph.uses import Uses

__all__ = ["Channels", "Price", "Range", "Rule"]  # what an entry is made of, for who asks


def rule_of(layer: keras.Operation, node: Node | None = None) -> Rule:
    """The entry of a layer or of an operation of `keras.ops`.

    Args:
        layer: the layer.
        node: its call, if known: what some become depends on their arguments.

    >>> rule_of(kl.MaxPooling2D()).operator, rule_of(kl.Conv3D(4, 3)).refused
    ('MAX_POOL_2D', 'Conv3D has no int8 operator here; take Conv2D layers')
    """
    kind = type(layer).__name__
    if not isinstance(layer, keras.layers.Layer):
        entry = rulebook.OPERATIONS.get(kind) if _is_keras_operation(layer) else None
        return missing(kind) if entry is None else _read(entry, layer, node)
    for ancestor in type(layer).__mro__:
        entry = rulebook.LAYERS.get(ancestor)
        if entry is None:
            continue
        if changed := _changes(type(layer), ancestor):
            if _is_keras_operation(layer):
                return missing(kind)
            return missing(f"{kind} is a {ancestor.__name__} with its own `{changed}`, which")
        return _read(entry, layer, node)
    return missing(kind)


def rule_of_node(node: Node) -> Rule:
    """The entry of a call."""
    return rule_of(node.layer, node)


def activation_of_node(node: Node) -> Activation:
    return activations.of_layer(node.layer, len(node.output.shape))


def saturation(node: Node) -> float | None:
    """Beyond which input a call of sigmoid or tanh alone saturates; None of all others."""
    activation = activation_of_node(node)
    return activation.saturates if rule_of_node(node).operator == activation.operator else None


def kernel_kind(layer: keras.Operation) -> str | None:
    """ "Conv1D", "Conv2D", "Dense", ... of a layer that can be searched; else None."""
    rule = rule_of(layer)
    return None if rule.unsearched else rule.kernel


def refusal(node: Node) -> str | None:
    """Why a network with this call cannot be exported; None if it can."""
    rule = rule_of_node(node)
    activation = activation_of_node(node).refused if rule.kernel else None
    return rule.refused or activation or _unusual_call(node)


def _unusual_call(node: Node) -> str | None:
    """What a layer is told in a call that an int8 network cannot be told."""
    if not isinstance(node.layer, keras.layers.Layer):
        return None
    signature = inspect.signature(node.layer.call)
    named = signature.bind(*node.args, **node.kwargs).arguments
    given = {**named, **named.get("kwargs", {})}
    if any(mask is not None for mask in keras.tree.flatten(given.get("mask"))):
        return "a call with `mask` has no int8 operator here; leave the mask out"
    usual = signature.parameters.get("training")
    if given.get("training") and not (usual and usual.default is True):  # as augmentations have it
        return "a call with training=True has no int8 form; leave `training` out"
    return None


def absorbed(node: Node, uses: Uses) -> list[Node]:
    """The calls behind this one that become part of it: a batch norm, a ReLU, both or none.

    A batch norm folds into a kernel without an activation, a ReLU into whatever takes one.
    """
    following = _absorbed_next(node, uses)
    return [] if following is None else [following, *absorbed(following, uses)]


def _absorbed_next(node: Node, uses: Uses) -> Node | None:
    rule, following = rule_of_node(node), uses.sole_consumer(node.output)
    if following is None or (rule.kernel and activation_of_node(node).name != "linear"):
        return None
    behind = rule_of_node(following)
    if isinstance(following.layer, kl.BatchNormalization):
        return following if rule.takes_batch_norm and behind.refused is None else None
    is_relu = behind.kernel is None and activation_of_node(following).fuses
    return following if rule.takes_relu and is_relu else None


def splits_activation(layer: keras.Operation) -> bool:
    """Whether a searched kernel has an activation that is an operator of its own in TFLite."""
    activation = activations.of_layer(layer)
    return kernel_kind(layer) is not None and activation.name != "linear" and not activation.fuses


# How entries are read.


def _read(entry: Entry, layer: keras.Operation, node: Node | None) -> Rule:
    if getattr(layer, "data_format", "channels_last") == "channels_first":
        why = "its channels are first; build the network with data_format='channels_last'"
        return Rule(channels=Channels.READS_WHOLE, refused=why)
    return entry if isinstance(entry, Rule) else entry(layer, node)


_HARMLESS = ("__init__", "get_config", "from_config")  # what a subclass may change


def _changes(kind: type, ancestor: type) -> str | None:
    """A method by which a user's subclass may compute something else than `ancestor` does."""
    for between in kind.__mro__[: kind.__mro__.index(ancestor)]:
        if not between.__module__.startswith("udc_tf."):
            for name, value in vars(between).items():
                if callable(value) and name not in _HARMLESS:
                    return name
    return None


def _is_keras_operation(layer: keras.Operation) -> bool:
    return type(layer).__module__.split(".")[0] == "keras"
