"""The step that compiles, and the proof that what was compiled computes the same."""

import pathlib
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from udc_tf import export
from udc_tf.cli.options import Run
from udc_tf.cli.tasks import task_of
from udc_tf.cli.training_steps import (
    calibration_inputs,
    evaluate_parts,
    load_network,
    recover,
    save_network,
)
from udc_tf.cli.usage import Say, UsageError
from udc_tf.cli.workdir import WorkDir
from udc_tf.export import manifest, tflite_file
from udc_tf.export.errors import MismatchError
from udc_tf.export.integer_network import Quantization
from udc_tf.export.pipeline import ExportResult
from udc_tf.export.runners import RunnerUnavailableError, make_runner
from udc_tf.models.data import Dataset, FileDataset
from udc_tf.report.readers import read_probabilities

_DONE = "manifest.json"
_UNSEEN = 2.0  # times what export allowed on calibration inputs, for examples it has not seen
_TIES = 0.1  # of the examples: their class may change where outputs of two are close


def run_export(run: Run, work: WorkDir, say: Say = print) -> dict[str, Any]:
    """Exports and verifies, or reads what an earlier run did."""
    if not work.network.exists():
        raise UsageError(f"{work.path} has no finetuned network yet: run udc-finetune there first.")
    if (work.artefacts / _DONE).exists() and "verification" in work.read_results():
        damaged = manifest.damaged(work.artefacts)
        if damaged is None:
            _deploy_tightened(work)
            say(f"export: done before, {work.artefacts}")
            return work.read_results()
        say(f"export: {work.artefacts / damaged} is damaged or missing, exporting again")
    data = run.load_data()
    tiny = load_network(work)
    say(f"export: compiling for {run.accelerator}")
    started = time.monotonic()
    result = export.export(
        tiny,
        work.artefacts,
        target=run.targets(),
        calibration=calibration_inputs(data),
        accelerator=run.accelerator,
        **run.where.system,
        allow_cpu=run.allow_cpu,
        recover=lambda network: recover(run, network, data, say),
        probabilities=_probabilities(work),
    )
    scores = {}
    if result.report.get("tightening"):
        tiny = result.model
        scores = _keep_tightened(run, work, tiny, data, say)
    budget = None if run.flash_target is None else run.flash_target.budget
    fits = "" if budget is None else f" of {budget:,} ({result.flash_bytes / budget:.1%})"
    say(f"export: {result.flash_bytes:,} bytes of flash{fits}, {result.sram_bytes:,} of SRAM")
    try:
        verification = verify(run, result, tiny, data, say)
    except MismatchError:
        shutil.rmtree(work.artefacts)  # nobody shall flash them
        raise
    work.add_results(
        **scores,
        export_seconds=round(time.monotonic() - started, 1),
        flash_bytes=result.flash_bytes,
        flash_budget=budget,
        sram_bytes=result.sram_bytes,
        budgets=result.manifest["budgets"],
        tflite_bytes=result.tflite_path.stat().st_size,
        compiled=str(result.vela_path.relative_to(work.path)),
        preprocessing=_preprocessing(data),
        verification=verification,
    )
    _deploy_tightened(work)
    return work.read_results()


def _preprocessing(data: Dataset | FileDataset) -> dict[str, Any]:
    """What firmware has to do in front of the network: (x - offset) / scale, of these features."""
    front_end = getattr(data, "front_end", None)
    heard = {} if front_end is None else {"front_end": dict(front_end)}
    return {"offset": data.scaling.offset, "scale": data.scaling.scale, **heard}


def _probabilities(work: WorkDir) -> dict[str, dict[float, float]] | None:
    """What the search thought of its options, if it was run here."""
    if not work.probabilities.exists():
        return None
    kept = read_probabilities(work.probabilities)
    return {name: dict(zip(options, pi, strict=True)) for name, (options, pi) in kept.items()}


def _keep_tightened(
    run: Run, work: WorkDir, tightened: keras.Model, data: Dataset | FileDataset, say: Say
) -> dict[str, Any]:
    """The scores of the network that went into flash, which is kept until the step is done.

    Not in the place of the finetuned one: an export that is interrupted begins with that again.
    """
    scores = evaluate_parts(run, tightened, data)
    save_network(tightened, _tightened(work))
    task = task_of(run.recipe.task)
    say(f"export: tightened to fit; test {task.label} now {task.describe(scores['test_score'])}")
    return scores


