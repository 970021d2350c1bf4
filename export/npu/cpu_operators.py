"""The few operators outside the NPU that the executor runs itself, because they are exact anywhere.

Everything else that Vela leaves to the CPU is refused by name: a result that skipped an operator
would look like one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from udc_tf.export.npu.container import CpuOperator, TensorInfo
from udc_tf.export.npu.faults import UnsupportedOperatorError
from udc_tf.export.npu.flatbuffer import Table

_COPIES = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
_WINDOW_LIMIT = 4096
_PER_OPERATOR = 10**6
_PER_COMPARISON = 40


@dataclasses.dataclass(frozen=True)
class CpuFunction:
    """What an operator does to a batch of its first input, [batch, ...] to [batch, ...].

    Attributes:
        work: cost for one item, in the measure of `udc_tf.export.npu.operations`.
    """

    run: Callable[[np.ndarray], np.ndarray]
    work: int


def function(operator: CpuOperator, tensors: tuple[TensorInfo, ...]) -> CpuFunction:
    """How the executor runs `operator`.

    Raises:
        UnsupportedOperatorError: the executor does not have it.
    """
    if operator.inputs and len(operator.outputs) == 1:
        source, target = tensors[operator.inputs[0]], tensors[operator.outputs[0]]
        if source.dtype == target.dtype:
            if operator.name in _COPIES and source.nbytes == target.nbytes:
                return CpuFunction(lambda batch: batch, 10 * source.nbytes + _PER_OPERATOR)
            if operator.name == "MAX_POOL_2D" and operator.options is not None:
                return _max_pool(operator, operator.options, source, target)
    raise UnsupportedOperatorError(
        f"operator {operator.index} ({operator.name}) runs on the CPU, and the executor does not "
        f"have it (it has {', '.join(_COPIES)} and MAX_POOL_2D): change the network so that Vela "
        "places it on the NPU (`vela --supported-ops-report` lists the constraints)"
    )


def _max_pool(
    operator: CpuOperator, options: Table, source: TensorInfo, target: TensorInfo
) -> CpuFunction:
    stride = int(options.scalar(2, "<i", 0)), int(options.scalar(1, "<i", 0))
    size = int(options.scalar(4, "<i", 0)), int(options.scalar(3, "<i", 0))
    same = int(options.scalar(0, "<b", 0)) == 0
    fits = (
        len(source.shape) == len(target.shape) == 4
        and source.shape[0] == target.shape[0] == 1
        and source.shape[3] == target.shape[3]
        and source.dtype.kind in "iu"
        and min(*source.shape, *target.shape) > 0
    )
    sane = min(*stride, *size) > 0 and max(*stride, *size) <= _WINDOW_LIMIT
    if not fits or not sane or int(options.scalar(5, "<b", 0)):
        raise UnsupportedOperatorError(
            f"operator {operator.index} (MAX_POOL_2D) with window {size}, strides {stride} and "
            f"shapes {source.shape} -> {target.shape} of {source.dtype} is not one the executor "
            "runs"
        )
    padding = [(0, 0)]
    for axis in (1, 2):
        covered = (target.shape[axis] - 1) * stride[axis - 1] + size[axis - 1]
        missing = max(covered - source.shape[axis], 0) if same else 0
        if covered - missing > source.shape[axis] or missing >= size[axis - 1]:
            raise UnsupportedOperatorError(
                f"operator {operator.index} (MAX_POOL_2D) cannot give {target.shape} from "
                f"{source.shape}"
            )
        padding.append((missing // 2, missing - missing // 2))
    padding.append((0, 0))
    lowest = np.iinfo(source.dtype).min

    def pool(batch: np.ndarray) -> np.ndarray:
        padded = np.pad(batch, padding, constant_values=lowest)
        windows = np.lib.stride_tricks.sliding_window_view(padded, size, (1, 2))
        rows, columns = target.shape[1:3]
        return windows[:, :: stride[0], :: stride[1]][:, :rows, :columns].max((-1, -2))

    comparisons = math.prod(target.shape) * math.prod(size)
    return CpuFunction(pool, _PER_COMPARISON * comparisons + _PER_OPERATOR)
