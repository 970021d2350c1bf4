"""What the rulebook says about a kind of layer: operator, channels, range, price."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from udc_tf.graph.affine import Affine
from udc_tf.graph.trace import Node


class Channels(enum.Enum):
    """What a layer does to the channels of its inputs."""

    OPENS = "makes channels of its own"
    REPEATS = "gives each input channel one or several outputs"
    PASSES = "works channel by channel"
    TIES = "joins equal channels of several inputs"
    APPENDS = "lines the channels of its inputs up"
    RESHAPES = "lays positions and channels out anew"
    READS_WHOLE = "reads all channels at once"


class Range(enum.Enum):
    """Where the 8-bit range of a layer's output comes from."""

    NEW = "its own"
    KEPT = "that of its input"
    JOINED = "one with all its inputs"


@dataclasses.dataclass(frozen=True)
class Price:
    """What the NPU stores and does for a layer without a searched kernel.

    Attributes:
        operator: TFLite's operator that runs; None if none does. What it takes in bytes is for the
            size model to say.
        weights: constants per channel, `bits` each.
        macs: multiply-accumulates per channel.
        commands: bytes per channel of small operations, of which all but an Ethos-U85 need many.
        scales: scales per channel; None means one where there are weights.
        on_vector: whether it is one of many short operations on a vector: the steps of a layer over
            time.
    """

    operator: str | None = None
    weights: float = 0.0
    bits: float = 8.0
    macs: float = 0.0
    commands: float = 0.0
    scales: float | None = None
    on_vector: bool = False


def free(node: Node) -> Price:
    """The price of what runs as part of something else."""
    return Price()


def one(operator: str) -> Callable[[Node], Price]:
    """The price of one operator, whatever the call."""
    return lambda node: Price(operator)


@dataclasses.dataclass(frozen=True)
class Rule:
    """What one kind of layer becomes.

    Attributes:
        operator: TFLite's; None if nothing is left of the layer.
        channels: what it does to channel groups.
        range: of its output.
        kernel: the kind of its kernel, which can be searched; None if it has none.
        unsearched: why its kernel can be exported but not searched; None if it can be.
        takes_batch_norm: whether a batch norm behind it folds into its kernel.
        takes_relu: whether a ReLU behind it becomes part of it.
        price: of one call, for layers without a kernel.
        affine: what a call does that multiplies channels with factors and adds offsets; else None.
        refused: why a network with it cannot be exported; None if it can.
    """

    operator: str | None = None
    channels: Channels = Channels.PASSES
    range: Range = Range.NEW
    kernel: str | None = None
    unsearched: str | None = None
    takes_batch_norm: bool = False
    takes_relu: bool = False
    price: Callable[[Node], Price] = free
    affine: Callable[[Node], Affine] | None = None
    refused: str | None = None


# An entry of the rulebook: a rule, or what makes one of the layer and, if known, its call.
Entry = Rule | Callable[[Any, Node | None], Rule]