def _deploy_tightened(work: WorkDir) -> None:
    """Once the results are written, the network that they are of takes its place."""
    if _tightened(work).exists():
        _tightened(work).replace(work.network)


def _tightened(work: WorkDir) -> pathlib.Path:
    return work.network.with_name(".tightened.keras")


def verify(
    run: Run, result: ExportResult, tiny: keras.Model, data: Dataset | FileDataset, say: Say = print
) -> list[dict[str, Any]]:
    """Runs test examples everywhere and compares: TFLM is the reference."""
    file = tflite_file.read(result.tflite_path)
    into, out = (Quantization.of_tensor(file.tensors[i[0]]) for i in (file.inputs, file.outputs))
    x, y = data.arrays("test", run.verify_examples)
    inputs = into.quantize(x)
    expected = np.asarray(tiny.predict(x, verbose=0, batch_size=32))
    rows = [
        {
            "runner": "keras",
            "what": "fake-quantized, in training's own arithmetic",
            "score": score(run, expected, y),
            "examples": len(x),
        }
    ]
    reference = None
    for name in run.runners:
        row = {"runner": name, "examples": len(x)}
        try:
            runner = make_runner(name)
            runner.require()
            runner.load(result.vela_path if runner.takes_compiled else result.tflite_path)
            ran = runner.run([inputs])
        except RunnerUnavailableError as error:
            rows.append({**row, "unavailable": str(error)})
            say(f"verify: {name} is not available: {error}")
            continue
        actual = ran.outputs[0].reshape(expected.shape)
        row["score"] = score(run, out.dequantize(actual), y)
        row["seconds"] = round(ran.seconds, 2)
        row["cycles"], row["arena_bytes"] = ran.cycles, ran.arena_bytes
        steps = np.abs(actual.astype(int) - out.quantize(expected).astype(int))
        row["within_one_of_keras"] = float(np.mean(steps <= 1))
        if name == "tflm":
            reference = actual
        elif reference is not None:
            differing = int((actual != reference).sum())
            row["differs_from_tflm"] = differing
        rows.append(row)
        say(f"verify: {name}, {_describe(run, row)}")
        _require_agreement(run, result, rows, out.dequantize(actual), expected)
    return rows


def _require_agreement(
    run: Run,
    result: ExportResult,
    rows: Sequence[Mapping[str, Any]],
    actual: np.ndarray,
    expected: np.ndarray,
) -> None:
    """Raises a `MismatchError` if the last row's runner is far from the Keras model."""
    ours, theirs, examples = rows[-1]["score"], rows[0]["score"], rows[-1]["examples"]
    step = result.manifest["outputs"][0]["scale"]
    allowed = result.report["tflm_against_keras"]["outputs"][0]["allowed_steps"]
    apart = float(np.sqrt(np.mean(np.square(actual - expected, dtype=np.float64))))
    same_score = True
    if run.recipe.task == "classification":
        same_score = abs(ours - theirs) * examples <= max(1.5, _TIES * examples)
    if apart <= _UNSEEN * allowed * step and same_score:
        return
    task = task_of(run.recipe.task)
    raise MismatchError(
        f"{rows[-1]['runner']} does not compute what the Keras model does: {task.label} "
        f"{task.describe(ours)} against {task.describe(theirs)} on {examples} test examples, "
        f"outputs {apart / step:.1f} steps apart. No artefacts were kept."
    )


def score(run: Run, outputs: np.ndarray, y: np.ndarray) -> float:
    """The task's metric of real outputs."""
    if run.recipe.task == "classification":
        return float(np.mean(outputs.reshape(len(y), -1).argmax(-1) == y))
    error = np.mean(np.square(outputs - y), axis=tuple(range(1, y.ndim)))
    if run.recipe.task == "reconstruction":
        return float(np.mean(error))
    return float(np.mean(10 * np.log10((255 / 128) ** 2 / np.maximum(error, 1e-10))))


def _describe(run: Run, row: dict[str, Any]) -> str:
    task = task_of(run.recipe.task)
    text = f"{task.label} {task.describe(row['score'])} on {row['examples']} test examples"
    if "differs_from_tflm" in row:
        same = row["differs_from_tflm"] == 0
        count = f"{row['differs_from_tflm']} values differ from tflm"
        text += ", equal to tflm bit for bit" if same else f", {count}"
    return text
