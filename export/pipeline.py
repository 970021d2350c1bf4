"""`export`: from a trained network to the folder that a firmware engineer takes over."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from udc_tf.cost.targets import Target
from udc_tf.export import (
    agreement,
    c_source,
    execution,
    growing,
    lut_compression,
    manifest,
    ranges,
    size_truth,
    tflm_check,
    tightening,
    vela,
)
from udc_tf.export.budgets import Budgets
from udc_tf.export.int8 import Int8Model, to_int8
from udc_tf.export.integer_network import Quantization
from udc_tf.export.lowering import lower
from udc_tf.export.within_budget import GROW_FROM, Compiled, compile_within, copy_of, efficiency
from udc_tf.export.work_folder import work_folder

_NAME = "model"


@dataclasses.dataclass(frozen=True)
class ExportResult:
    """What was exported, and where it lies.

    Attributes:
        tflite_path: the int8 .tflite before Vela.
        vela_path: what goes into flash.
        flash_bytes: its size.
        sram_bytes: working memory, as Vela planned it.
        manifest: as in manifest.json.
        report: as in report.json.
        model: the network that was exported: the one given, or a tightened copy of it.
    """

    folder: pathlib.Path
    tflite_path: pathlib.Path
    vela_path: pathlib.Path
    flash_bytes: int
    sram_bytes: int
    manifest: dict[str, Any]
    report: dict[str, Any]
    model: keras.Model


def export(
    model: keras.Model,
    out_dir: str | os.PathLike,
    target: Target | Sequence[Target] | None = None,
    calibration: Any = None,
    *,
    accelerator: str | None = None,
    system_config: str | None = None,
    memory_mode: str | None = None,
    optimise: str = "Performance",
    vela_config: str | os.PathLike | None = None,
    allow_cpu_operators: bool = False,
    allow_cpu: bool = False,
    sram_budget: int | str | None = None,
    deployment: str = "single",
    lut: bool = False,
    golden_samples: int = 8,
    tighten_rounds: int = 6,
    grow_rounds: int = 0,
    recover: Callable[[keras.Model], Any] | None = None,
    probabilities: tightening.Probabilities | None = None,
) -> ExportResult:
    """Writes the int8 .tflite, what Vela makes of it, C sources, manifest, goldens and a report.

    Args:
        model: a compact network, finetuned or not, or any Keras model of supported layers, which is
            then quantized after training.
        out_dir: the folder; made if it is not there. Nothing in it changes unless all succeeds.
        target: `udc_tf.Flash(budget, accelerator)`, `udc_tf.Sram(budget)`, `udc_tf.Cycles(budget)`
            or another target that can be checked on what is written, or a list of them, which must
            all hold; None: no budget.
        calibration: inputs from which ranges are taken where training gave none: an array, a list
            or dictionary of arrays (one per input), a `tf.data.Dataset` or batches.
        accelerator: if there is no target to say it; default ethos-u55-128.
        system_config, memory_mode, optimise, vela_config, allow_cpu_operators: as in
            `compile_with_vela`.
        allow_cpu: the same as `allow_cpu_operators`, by the name it has everywhere else.
        sram_budget: largest working memory, such as "256KiB"; the same as a target `udc_tf.Sram`.
        deployment: "single": one integer tensor per layer; "two_tensors": f(x,Q) + beta*f(x,sign)
            for layers in the shifted number format, which takes more flash (see `two_tensors`).
        lut: also writes `model_lut.tflite`, weights as TFLM's look-up tables, for microcontrollers
            without an NPU; checked to compute the same in TFLM.
        golden_samples: how many inputs and outputs to keep for the firmware's own tests.
        tighten_rounds: how often a network over its budget is made smaller and compiled again.
        grow_rounds: how often a network that leaves more than 5% of the flash unused is given bits
            or non-zeros where they help most, and compiled again. Give `recover` with it.
        recover: is called with the network after each such round: a short finetune.
        probabilities: what the search thought of its options, `search.probabilities()`; options it
            liked are then given up last.

    Raises:
        ExportError: one of its kinds; the message says what is wrong and what would be right.

    Example:

    ```python
    result = udc_tf.export.export(tiny, "out/", target=udc_tf.Flash("32KiB"), calibration=train)
    print(result.vela_path, result.flash_bytes, result.manifest["arena_bytes"])
    ```
    """
    budgets = Budgets.of(
        target,
        accelerator,
        system_config=system_config,
        memory_mode=memory_mode,
        vela_config=vela_config,
        sram=sram_budget,
    )
    options = {"optimise": optimise, "allow_cpu_operators": allow_cpu_operators or allow_cpu}
    out_dir = pathlib.Path(out_dir)
    samples = None
    if calibration is not None:
        samples = ranges.take_samples(calibration, lower(model), getattr(model, "input", None))
    with work_folder(out_dir, ".export-") as folder:

        def compiled_model(network: keras.Model, **other: Any) -> Compiled:
            settings = {**options, **other}
            return _compile(network, samples, budgets, settings, folder, deployment)

        model, made, rounds = compile_within(
            model, compiled_model, budgets, tighten_rounds, grow_rounds, recover, probabilities
        )
        exact, compiled = made.exact, made.vela
        budgets.check_paper_size(model, exact.network)
        content = made.content
        staged = folder / "staged"
        report = _write_all(staged, exact, compiled, content, samples, golden_samples)
        if lut:
            report["lut"] = _write_lut(staged, exact)
        report |= _about_budgets(model, made, budgets)
        report["tightening"] = rounds
        (staged / "report.json").write_text(manifest.to_json(report))
        described = manifest.describe(exact, compiled, content, deployment)
        described["budgets"] = report["budgets"]
        described["executed"] = _execute(staged, made, content)
        described["files"] = manifest.files(staged)
        (staged / "manifest.json").write_text(manifest.to_json(described))
        _move(staged, out_dir)
    return ExportResult(
        folder=out_dir,
        tflite_path=out_dir / f"{_NAME}.tflite",
        vela_path=out_dir / f"{_NAME}_vela.tflite",
        flash_bytes=compiled.flash_bytes,
        sram_bytes=compiled.sram_bytes,
        manifest=described,
        report=report,
        model=model,
    )


def _compile(
    model: keras.Model,
    samples: list[np.ndarray] | None,
    budgets: Budgets,
    options: Mapping[str, Any],
    folder: pathlib.Path,
    deployment: str,
) -> Compiled:
    exact = to_int8(model, samples, deployment)
    budgets.check_macs(exact.network)
    agreed = agreement.check(model, exact, samples)
    path = folder / f"{_NAME}.tflite"
    path.write_bytes(exact.content)
    settings = {**dataclasses.asdict(budgets.system), **options}
    compiled = vela.compile_with_vela(path, folder, **settings)
    return Compiled(exact, agreed, compiled, compiled.path.read_bytes())


def _about_budgets(model: keras.Model, made: Compiled, budgets: Budgets) -> dict[str, Any]:
    """What the report says about accuracy and budgets of what was compiled."""
    return {
        "tflm_against_keras": made.agreement,
        "budget_bytes": budgets.flash,
        "budget_macs": budgets.macs,
        "sram_budget_bytes": budgets.sram,
        "budgets": budgets.lines(model, made.exact.network, made.vela),
        "unused_flash": _unused(model, made, budgets),
    }


def _unused(model: keras.Model, made: Compiled, budgets: Budgets) -> dict[str, Any] | None:
    """What of a flash budget is left, and what would use it; None without a budget."""
    if budgets.flash is None:
        return None
    left = budgets.flash - made.vela.flash_bytes
    moves: list[Any] = []
    if left > GROW_FROM * budgets.flash:
        copy = copy_of(model)
        moves = growing.grow(copy, left, efficiency(made))
        logging.warning(
            "%d bytes of flash (%.1f%%) are unused. %s",
            left,
            100 * left / budgets.flash,
            growing.advice(moves),
        )
    return {"bytes": left, "would_use_them": [dataclasses.asdict(m) for m in moves]}


def _write_all(
    staged: pathlib.Path,
    exact: Int8Model,
    compiled: vela.VelaResult,
    content: bytes,
    samples: Sequence[np.ndarray] | None,
    golden_samples: int,
) -> dict[str, Any]:
    """Everything but the report and the manifest; returns the report."""
    (staged / "golden").mkdir(parents=True)
    (staged / f"{_NAME}.tflite").write_bytes(exact.content)
    (staged / f"{_NAME}_vela.tflite").write_bytes(content)
    network = exact.network

    def tensors(indices: Sequence[int]) -> list[tuple[tuple[int, ...], Quantization]]:
        return [(network.values[i].shape, exact.quantizations[i]) for i in indices]

    header = c_source.header(
        f"{_NAME}_vela",
        len(content),
        manifest.arena_bytes(content),
        tensors(network.inputs),
        tensors(network.outputs),
    )
    (staged / f"{_NAME}_vela.h").write_text(header)
    (staged / f"{_NAME}_vela.c").write_text(c_source.source(f"{_NAME}_vela", content))
    inputs = agreement.inputs_for(exact, samples, golden_samples)
    codes = exact.quantize_inputs(inputs)
    outputs = tflm_check.run(exact.content, codes)
    for kind, arrays in (("input", codes), ("output", outputs)):
        for number, array in enumerate(arrays):
            np.save(staged / "golden" / f"{kind}_{number}.npy", array)
    reference = exact.reference(inputs)
    sizes = size_truth.layer_sizes(network, compiled)
    return {
        "layers": [dataclasses.asdict(size) for size in sizes],
        "operators": [dataclasses.asdict(o) for o in compiled.operators],
        "memory": [dataclasses.asdict(t) for t in compiled.tensors],
        "encoded_weight_bytes": compiled.encoded_weight_bytes,
        "flash_bytes": compiled.flash_bytes,
        "sram_bytes": compiled.sram_bytes,
        "tflm_against_fake_quant": _agreement(outputs, reference),
        "collapsed_channels": {
            step.name: list(step.weights.collapsed)
            for step in network.kernels
            if step.weights.collapsed
        },
    }


def _golden(staged: pathlib.Path, kind: str, count: int) -> list[np.ndarray]:
    return [np.load(staged / "golden" / f"{kind}_{n}.npy") for n in range(count)]


def _execute(staged: pathlib.Path, made: Compiled, content: bytes) -> dict[str, Any]:
    network = made.exact.network
    allowed = [output["allowed_steps"] for output in made.agreement["outputs"]]
    inputs = _golden(staged, "input", len(network.inputs))
    outputs = _golden(staged, "output", len(network.outputs))
    executed = execution.execute(content, inputs, outputs, allowed)
    if executed["compiled"]["on"] is None:
        logging.warning(
            "The compiled command stream was not executed here, %s; the file before Vela was, in "
            "TFLM.",
            executed["compiled"]["why_not"],
        )
    return executed


def _write_lut(staged: pathlib.Path, exact: Int8Model) -> dict[str, Any]:
    """The network with look-up tables, once TFLM has shown that it computes the goldens with it."""
    content = lut_compression.compress(exact.content)
    inputs = _golden(staged, "input", len(exact.network.inputs))
    outputs = tflm_check.run(content, inputs)
    lut_compression.check_equal(outputs, _golden(staged, "output", len(exact.network.outputs)))
    (staged / f"{_NAME}_lut.tflite").write_bytes(content)
    tensors = len(lut_compression.worthwhile(exact.content))
    return {"tensors": tensors, "bytes": len(content), "without_bytes": len(exact.content)}


def _agreement(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> dict[str, Any]:
    """How far TFLM is from the fake-quant network, in steps of the output."""
    pairs = zip(ours, theirs, strict=True)
    difference = np.concatenate([np.abs(a.astype(int) - b).ravel() for a, b in pairs])
    return {
        "values": int(difference.size),
        "equal": round(float(np.mean(difference == 0)), 6),
        "within_1": round(float(np.mean(difference <= 1)), 6),
        "largest": int(difference.max()),
    }


def _move(staged: pathlib.Path, out_dir: pathlib.Path) -> None:
    """Each file by one rename, the manifest last: who sees it sees all it lists."""
    paths = sorted(p for p in staged.rglob("*") if p.is_file())
    paths.sort(key=lambda p: p.name == "manifest.json")
    (out_dir / "manifest.json").unlink(missing_ok=True)
    for path in paths:
        final = out_dir / path.relative_to(staged)
        final.parent.mkdir(exist_ok=True)
        os.replace(path, final)
