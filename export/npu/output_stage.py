"""The last stage of every operation: zero point, clamp, look-up table, write."""

from __future__ import annotations

import numpy as np

from udc_tf.export.npu import memory
from udc_tf.export.npu.faults import AccumulatorOverflowError, NpuError
from udc_tf.export.npu.operations import Block
from udc_tf.export.npu.streams import Span

Stores = dict[str, np.ndarray]  # byte stores [batch, bytes]; constant ones have batch 1


def finish(operation: Block, values: np.ndarray, stores: Stores) -> None:
    """Writes scaled `values` (int64, [batch, y, x, channel]) as the operation's OFM."""
    ofm, activation = operation.ofm, operation.activation
    if ofm.dtype.itemsize == 4 and activation.clip is None:
        # A plain 32-bit output takes neither zero point nor clamp.
        check_fits(values, 32, "a 32-bit output")
    else:
        bounds = np.iinfo(activation.clip or ofm.dtype)
        low, high = max(activation.low, bounds.min), min(activation.high, bounds.max)
        values = np.clip(values + ofm.zero_point, low, max(low, high))
    if operation.table is not None:
        values = _look_up(operation, operation.table, values, stores)
    memory.write(stores[ofm.region.store], ofm, values)


def check_fits(values: np.ndarray, bits: int, what: str) -> None:
    """Raises if a value needs more than `bits` bits."""
    if values.size and (values.max() >= 1 << bits - 1 or values.min() < -(1 << bits - 1)):
        raise AccumulatorOverflowError(
            f"{what} overflows its {bits} bits. Received: {int(values.min())} to "
            f"{int(values.max())}"
        )


def shared_bytes(span: Span, stores: Stores) -> bytes:
    """The bytes of `span`, which have to be the same for every input of the batch.

    Weights, scales and tables do not depend on the input; if they do the file is damaged, and
    running the batch as one would be wrong.
    """
    rows = stores[span.store][:, span.start : span.start + span.length]
    if rows.shape[0] > 1 and not (rows == rows[:1]).all():
        raise NpuError(f"the {span.name} depend on the network's input")
    return rows[0].tobytes()


def _look_up(operation: Block, span: Span, values: np.ndarray, stores: Stores) -> np.ndarray:
    ofm, clip = operation.ofm, operation.activation.clip
    table = np.frombuffer(shared_bytes(span, stores), ofm.dtype)
    signed = np.iinfo(clip or ofm.dtype).min < 0
    index = values + 128 if signed else values
    if index.size and (index.min() < 0 or index.max() > 255):
        raise NpuError(
            f"a look-up table has 256 entries. Received: index {int(index.min())} to "
            f"{int(index.max())}"
        )
    return table[index]
