"""Arm's inference runner: where it is installed, where it looks for its data, and what it prints.

It is an application of Arm's ML evaluation kit for Corstone-300: TFLite Micro, the Ethos-U driver
and a main function that takes network and inputs from memory and leaves its outputs there. Arm
publishes it in the package `mlia-ethos-u`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from udc_tf.export.npu.container import Container
from udc_tf.export.runners.base import (
    RunFailedError,
    RunnerUnavailableError,
    check_inputs,
    item_shape,
)

PACKAGE = "mlia-ethos-u"
_FILE = re.compile(r"/inference_runner-sse-300-[^/]*-tflm-ethos-U55-[^/]*/[^/]*\.axf$")

# Where this build of it expects its data.
MODEL_ADDRESS, INPUTS_ADDRESS, OUTPUTS_ADDRESS = 0x90000000, 0x92000000, 0x93000000
_MODEL_LIMIT, _TENSORS_LIMIT = 32 << 20, 16 << 20
ARENA_BYTES = 2 << 20  # for the network's tensors and what TFLM keeps beside them

_ARENA = re.compile(r"^INFO - Activation buffer \(a\.k\.a tensor arena\) size used: (\d+)$", re.M)
_OPERATOR = re.compile(r"^INFO - \s*(Operator \d+: .*)$", re.M)
_COUNTER = re.compile(r"^INFO - (NPU [A-Z0-9_]+: \d+ (?:cycles|beats))$", re.M)
_CYCLES = re.compile(r"^INFO - NPU TOTAL: (\d+) cycles$", re.M)
_TAKEN = re.compile(r"^INFO - (\d+) input tensor/s populated with (\d+) bytes .* (0x\w+)$", re.M)
_GIVEN = re.compile(r"^INFO - (\d+) output tensor/s worth (\d+) bytes copied to (0x\w+)$", re.M)
_COMPLETED = re.compile(r"^INFO - Inference completed\.$", re.M)
_CUT = re.compile(r'^((E: )+|assertion ")(?=TFLM|ERROR|INFO|$)')
_PLAIN = re.compile(r"^(INFO - |Processor internal clock)")


@dataclasses.dataclass(frozen=True)
class Report:
    """What the runner says about one inference.

    Attributes:
        arena_bytes: of its tensor arena that the network takes.
        operators: the lines that name them.
        counters: the lines of the NPU's performance monitor.
        cycles: NPU cycles by that monitor; None if it counted none.
    """

    arena_bytes: int | None
    operators: tuple[str, ...]
    counters: tuple[str, ...]
    cycles: int | None


def find(binary: str | os.PathLike[str] | None = None) -> pathlib.Path | None:
    """The runner's ELF: `binary` if given, else the installed package's; None if there is none."""
    if binary is not None:
        path = pathlib.Path(binary)
        return path if path.is_file() else None
    try:
        files = importlib.metadata.files(PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (pathlib.Path(str(f.locate())) for f in files if _FILE.search(f"/{f.as_posix()}"))
    return next((path for path in found if path.is_file()), None)


def missing(binary: str | os.PathLike[str] | None = None) -> str | None:
    """Why there is no runner; None if there is one."""
    if find(binary) is not None:
        return None
    if binary is not None:
        return f"there is no file {str(binary)!r}"
    return f"Arm's inference runner is not installed (pip install 'udc-tf[arm]' brings {PACKAGE})"


def found(binary: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """As `find`; raises where there is none."""
    path = find(binary)
    if path is None:
        raise RunnerUnavailableError(missing(binary) or "")
    return path


def write_inputs(
    graph: Container, inputs: Sequence[np.ndarray], folder: pathlib.Path
) -> list[pathlib.Path]:
    """One file per case: all inputs one after the other, as the runner reads them."""
    infos = [graph.tensors[i] for i in graph.inputs]
    batch = check_inputs(inputs, [(t.name, item_shape(t.shape), t.dtype) for t in infos])
    for what, indices in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        size = sum(graph.tensors[i].nbytes for i in indices)
        if size > _TENSORS_LIMIT:
            raise ValueError(
                f"Arm's runner takes {_TENSORS_LIMIT} bytes of {what}. Received: {size} bytes"
            )
    paths = []
    for case in range(batch):
        path = folder / f"inputs_{case}.bin"
        path.write_bytes(b"".join(np.ascontiguousarray(a[case]).tobytes() for a in inputs))
        paths.append(path)
    return paths


def check_model(data: bytes) -> None:
    """Raises if the network does not fit where the runner expects it."""
    if len(data) > _MODEL_LIMIT:
        raise ValueError(
            f"Arm's runner takes a network of {_MODEL_LIMIT} bytes. Received: {len(data)} bytes"
        )


def output_bytes(graph: Container) -> int:
    """Bytes that the runner leaves at `OUTPUTS_ADDRESS`."""
    return sum(graph.tensors[i].nbytes for i in graph.outputs)


def split_outputs(graph: Container, cases: Sequence[bytes]) -> list[np.ndarray]:
    """One array per network output, first axis the cases."""
    outputs, at = [], 0
    for index in graph.outputs:
        info = graph.tensors[index]
        raw = b"".join(case[at : at + info.nbytes] for case in cases)
        shape = (len(cases), *item_shape(info.shape))
        outputs.append(np.frombuffer(raw, info.dtype).reshape(shape))
        at += info.nbytes
    return outputs


def parse(log: str, graph: Container) -> Report:
    """Reads the log of one inference.

    Raises:
        RunFailedError: it was not completed, or with other data than it was given.
    """
    log = log.replace("\r", "")
    if _COMPLETED.search(log) is None:
        raise RunFailedError("the inference was not completed")
    expected = (
        (_TAKEN, graph.inputs, INPUTS_ADDRESS, "read"),
        (_GIVEN, graph.outputs, OUTPUTS_ADDRESS, "left"),
    )
    for pattern, indices, address, verb in expected:
        found = pattern.search(log)
        size = sum(graph.tensors[i].nbytes for i in indices)
        if found is None or (int(found[1]), int(found[2]), int(found[3], 16)) != (
            *(len(indices), size),
            address,
        ):
            raise RunFailedError(
                f"Arm's runner should have {verb} {len(indices)} tensors of {size} bytes at "
                f"{address:#x}. It says: {found[0] if found else 'nothing of it'}"
            )
    arena, cycles = _ARENA.search(log), _CYCLES.search(log)
    return Report(
        arena_bytes=int(arena[1]) if arena else None,
        operators=tuple(_OPERATOR.findall(log)),
        counters=tuple(_COUNTER.findall(log)),
        cycles=(int(cycles[1]) or None) if cycles else None,
    )


def words(log: str, heard: Sequence[str] = ()) -> str:
    """The runner's complaints in its own words; without any, the last it said.

    Args:
        log: its UART.
        heard: what it was about to print where its UART shows a bare "E: ".
    """
    lines = [_CUT.sub("", line.strip("\x04 \t")) for line in log.replace("\r", "").splitlines()]
    lines = [line for line in lines if line not in ("", "TFLM -")]
    complaints = [text.strip() for text in heard] + [n for n in lines if not _PLAIN.match(n)]
    return " | ".join(complaints or lines[-3:])[-1500:] or "nothing"
