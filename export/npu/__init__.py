"""An executor for Ethos-U55 command streams: what Vela wrote, run on the host with numpy.

It executes the Vela command stream and matches TFLite Micro bit for bit. It has not been compared
with silicon or with Arm's own models.
"""

from udc_tf.export.npu.errors import (
    AccumulatorOverflowError,
    CommandError,
    ContainerError,
    MemoryAccessError,
    NpuError,
    UnsupportedOperatorError,
    WeightStreamError,
    WorkLimitError,
)
from udc_tf.export.npu.network import NpuNetwork

__all__ = [
    "AccumulatorOverflowError",
    "CommandError",
    "ContainerError",
    "MemoryAccessError",
    "NpuError",
    "NpuNetwork",
    "UnsupportedOperatorError",
    "WeightStreamError",
    "WorkLimitError",
]
