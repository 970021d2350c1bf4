"""Weights as look-up tables, for microcontrollers without an NPU: TFLM's own compression.

TFLM unpacks such a tensor with a DECODE operator into its arena before the layer runs. Each weight
is an index of as many bits as the tensor's number of different values needs. Tables must follow the
scales: one table per channel where there is one scale per channel. With one table for a tensor that
has a scale per channel, the pinned TFLM computes something else
(benchmarks/results/tflm_compression.json).
"""

import numpy as np

from udc_tf.export import tflite_file
from udc_tf.export.errors import ConversionError, ExportError

_KINDS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
_WIDEST = 7  # bits of an index
_OVERHEAD = 320  # bytes of a DECODE operator with its tensors in the file


def compress(content: bytes) -> bytes:
    """A .tflite with look-up tables for the weights that become smaller by them.

    Raises:
        ExportError: no tensor would become smaller, or TFLM's compressor is not installed.
    """
    try:
        from tflite_micro import compression
    except ImportError as error:
        raise ExportError(
            f"Look-up tables need the package tflite-micro: pip install tflite-micro. {error}"
        ) from error
    spec, wanted = compression.spec, []
    for index, axis, bits in worthwhile(content):
        mode = spec.PerTensor() if axis is None else spec.PerChannel(axis)
        wanted.append(spec.Tensor(0, index, [spec.LookUpTableCompression(bits, mode)]))
    if not wanted:
        raise ExportError(
            "No weight tensor becomes smaller with a look-up table: layers are small, or have too "
            "many different weights. Export without it."
        )
    return bytes(compression.compress(content, wanted))


def worthwhile(content: bytes) -> list[tuple[int, int | None, int]]:
    """(tensor, axis of its tables, bits of an index), for the weights that become smaller."""
    file, found = tflite_file.read(content), {}
    for operator in file.operators:
        if operator.kind not in _KINDS:
            continue
        index = operator.inputs[1]
        tensor = file.tensors[index]
        if tensor.data is None or tensor.data.dtype != np.int8:
            continue
        axis = tensor.quantized_axis if len(tensor.scales) > 1 else None
        rows = [tensor.data] if axis is None else np.moveaxis(tensor.data, axis, 0)
        values = max(len(np.unique(row)) for row in rows)
        bits = max(1, (values - 1).bit_length())
        coded = tensor.data.size * bits / 8 + len(rows) * values
        if bits <= _WIDEST and coded + _OVERHEAD < tensor.data.size:
            found[index] = (index, axis, bits)
    return list(found.values())


def check_equal(outputs: list[np.ndarray], golden: list[np.ndarray]) -> None:
    """Raises ConversionError unless the compressed network computes the same, bit by bit."""
    for ours, theirs in zip(outputs, golden, strict=True):
        if different := int(np.count_nonzero(ours != theirs)):
            largest = np.abs(ours.astype(int) - theirs).max()
            raise ConversionError(
                "TFLM computes something else with look-up tables, so they are not written. "
                f"Received: {different} of {ours.size} outputs differ, by up to {largest} steps"
            )
