"""The rulebook's entries for layers over time, of which it sees only what is not written out."""

from typing import Any

from udc_tf.graph import unrolling
from udc_tf.graph.refused_layers import missing, refused
from udc_tf.graph.rule import Entry, Rule
from udc_tf.graph.trace import Node


def _left_as_it_is(layer: Any, node: Node | None) -> Rule:
    """Why `trace` has not written the layer out."""
    kind = type(layer).__name__
    if node is None:
        return missing(kind)
    why = unrolling.refusal(layer, node.inputs[0].shape)
    return refused(why or "a mask or a first state has no int8 form here; leave it out", kind)


LAYERS: dict[type, Entry] = dict.fromkeys(unrolling.KINDS, _left_as_it_is)
