"""`udc-run`: runs a compiled network before a board exists, and compares with its golden outputs.

udc-run out/model_vela.tflite --reference=out/model.tflite --on=all
udc-run --workdir=work --on=npu --trace
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import app, flags

from udc_tf.export.npu import NpuError, NpuNetwork, container
from udc_tf.export.npu.container import Container, TensorInfo
from udc_tf.export.npu.tensor_trace import trace
from udc_tf.export.runners import RUNNERS, make_runner
from udc_tf.export.runners.base import item_shape
from udc_tf.export.runners.comparison import compare, table
from udc_tf.export.runners.tflm import TflmRunner
from udc_tf.files import DamagedFileError, first_line, read_arrays

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder that `udc-export` wrote into.")
_MODEL = flags.DEFINE_string("model", None, "The .tflite that Vela wrote; or its path alone.")
_REFERENCE = flags.DEFINE_string("reference", None, "The .tflite before Vela.")
_GOLDEN = flags.DEFINE_string(
    "golden",
    None,
    "A folder of input_0.npy, ..., output_0.npy, ... or an .npz of the same names: golden inputs "
    "and outputs, first axis the batch. By default the folder `golden` beside the model; without "
    "one inputs are drawn, and TFLM gives the golden outputs.",
)
_ON = flags.DEFINE_list("on", ["npu"], f"Runners: {', '.join(RUNNERS)}; or `all`.")
_COUNT = flags.DEFINE_integer("count", 3, "How many inputs to draw or to take.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of drawn inputs.")
_TRACE = flags.DEFINE_bool(
    "trace",
    False,
    "Print what each NPU operation reads and writes, and with --reference the first that diverges.",
)
_FVP = flags.DEFINE_string("fvp", None, "Path of Arm's Corstone-300 model.")
_ACCELERATOR = flags.DEFINE_string(
    "accelerator",
    None,
    "NPU that `arm` shows, ethos-u55-32 to ethos-u55-256; by default the one of the model.",
)
_TIMEOUT = flags.DEFINE_float("timeout", None, "Seconds after which a simulator is ended.")
_KEEP = flags.DEFINE_string("keep", None, "Folder to keep firmware and UART logs in.")

_OK, _DIFFERENT, _NOTHING_RAN = 0, 1, 2


class RunError(ValueError):
    """Nothing can be run; the message says what is missing or damaged."""


def main(argv: Sequence[str]) -> int:
    """Runs what the flags ask for; 0 only if something ran and nothing differs.

    What is missing or damaged ends in one line on standard error.
    """
    try:
        return _run(argv[1:])
    except (ValueError, OSError, RuntimeError) as error:
        print(f"udc-run: {first_line(error)}", file=sys.stderr)
        return _NOTHING_RAN


def _run(paths: Sequence[str]) -> int:
    model, reference, golden_path = _files(paths)
    names = list(RUNNERS) if _ON.value == ["all"] else _ON.value
    for name in names:
        make_runner(name)  # an unknown name is an error before anything has run
    try:
        graph = container.parse(model.read_bytes())
    except (NpuError, OSError) as error:
        # Each runner has its own words for a file that cannot be read.
        print(table(compare(model, None, [], None, names, _options())))
        raise DamagedFileError(model, error, "export the network anew") from error
    inputs, golden = _cases(graph, golden_path)
    if golden is None and (tflm := _tflm(reference)) is not None:
        golden = tflm.run(inputs).outputs
    if _TRACE.value:
        print("\n".join(_trace_lines(NpuNetwork.load(model), reference, inputs, golden)))
    rows = compare(model, reference, inputs, golden, names, _options())
    print(table(rows))
    failed = any(row.state.startswith("failed") for row in rows)
    if not failed and not any(row.state == "ran" for row in rows):
        return _NOTHING_RAN
    # The desktop's kernels round differently by design: their difference is shown, not judged.
    wrong = any(row.equal is False for row in rows if row.runner != "tflite")
    return _DIFFERENT if wrong or failed else _OK


def _options() -> dict[str, dict[str, Any]]:
    """What the flags say to single runners."""
    common = {"folder": _KEEP.value, "timeout": _TIMEOUT.value}
    common = {name: value for name, value in common.items() if value is not None}
    return {
        "qemu": common,
        "arm": {"accelerator": _ACCELERATOR.value, **common},
        "fvp": {"fvp": _FVP.value, **common},
    }


def _files(
    paths: Sequence[str],
) -> tuple[pathlib.Path, pathlib.Path | None, pathlib.Path | None]:
    """The model, what it was before Vela, and its golden inputs and outputs."""
    if len(paths) > (_MODEL.value is None):
        given = [*paths, *([f"--model={_MODEL.value}"] if _MODEL.value else [])]
        raise RunError(f"udc-run takes one model. Received: {' '.join(given)}")
    model, reference, golden = (
        pathlib.Path(flag.value) if flag.value else None for flag in (_MODEL, _REFERENCE, _GOLDEN)
    )
    if paths:
        model = pathlib.Path(paths[0])
    if model is None:
        if _WORKDIR.value is None:
            raise RunError("udc-run needs the path of a model, or --workdir")
        found = sorted(_compiled_files(pathlib.Path(_WORKDIR.value)))
        if len(found) != 1:
            raise RunError(
                f"--workdir should hold one *_vela.tflite. Received: {[str(p) for p in found]}"
            )
        model = found[0]
    if not model.is_file():
        raise RunError(f"There is no file {model}: udc-run takes the .tflite that Vela wrote.")
    beside = model.with_name(model.name.replace("_vela", ""))
    if reference is None and beside != model and beside.is_file():
        reference = beside
    if golden is None and (model.parent / "golden").is_dir():
        golden = model.parent / "golden"
    return model, reference, golden


def _compiled_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """What was compiled there, without what a killed export left in its hidden folders."""
    found = folder.rglob("*_vela.tflite")
    return [p for p in found if not any(x.startswith(".") for x in p.relative_to(folder).parts)]


def _cases(
    graph: Container, golden_path: pathlib.Path | None
) -> tuple[list[np.ndarray], list[np.ndarray] | None]:
    if golden_path is None:
        rng = np.random.default_rng(_SEED.value)
        return [_drawn(graph.tensors[i], rng) for i in graph.inputs], None
    names = [f"input_{i}" for i in range(len(graph.inputs))]
    names += [f"output_{i}" for i in range(len(graph.outputs))]
    found = _golden_arrays(golden_path)
    missing = [name for name in names if name not in found or not found[name].ndim]
    if missing:
        raise RunError(f"--golden lacks {missing}. Received: {sorted(found)}")
    arrays = [found[name][: _COUNT.value] for name in names]
    return arrays[: len(graph.inputs)], arrays[len(graph.inputs) :]


def _drawn(info: TensorInfo, rng: np.random.Generator) -> np.ndarray:
    size = (_COUNT.value, *item_shape(info.shape))
    if info.dtype.kind == "f":
        return rng.uniform(-1, 1, size).astype(info.dtype)
    limits = np.iinfo(info.dtype)
    return rng.integers(limits.min, limits.max + 1, size, dtype=info.dtype)


def _golden_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    remedy = "export the network anew, or give another --golden"
    if path.is_dir():
        return {file.stem: _array(file, remedy) for file in sorted(path.glob("*.npy"))}
    return read_arrays(path, remedy)


def _array(path: pathlib.Path, remedy: str) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("not one array")
        return array
    except Exception as error:  # whatever is inside the file
        raise DamagedFileError(path, error, remedy) from error


def _trace_lines(
    network: NpuNetwork,
    reference: pathlib.Path | None,
    inputs: Sequence[np.ndarray],
    golden: Sequence[np.ndarray] | None,
) -> list[str]:
    first = [array[:1] for array in inputs]
    expected = None if golden is None else [array[:1] for array in golden]
    tensors = []
    if (tflm := _tflm(reference)) is not None:
        tensors = tflm.tensors(first)
        expected = tflm.run(first).outputs
    return trace(network, first, tensors, expected).lines()


def _tflm(reference: pathlib.Path | None) -> TflmRunner | None:
    """TFLite Micro with the network before Vela, if both are there."""
    tflm = TflmRunner()
    if reference is None or tflm.unavailable() is not None:
        return None
    try:
        tflm.load(reference)
    except (ValueError, OSError, RuntimeError) as error:
        raise DamagedFileError(reference, error, "export the network anew") from error
    return tflm


def entry_point() -> None:
    """What the `udc-run` script calls."""
    app.run(main)


if __name__ == "__main__":
    entry_point()
