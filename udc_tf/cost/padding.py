"""How an Ethos-U fills kernels up with zeros before it codes them.

The NPU reads weights in blocks: output channels by the depth of its micro-block, input channels by
many ("depth first"), or by few with the kernel's taps in groups ("part kernel first"). The zeros
that fill a block are coded like any others: on an Ethos-U55 a pointwise convolution of 33 channels
takes the place of one of 64.
"""

import dataclasses

from udc_tf.cost.accelerators import family

_NARROW = 8


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def is_narrow(channels: int) -> bool:
    """Whether a feature map has too few channels for bricks of 16: it is stored as it is.

    An activation behind such a kernel is then an operation of its own.
    """
    return channels < _NARROW


@dataclasses.dataclass(frozen=True)
class Padding:
    """The blocks of an accelerator; the defaults are those of most Ethos-U55 and U65.

    Attributes:
        depth_first: input channels of a block that has a tap by itself.
        part_kernel, taps: input channels and taps of a block that has several of them.
        rest: where Vela compares both orders, taps beyond whole blocks count as at least so many,
            even if there are none; None: as a whole block.
        always: up to so many input channels it does not compare: part kernel first.
        outputs: output channels of a block.
        dense_outputs: the same where the output has a single position.
        depthwise_outputs, depthwise_taps, depthwise_more: of a depthwise convolution's blocks, and
            the taps that are added to each of them.
        records: scale records are written in multiples of this.
    """

    depth_first: int = 32
    part_kernel: int = 8
    taps: int = 4
    rest: int | None = None
    always: int = 8
    outputs: int = 8
    dense_outputs: int = 8
    depthwise_outputs: int = 8
    depthwise_taps: int = 4
    depthwise_more: int = 0
    records: int = 1

    @classmethod
    def of(cls, accelerator: str) -> "Padding":
        """By Vela's name.

        >>> Padding.of("ethos-u55-128").outputs, Padding.of("ethos-u85-512").depth_first
        (8, 64)
        """
        macs = int(accelerator.rpartition("-")[2])
        if family(accelerator) != "ethos-u85":
            # A chip with two cores deals its output channels out to both.
            outputs = {"ethos-u55-32": 4, "ethos-u65-512": 16}.get(accelerator, 8)
            return cls(outputs=outputs, dense_outputs=outputs, depthwise_outputs=outputs)
        dense_outputs = max(macs // 32, 8)
        return cls(
            depth_first=64,
            part_kernel=16,
            taps=5,
            rest=2,
            always=0,
            outputs=min(dense_outputs, 16),
            dense_outputs=dense_outputs,
            depthwise_outputs=16,
            depthwise_taps=10,
            depthwise_more=0 if macs <= 256 else 2 if macs == 512 else 6,
            records=16,
        )

    def fan_in(self, inputs: int | None, taps: int, image: bool = True) -> int:
        """Weights that are coded for one output channel.

        Args:
            inputs: input channels; None for a depthwise convolution.
            taps: of the kernel.
            image: False for a dense layer, or a convolution whose output is a single position.

        >>> u55, u85 = Padding(), Padding.of("ethos-u85-256")
        >>> [u55.fan_in(16, 9), u55.fan_in(64, 9), u55.fan_in(33, 1), u55.fan_in(None, 9)]
        [192, 576, 64, 12]
        >>> [u85.fan_in(16, 9), u85.fan_in(64, 9), u85.fan_in(33, 1), u85.fan_in(None, 9)]
        [160, 640, 64, 10]
        """
        if inputs is None:
            blocks = -(-taps // self.depthwise_taps)
            return blocks * (self.depthwise_taps + self.depthwise_more)
        if self._part_kernel_first(inputs, taps, image):
            return round_up(inputs, self.part_kernel) * round_up(taps, self.taps)
        return round_up(inputs, self.depth_first) * taps

    def _part_kernel_first(self, inputs: int, taps: int, image: bool) -> bool:
        """Vela takes the order that should keep the multipliers busiest."""
        deep, shallow = (round_up(inputs, n) for n in (self.depth_first, self.part_kernel))
        compared = round_up(taps, self.taps)
        if self.rest is not None:
            beyond = taps % self.taps
            compared = taps - beyond + max(beyond, self.rest)
        return image and (shallow * compared <= deep * taps or inputs <= self.always)

    def padded_outputs(self, outputs: int, image: bool = True, depthwise: bool = False) -> int:
        """Output channels that are coded.

        >>> Padding.of("ethos-u85-256").padded_outputs(20)
        24
        """
        return round_up(outputs, self._together(image, depthwise))

    def filling(self, image: bool = True, depthwise: bool = False) -> float:
        """Channels that are added to the outputs on average."""
        return (self._together(image, depthwise) - 1) / 2

    def _together(self, image: bool, depthwise: bool) -> int:
        if depthwise:
            return self.depthwise_outputs
        return self.outputs if image else self.dense_outputs


ETHOS_U55 = Padding()
