"""The operators of a network in the order in which they run, and the tensors between them.

What working memory and cycles depend on: which tensors are alive at the same time, how large they
are, and what each operator does with them. Batch norms and activations that become part of another
operator, and what only gives a tensor another shape, are no steps of their own.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from udc_tf.cost.priced_network import FixedPart, PricedLayer, Step, Tensor
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.layer_rules import absorbed, kernel_kind, rule_of_node
from udc_tf.graph.trace import Graph, Node, TensorRef
from udc_tf.graph.uses import Uses
from udc_tf.layers.choice import Mix

_IN_PLACE = ("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM")


def schedule(
    graph: Graph,
    channels: ChannelGroups,
    layers: Sequence[PricedLayer],
    parts: Sequence[FixedPart],
) -> tuple[tuple[Step, ...], tuple[Tensor, ...]]:
    """The steps of a network, and its tensors; empty if the size of an image is not known."""
    made = _Schedule(graph, channels, layers, parts)
    if any(tensor.positions is None for tensor in made.tensors):
        return (), ()
    made.order()
    return tuple(made.steps), tuple(made.finished())


class _Schedule:
    def __init__(
        self,
        graph: Graph,
        channels: ChannelGroups,
        layers: Sequence[PricedLayer],
        parts: Sequence[FixedPart],
    ):
        self.steps: list[Step] = []
        self.tensors: list[Tensor] = []
        self._channels = channels
        self._uses = Uses.of(graph)
        self._tensor_of: dict[int, int] = {}
        self._layers = {layer.name: i for i, layer in enumerate(layers)}
        self._parts = {part.name: i for i, part in enumerate(parts)}
        for ref in keras.tree.flatten(graph.inputs):
            self._new(ref, outside=True)
        folded = {id(n) for node in graph.nodes for n in absorbed(node, self._uses)}
        for node in graph.nodes:
            self._visit(node, id(node) in folded, parts)
        self._outputs = [self._tensor_of[ref.id] for ref in keras.tree.flatten(graph.outputs)]
        for index in self._outputs:
            self._change(index, bricks=False, outside=True)

    def _new(self, ref: TensorRef, outside: bool = False) -> int:
        spatial = ref.shape[1:-1]
        known = [n for n in spatial if n is not None]
        self.tensors.append(
            Tensor(
                positions=math.prod(known) if len(known) == len(spatial) else None,
                channels=self._channels.map_of(ref),
                bricks=not outside,
                outside=outside,
            )
        )
        self._tensor_of[ref.id] = len(self.tensors) - 1
        return len(self.tensors) - 1

    def _change(self, index: int, **values: Any) -> None:
        self.tensors[index] = dataclasses.replace(self.tensors[index], **values)

    def _visit(self, node: Node, folded: bool, parts: Sequence[FixedPart]) -> None:
        inputs = [self._tensor_of[ref.id] for ref in node.inputs if ref.id in self._tensor_of]
        if isinstance(node.layer, Mix):
            self._tensor_of[node.output.id] = self._of_branches(node)
            return
        is_kernel = kernel_kind(node.layer) is not None
        part = None if is_kernel else parts[self._parts[node.name]]
        operator = rule_of_node(node).operator if part is None else part.price.operator
        if folded or (part is not None and operator is None):
            for ref in keras.tree.flatten(node.outputs):
                self._tensor_of[ref.id] = inputs[0]
            if len(node.output.shape) != len(node.inputs[0].shape):
                self._change(inputs[0], bricks=False)  # read in another shape, so plainly laid out
            return
        for ref in keras.tree.flatten(node.outputs):
            output = self._new(ref)
        self.steps.append(
            Step(
                name=node.name,
                operator=operator or "",
                inputs=tuple(inputs),
                output=output,
                layer=self._layers[node.name] if is_kernel else None,
                part=None if is_kernel else self._parts[node.name],
                image=_image(node.output),
                source=_image(node.inputs[0]),
                gates=node.gates,
            )
        )

    def _of_branches(self, mix: Node) -> int:
        """A choice gives what its branch gives; branches that give its input are not asked."""
        found = [self._tensor_of[ref.id] for ref in mix.inputs]
        made = [s.output for s in self.steps if any(g.choice == mix.name for g in s.gates)]
        inside = [index for index in found if index in made] or found
        for index in inside[1:]:
            self.steps = [
                dataclasses.replace(s, output=inside[0]) if s.output == index else s
                for s in self.steps
            ]
        return inside[0]

    def order(self) -> None:
        """As Vela does: from the outputs back, what an operator reads last comes first."""
        makers: dict[int, list[int]] = {}
        for i, step in enumerate(self.steps):
            makers.setdefault(step.output, []).append(i)
        done: dict[int, None] = {}
        waiting = [(i, False) for t in reversed(self._outputs) for i in makers.get(t, ())]
        while waiting:
            i, ready = waiting.pop()
            if ready:
                done[i] = None
            elif i not in done:
                before = [m for t in self.steps[i].inputs for m in makers.get(t, ())]
                waiting += [(i, True), *((m, False) for m in before if m not in done)]
        self.steps = [self.steps[i] for i in done]

    def finished(self) -> list[Tensor]:
        """The tensors with the steps between which each is alive."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, step in enumerate(self.steps):
            first.setdefault(step.output, i)
            last[step.output] = max(last.get(step.output, i), i)
            for index in step.inputs:
                first.setdefault(index, 0)
                last[index] = i
        for index in self._outputs:
            last[index] = max(len(self.steps) - 1, 0)
        self._concatenate(first)
        return [
            dataclasses.replace(t, first=first.get(i, 0), last=last.get(i, -1))
            for i, t in enumerate(self.tensors)
        ]

    def _concatenate(self, first: dict[int, int]) -> None:
        """Tensors that are only lined up behind each other are made in their final place."""
        users = np.zeros(len(self.tensors), int)
        for step in self.steps:
            for index in set(step.inputs):
                users[index] += 1
        for step in self.steps:
            if step.operator == "CONCATENATION":
                inside = [i for i in step.inputs if users[i] == 1 and not self.tensors[i].outside]
                for index in inside:
                    first[step.output] = min(first[step.output], first[index])
                    self._change(index, part_of_another=True)


def in_place(step: Step, tensors: Sequence[Tensor], now: int) -> bool:
    """Whether an operator may write over what it reads for the last time."""
    output = tensors[step.output]
    return step.operator in _IN_PLACE and any(
        tensors[i].last == now
        and not tensors[i].outside
        and tensors[i].positions == output.positions
        and len(tensors[i].channels) == len(output.channels)
        for i in step.inputs
    )


def within_the_last(step: Step, last: Step) -> bool:
    """Whether an Ethos-U85 runs an operator within the one before, a convolution that it reads."""
    return step.operator in _IN_PLACE and last.layer is not None and last.output in step.inputs


def _image(ref: TensorRef) -> tuple[int, int]:
    """Height and width; one-dimensional data are images of one row."""
    spatial = [n or 0 for n in ref.shape[1:-1]]
    height, width = [1, 1, *spatial][-2:]
    return height, width
