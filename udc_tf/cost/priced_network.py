"""A network as the costs see it: its decisions, its kernels, and the rest."""

import dataclasses
import functools
import math

from udc_tf.graph.channel_groups import FIXED, ChannelGroup, ChannelMap
from udc_tf.graph.layer_rules import Price
from udc_tf.graph.trace import Gate
from udc_tf.layers.layer_options import LayerOptions


@dataclasses.dataclass(frozen=True)
class Decision:
    """One categorical variable: `options[k]` is taken with probability pi[k]."""

    kind: str  # "width", "bits", "sparsity", "kernel" or "choice"
    subject: str  # the channel group, layer or choice it is about
    options: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.subject}"


@dataclasses.dataclass(frozen=True)
class PricedLayer:
    """A layer with a kernel, as the costs see it.

    Attributes:
        inputs: None: each output channel reads one input channel.
        is_first: it reads what the network is given.
    """

    name: str
    inputs: ChannelMap | None
    outputs: ChannelMap
    kernel_size: tuple[int, ...]
    positions: int | None
    options: LayerOptions
    gates: tuple[Gate, ...] = ()
    is_first: bool = False

    @property
    def taps(self) -> int:
        return math.prod(self.kernel_size)


@dataclasses.dataclass(frozen=True)
class FixedPart:
    """What costs something but is not searched.

    Attributes:
        outputs: its channels; what it costs per channel follows the active ones.
        price: by the rulebook of layers.
        constants: weights of a layer that is not known, in 8 bits each.
        commands: bytes of small operations, of which all but an Ethos-U85 need many.
    """

    name: str
    outputs: ChannelMap
    price: Price
    constants: int = 0
    commands: float = 0.0
    gates: tuple[Gate, ...] = ()


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor between operators.

    Attributes:
        positions: height times width; None if that is not known.
        bricks: whether its channels lie in bricks of 16; else plainly one behind the other.
        outside: an input or an output of the network.
        part_of_another: it is made in its place inside a concatenated tensor.
        first, last: the steps between which it is alive.
    """

    positions: int | None
    channels: ChannelMap
    bricks: bool = True
    outside: bool = False
    part_of_another: bool = False
    first: int = 0
    last: int = -1


@dataclasses.dataclass(frozen=True)
class Step:
    """An operator in the order in which operators run.

    Attributes:
        operator: TFLite's name of it.
        inputs, output: numbers of tensors.
        layer, part: its number among `Plan.layers`, or among `Plan.fixed`.
        image, source: height and width of what it makes and of what it reads.
    """

    name: str
    operator: str
    inputs: tuple[int, ...]
    output: int
    layer: int | None
    part: int | None
    image: tuple[int, int]
    source: tuple[int, int]
    gates: tuple[Gate, ...] = ()


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that the search decides, prices and leaves alone.

    `steps` and `tensors` say in which order the network runs; they are empty where image sizes are
    not known or the model is subclassed.
    """

    groups: tuple[ChannelGroup, ...]
    widths: dict[int, tuple[int, ...]]  # channels of each option, for groups that are searched
    decisions: tuple[Decision, ...]
    layers: tuple[PricedLayer, ...]
    fixed: tuple[FixedPart, ...]
    left_out: dict[str, str]  # name -> why it is not searched
    steps: tuple[Step, ...] = ()
    tensors: tuple[Tensor, ...] = ()

    def decision_index(self, kind: str, subject: str) -> int | None:
        return self._indices.get((kind, subject))

    @functools.cached_property
    def _indices(self) -> dict[tuple[str, str], int]:
        return {(d.kind, d.subject): i for i, d in enumerate(self.decisions)}

    def group_of(self, channels: ChannelMap) -> list[int]:
        return sorted(set(channels.group.tolist()) - {FIXED})
