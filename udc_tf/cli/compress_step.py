"""The step of `udc-compress`: a trained network to its budgets, without search and finetuning."""

import time
from collections.abc import Mapping
from typing import Any

import keras

import udc_tf
from udc_tf.cli.checks import check_outputs
from udc_tf.cli.options import Run
from udc_tf.cli.tasks import task_of
from udc_tf.cli.training_steps import evaluate, evaluate_parts, save_network
from udc_tf.cli.usage import Say, UsageError
from udc_tf.cli.workdir import WorkDir
from udc_tf.compress.compression import SPACE
from udc_tf.compress.examples import trained_model
from udc_tf.models.data import Dataset, FileDataset
from udc_tf.search.space import SearchSpace

_EXAMPLES = 512
_ENDINGS = (".keras", ".h5", ".hdf5")


def check_compression(runs: Mapping[str, Run]) -> keras.Model:
    """The trained network of runs that differ in their budgets alone.

    Raises:
        ValueError: it is not trained, or does not fit the data; in one sentence.
    """
    run = next(iter(runs.values()))
    source = run.options.model
    if source is None or not source.endswith(_ENDINGS):
        raise UsageError(
            "udc-compress takes a trained network, --model=trained.keras or an .h5 file. Received: "
            f"--model={source}"
        )
    model = trained_model(source)
    check_outputs(run, model, run.load_data())
    return model


def run_compress(
    runs: Mapping[str, Run], top: WorkDir, parts: Mapping[str, WorkDir], say: Say
) -> None:
    """Compresses for all budgets, or reads what an earlier run did; folders are in `parts`."""
    if all(part.network.exists() for part in parts.values()):
        say(f"compress: done before, {top.path}")
        return
    run = next(iter(runs.values()))
    data, started = run.load_data(), time.monotonic()
    model = check_compression(runs)
    x, y = data.arrays("train", _EXAMPLES)
    say(f"compress: {data.describe()}; {len(x)} of them are looked at")
    found = udc_tf.compress_front(
        model,
        [each.targets() for each in runs.values()],
        x,
        space=_space(run),
        labels=y if run.recipe.task == "classification" else None,
        workdir=top.state("search"),
        seed=run.seed,
        allow_cpu=run.allow_cpu,
        say=say,
    )
    original = {
        "original_score": evaluate(run, model, data.batches("test", run.recipe.batch_size)),
        "original_parameters": model.count_params(),
        "search_seconds": round(time.monotonic() - started, 1),
    }
    for (name, each), tiny in zip(runs.items(), found, strict=True):
        _keep(each, parts[name], tiny, data, original, say)


def _keep(
    run: Run,
    work: WorkDir,
    tiny: keras.Model,
    data: Dataset | FileDataset,
    original: Mapping[str, Any],
    say: Say,
) -> None:
    """Leaves what finetuning would: the network, last, and its scores."""
    task, architecture = task_of(run.recipe.task), tiny.architecture
    scores = evaluate_parts(run, tiny, data)
    say(architecture.table())
    say(
        f"compress: test {task.label} {task.describe(original['original_score'])} before, "
        f"{task.describe(scores['test_score'])} after"
    )
    work.add_results(
        metric=task.metric,
        examples={part: len(data.part(part)) for part in ("train", "validation", "test")},
        predicted_flash_bytes=architecture.flash_bytes,
        macs=architecture.macs,
        left_out={},
        **original,
        **scores,
    )
    architecture.save(work.architecture)
    save_network(tiny, work.network)


def _space(run: Run) -> SearchSpace:
    """What the flags say, and else all bits and sparsities."""
    given = {k: getattr(run.recipe.space, k) for k in ("bits", "sparsities", "widths", "kernels")}
    named = {k: v for k, v in given.items() if getattr(run.options, k) is not None}
    return SearchSpace(**{"bits": SPACE.bits, "sparsities": SPACE.sparsities, **named})
