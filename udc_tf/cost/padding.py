"""How an Ethos-U fills kernels up with zeros before it codes them.

The NPU reads weights in blocks: output channels by the depth of its micro-block, input channels by
32 ("depth first"), or by 8 with the kernel's taps by 4 ("part kernel first"). Vela takes the order
with less filling. The zeros that fill a block are coded like any others: a pointwise convolution of
33 channels takes the place of one of 64.
"""

_DEPTH_FIRST, _PART_KERNEL, _TAPS = 32, 8, 4
_NARROW = 8
# Output channels that are coded together; a chip with two cores deals them out to both.
_OUTPUTS = {"ethos-u55-32": 4, "ethos-u65-512": 16}


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def is_narrow(channels: int) -> bool:
    """Whether a feature map has too few channels for bricks of 16: it is stored as it is.

    An activation behind such a kernel is then an operation of its own.
    """
    return channels < _NARROW


def outputs_together(accelerator: str) -> int:
    """Output channels are coded in multiples of this.

    >>> outputs_together("ethos-u55-128")
    8
    """
    return _OUTPUTS.get(accelerator, 8)


def padded_fan_in(inputs: int | None, taps: int, image: bool = True) -> int:
    """Weights that are coded for one output channel.

    Args:
        inputs: input channels; None for a depthwise convolution.
        taps: of the kernel.
        image: False for a dense layer, or a convolution whose output is a single position.

    >>> padded_fan_in(16, 9), padded_fan_in(64, 9), padded_fan_in(33, 1), padded_fan_in(None, 9)
    (192, 576, 64, 12)
    """
    if inputs is None:
        return round_up(taps, _TAPS)
    depth_first = round_up(inputs, _DEPTH_FIRST) * taps
    part_kernel = round_up(inputs, _PART_KERNEL) * round_up(taps, _TAPS)
    if image and (part_kernel <= depth_first or inputs <= _PART_KERNEL):
        return part_kernel
    return depth_first
