"""An executor for command streams of the Ethos-U55 and U65, run on the host with numpy.

It executes the Vela command stream and matches TFLite Micro bit for bit, but for what Vela itself
computes otherwise: its multipliers of MUL, and of a FULLY_CONNECTED with one scale for all weights,
come from products in float32, TFLM's in float64, which puts about one output in a million off by
one. `udc_tf.export.dense_scale` and `product_scale` keep nearly all of our own clear of that. Arm's
own TFLM and driver take it for an NPU (`runners/arm.py`); it has not been compared with silicon or
with Arm's models.

A file may come from anywhere: whatever it holds, loading and running it end in a result or in an
`NpuError`. Before anything is allocated or computed, sizes are held to limits that no network for
an Ethos-U55 comes near: 64 MiB for the file's buffers, for the arena, and for inputs and outputs;
half a million command words; 16 million weights in a stream; 512 MiB of intermediate results (11
million elements of one operation's input and output); and `work_limit`, about 50 seconds per
inference. benchmarks/fuzz.py tries to prove this wrong.
"""

from udc_tf.export.npu.faults import (
    AccumulatorOverflowError,
    CommandError,
    ContainerError,
    MemoryAccessError,
    NpuError,
    UnsupportedAcceleratorError,
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
    "UnsupportedAcceleratorError",
    "UnsupportedOperatorError",
    "WeightStreamError",
    "WorkLimitError",
]
