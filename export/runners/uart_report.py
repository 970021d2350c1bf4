"""Reads what the firmware prints on its UART."""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from udc_tf.export.npu import NpuNetwork
from udc_tf.export.runners.base import RunFailedError, item_shape
from udc_tf.export.runners.firmware import Exit

_OUTPUT = re.compile(r"^CASE (\d+) OUTPUT (\d+) ([0-9a-f]+)$", re.M)
_CYCLES = re.compile(r"^CASE (\d+) CYCLES (\d+)$", re.M)
_MISMATCH = re.compile(r"^CASE (\d+) MISMATCH (.*)$", re.M)
_EXIT = re.compile(r"^EXIT (\d+)$", re.M)


@dataclasses.dataclass(frozen=True)
class Report:
    """A parsed UART log.

    Attributes:
        passed: True only if the firmware said PASS: a simulator's own exit status says nothing.
        mismatch: where a case first differs from its golden output, or None.
        cycles: NPU cycles of the first case, or None if they were not counted.
    """

    passed: bool
    outputs: list[np.ndarray]
    cycles: int | None
    mismatch: str | None


def parse_log(log: str, network: NpuNetwork, cases: int) -> Report:
    """Parses `log`, the firmware's UART output for `cases` inputs.

    Raises:
        RunFailedError: the log is incomplete, or says that the NPU is absent, wrong or failed.
    """
    log = log.replace("\r", "")
    end = _EXIT.search(log)
    if end is None:
        raise RunFailedError(f"the firmware did not come to its end. Its last words: {_tail(log)}")
    code = int(end.group(1))
    if code not in (Exit.PASS, Exit.FAIL):
        raise RunFailedError(f"the firmware ended with code {code}: {_tail(log[: end.start()])}")
    found = {(int(m[1]), int(m[2])): bytes.fromhex(m[3]) for m in _OUTPUT.finditer(log)}
    cycles = {int(m[1]): int(m[2]) for m in _CYCLES.finditer(log)}
    mismatch = _MISMATCH.search(log)
    passed = re.search(r"^PASS$", log, re.M) is not None
    if passed != (code == Exit.PASS) or passed == (mismatch is not None):
        raise RunFailedError(f"the firmware contradicts itself: {_tail(log)}")
    return Report(
        passed=passed,
        outputs=_outputs(found, network, cases),
        cycles=cycles.get(0) or None,
        mismatch=f"case {mismatch[1]}, {mismatch[2]}" if mismatch else None,
    )


def _outputs(
    found: dict[tuple[int, int], bytes], network: NpuNetwork, cases: int
) -> list[np.ndarray]:
    outputs = []
    for number, info in enumerate(network.outputs):
        rows: list[bytes] = []
        for case in range(cases):
            row = found.get((case, number))
            if row is None or len(row) != info.nbytes:
                raise RunFailedError(
                    f"output {number} of case {case} should have {info.nbytes} bytes. "
                    f"Received: {None if row is None else len(row)}"
                )
            rows.append(row)
        shape = (cases, *item_shape(info.shape))
        outputs.append(np.frombuffer(b"".join(rows), info.dtype).reshape(shape))
    return outputs


def _tail(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-500:] or "none"
