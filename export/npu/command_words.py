"""The command words of an Ethos-U55 or U65: their numbers, their names, and a strict decoder."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from udc_tf.export.npu.faults import CommandError

OPERATIONS = {
    0: "OP_STOP",
    1: "OP_IRQ",
    2: "OP_CONV",
    3: "OP_DEPTHWISE",
    5: "OP_POOL",
    6: "OP_ELEMENTWISE",
    16: "OP_DMA_START",
    17: "OP_DMA_WAIT",
    18: "OP_KERNEL_WAIT",
    19: "OP_PMU_MASK",
}

# Registers set by the 16-bit parameter of the command word itself.
SHORT_REGISTERS = {
    256: "IFM_PAD_TOP",
    257: "IFM_PAD_LEFT",
    258: "IFM_PAD_RIGHT",
    259: "IFM_PAD_BOTTOM",
    260: "IFM_DEPTH_M1",
    261: "IFM_PRECISION",
    263: "IFM_UPSCALE",
    265: "IFM_ZERO_POINT",
    266: "IFM_WIDTH0_M1",
    267: "IFM_HEIGHT0_M1",
    268: "IFM_HEIGHT1_M1",
    269: "IFM_IB_END",
    271: "IFM_REGION",
    273: "OFM_WIDTH_M1",
    274: "OFM_HEIGHT_M1",
    275: "OFM_DEPTH_M1",
    276: "OFM_PRECISION",
    277: "OFM_BLK_WIDTH_M1",
    278: "OFM_BLK_HEIGHT_M1",
    279: "OFM_BLK_DEPTH_M1",
    280: "OFM_ZERO_POINT",
    282: "OFM_WIDTH0_M1",
    283: "OFM_HEIGHT0_M1",
    284: "OFM_HEIGHT1_M1",
    287: "OFM_REGION",
    288: "KERNEL_WIDTH_M1",
    289: "KERNEL_HEIGHT_M1",
    290: "KERNEL_STRIDE",
    291: "PARALLEL_MODE",  # of an Ethos-U65: one core or two
    292: "ACC_FORMAT",
    293: "ACTIVATION",
    294: "ACTIVATION_MIN",
    295: "ACTIVATION_MAX",
    296: "WEIGHT_REGION",
    297: "SCALE_REGION",
    301: "AB_START",
    303: "BLOCKDEP",
    304: "DMA0_SRC_REGION",
    305: "DMA0_DST_REGION",
    384: "IFM2_BROADCAST",
    385: "IFM2_SCALAR",
    389: "IFM2_PRECISION",
    393: "IFM2_ZERO_POINT",
    394: "IFM2_WIDTH0_M1",
    395: "IFM2_HEIGHT0_M1",
    396: "IFM2_HEIGHT1_M1",
    397: "IFM2_IB_START",
    399: "IFM2_REGION",
}

# Registers set by a 32-bit payload word; the parameter holds address bits 32+ or a shift.
LONG_REGISTERS = {
    0: "IFM_BASE0",
    1: "IFM_BASE1",
    2: "IFM_BASE2",
    3: "IFM_BASE3",
    4: "IFM_STRIDE_X",
    5: "IFM_STRIDE_Y",
    6: "IFM_STRIDE_C",
    16: "OFM_BASE0",
    17: "OFM_BASE1",
    18: "OFM_BASE2",
    19: "OFM_BASE3",
    20: "OFM_STRIDE_X",
    21: "OFM_STRIDE_Y",
    22: "OFM_STRIDE_C",
    32: "WEIGHT_BASE",
    33: "WEIGHT_LENGTH",
    34: "SCALE_BASE",
    35: "SCALE_LENGTH",
    36: "OFM_SCALE",
    37: "OPA_SCALE",
    38: "OPB_SCALE",
    48: "DMA0_SRC",
    49: "DMA0_DST",
    50: "DMA0_LEN",
    128: "IFM2_BASE0",
    129: "IFM2_BASE1",
    130: "IFM2_BASE2",
    131: "IFM2_BASE3",
    132: "IFM2_STRIDE_X",
    133: "IFM2_STRIDE_Y",
    134: "IFM2_STRIDE_C",
    144: "WEIGHT1_BASE",  # what the second core of an Ethos-U65 reads
    145: "WEIGHT1_LENGTH",
    146: "SCALE1_BASE",
    147: "SCALE1_LENGTH",
}

_SHORT_COMMANDS = OPERATIONS | SHORT_REGISTERS
_PAYLOAD = 1 << 14
_RESERVED = 0xBC00  # bits 10-13 and 15: always zero in a command word


class Position(NamedTuple):
    """Where a command stands, for messages: "command 12 (OP_CONV, byte 0x148)"."""

    index: int  # type: ignore[assignment]  # also a method of tuples, which nobody calls here
    byte: int
    name: str

    def __str__(self) -> str:
        return f"command {self.index} ({self.name}, byte {self.byte:#x} of the stream)"


class Command(NamedTuple):
    """One decoded command: an operation, or a register and its new value."""

    position: Position
    name: str
    param: int
    payload: int | None


def decode(words: np.ndarray) -> list[Command]:
    """Decodes a command stream up to its OP_STOP, which has to be its end.

    Args:
        words: the stream as little-endian 32-bit words.

    Returns:
        The commands in order, OP_STOP last.

    Raises:
        CommandError: a word is no command of theirs, or the stream has no end.

    Example:
        >>> [c.name for c in decode(np.array([0x0002_0104, 0xFFFF_0000], np.uint32))]
        ['IFM_DEPTH_M1', 'OP_STOP']
    """
    commands: list[Command] = []
    values = words.tolist()
    at = 0
    while at < len(values):
        word = values[at]
        code, param = word & 0x3FF, word >> 16
        names = LONG_REGISTERS if word & _PAYLOAD else _SHORT_COMMANDS
        name = names.get(code)
        position = Position(len(commands), 4 * at, name or f"code {code:#x}")
        if name is None or word & _RESERVED:
            raise CommandError(
                f"{position}: no such command on an Ethos-U55 or U65. Received: word {word:#010x}"
            )
        payload = None
        if word & _PAYLOAD:
            at += 1
            if at == len(values):
                raise CommandError(f"{position}: the stream ends before its 32-bit payload")
            payload = values[at]
        at += 1
        commands.append(Command(position, name, param, payload))
        if name == "OP_STOP":
            if at != len(values):
                raise CommandError(f"{position}: {len(values) - at} words follow the stop command")
            return commands
    raise CommandError(f"the command stream of {len(values)} words ends without OP_STOP")
