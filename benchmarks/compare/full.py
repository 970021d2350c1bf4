"""The comparison at full size: the recipes for Fashion-MNIST and CIFAR-10, UDC and plain int8.

`udc` as a user would call it, then the same network at full width with 8 dense bits, trained for as
many epochs. Both resume where they were interrupted. Their rows go to results/compare_full.json.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence

import keras

import udc_tf
from benchmarks.compare import tasks
from benchmarks.compare.methods import INT8, int8_accuracies, parse_uniform
from benchmarks.compare.tasks import Task
from benchmarks.harness import Row, Rows, Stopwatch
from benchmarks.networks import uniform_compact
from udc_tf.cli.commands import main as udc
from udc_tf.cli.workdir import WorkDir
from udc_tf.models import data as data_sets
from udc_tf.models import recipes

RECIPES = {"fashion": "fashion_mnist", "cifar": "cifar10"}


def run(names: Sequence[str], methods: Sequence[str], cache: pathlib.Path, rows: Rows) -> str:
    """Does what is missing; several processes may share the work."""
    if unknown := set(names) - set(RECIPES):
        raise ValueError(f"--full takes {', '.join(RECIPES)}. Received: {', '.join(unknown)}")
    for name in names:
        for method in (m for m in METHODS if m in methods):
            rows.once(f"{name}: {method}", functools.partial(_perform, name, method, cache))
    return "\n".join(f"{key}: {row}" for key, row in rows.read().items())


def _perform(name: str, method: str, cache: pathlib.Path) -> Row:
    data_dir = None if name == "fashion" else tasks.unpacked_cifar(cache)
    return METHODS[method](name, data_dir, cache / "full" / name / method)


def _task(name: str, data) -> Task:
    parts = (data.arrays(part) for part in ("train", "validation", "test"))
    return Task(name, *parts, budgets=())


def _searched(name: str, data_dir: pathlib.Path | None, folder: pathlib.Path) -> Row:
    arguments = [f"--recipe={RECIPES[name]}", f"--workdir={folder}"]
    if data_dir is not None:
        arguments.append(f"--data_dir={data_dir}")
    if code := udc("udc", ["udc", *arguments]):
        raise SystemExit(code)
    work = WorkDir.open(folder)
    found = work.read_results()
    recipe = recipes.get(RECIPES[name])
    task = _task(name, data_sets.load(RECIPES[name], data_dir))
    return {
        "epochs": recipe.search_epochs + recipe.stages.total_epochs,
        "flash_bytes": found["flash_bytes"],
        "budget": found["flash_budget"],
        "seconds": found["search_seconds"] + found["finetune_seconds"],
        **int8_accuracies(work.artefacts / "model.tflite", task),
    }


def _plain_int8(name: str, data_dir: pathlib.Path | None, folder: pathlib.Path) -> Row:
    recipe = recipes.get(RECIPES[name])
    epochs = recipe.search_epochs + recipe.stages.total_epochs
    data = data_sets.load(RECIPES[name], data_dir)
    watch = Stopwatch()
    keras.utils.set_random_seed(0)
    tiny = uniform_compact(recipe.model(), *parse_uniform(INT8))
    udc_tf.finetune(
        tiny,
        data.training_batches(recipe.batch_size, recipe.augmentation),
        stages=dataclasses.replace(recipe.stages, epochs=epochs),
        workdir=folder,
        verbose=2,
    )
    calibration = data.arrays("train", 512)[0]
    result = udc_tf.export.export(tiny, folder / "artefacts", calibration=calibration)
    return {
        "epochs": epochs,
        "flash_bytes": result.flash_bytes,
        "budget": None,
        "seconds of the last start": watch.read().wall,
        **int8_accuracies(result.tflite_path, _task(name, data)),
    }


METHODS = {"udc": _searched, "int8_full": _plain_int8}
