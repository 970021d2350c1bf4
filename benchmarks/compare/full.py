"""The comparison at full size: the recipes for Fashion-MNIST and CIFAR-10, UDC and plain int8.

`udc` as a user would call it, then the same network at full width with 8 dense bits, trained for as
many epochs. Both resume where they were interrupted. Results go to a file beside the rows.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

import keras
from benchmarks.compare_data import Task
from benchmarks.compare_methods import INT8, Stopwatch, int8_accuracies, parse_uniform

import udc_tf
from benchmarks import compare_data
from udc_tf.cli.commands import main as udc
from udc_tf.cli.workdir import WorkDir
from udc_tf.compact.build import Compactor, Configuration, LayerChoice
from udc_tf.files import replaced_atomically
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.trace import trace
from udc_tf.models import data as data_sets
from udc_tf.models import recipes

RECIPES = {"fashion": "fashion_mnist", "cifar": "cifar10"}


def run(
    names: Sequence[str],
    methods: Sequence[str],
    cache: pathlib.Path,
    beside: pathlib.Path,
    only_report: bool,
) -> str:
    """Does what is missing; two processes may share the work if their `methods` differ."""
    if unknown := set(names) - set(RECIPES):
        raise ValueError(f"--full takes {', '.join(RECIPES)}. Received: {', '.join(unknown)}")
    path = beside.with_name(f"{beside.stem}_full.json")
    for name in [] if only_report else names:
        folder = None if name == "fashion" else compare_data.unpacked_cifar(cache)
        for method, perform in METHODS.items():
            key = f"{name}: {method}"
            if method in methods and key not in _read(path):
                result = perform(name, folder, cache / "full" / name / method)
                with replaced_atomically(path) as partial:
                    partial.write_text(json.dumps({**_read(path), key: result}, indent=1) + "\n")
    return "\n".join(f"{key}: {row}" for key, row in _read(path).items())


def _read(path: pathlib.Path) -> dict[str, dict]:
    return json.loads(path.read_text()) if path.is_file() else {}


def _task(name: str, data) -> Task:
    parts = (data.arrays(part) for part in ("train", "validation", "test"))
    return Task(name, *parts, budgets=())


def _searched(name: str, data_dir: pathlib.Path | None, folder: pathlib.Path) -> dict:
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


def _plain_int8(name: str, data_dir: pathlib.Path | None, folder: pathlib.Path) -> dict:
    recipe = recipes.get(RECIPES[name])
    epochs = recipe.search_epochs + recipe.stages.total_epochs
    data = data_sets.load(RECIPES[name], data_dir)
    watch = Stopwatch()
    keras.utils.set_random_seed(0)
    graph = trace(recipe.model())
    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    bits, nonzeros = parse_uniform(INT8)
    layers = {
        n.name: LayerChoice(bits, nonzeros) for n in graph.nodes if isinstance(n.layer, kinds)
    }
    tiny = Compactor(graph, ChannelGroups(graph), Configuration(layers=layers)).build()
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
        "seconds of the last start": watch.read()[1],
        **int8_accuracies(result.tflite_path, _task(name, data)),
    }


METHODS = {"udc": _searched, "int8_full": _plain_int8}
