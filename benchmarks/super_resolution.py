"""Whole runs of `udc` beside a baseline that was trained equally long.

    python benchmarks/zoo_runs.py --case=fashion_mnist --workdir=runs/fashion
    python benchmarks/zoo_runs.py --case=cifar10 --data_dir=FOLDER --workdir=runs/cifar10
    python benchmarks/zoo_runs.py --case=super_resolution --data_dir=FOLDER --workdir=runs/sr

Each can be interrupted and started again. Further flags are passed on to `udc`. The result is
written beside this script, to zoo_runs_<case>.json, with the command that made it.

The baseline is the network as it is: for classification its weights quantized to int8 after
training, for super resolution in float and with all its multiplications.
"""

import json
import math
import os
import pathlib
import shlex
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

from udc_tf import export
from udc_tf.cli.commands import main as udc
from udc_tf.cli.exporting import score
from udc_tf.cli.history import EpochLines, EpochLog
from udc_tf.cli.image_sets import score_sets
from udc_tf.cli.options import Options, Run, resolve
from udc_tf.cli.tasks import task_of
from udc_tf.cli.workdir import WorkDir, write_json
from udc_tf.export import tflite_file
from udc_tf.export.integer_network import Quantization
from udc_tf.files import replaced_atomically
from udc_tf.models import fsrcnn
from udc_tf.models.recipes import Recipe

CASES = ("fashion_mnist", "cifar10", "super_resolution")
_BATCHES_PER_SCORE = 256


def main(arguments: list[str]) -> int:
    given = dict(a.removeprefix("--").split("=", 1) for a in arguments if "=" in a)
    case, folder = given.pop("case", None), given.get("workdir")
    if case not in CASES or folder is None:
        print(f"--case is one of {', '.join(CASES)}, and --workdir=FOLDER is needed.")
        return 2
    flags = [f"--recipe={case}", *(f"--{k}={v}" for k, v in given.items())]
    started = time.monotonic()
    if code := udc("udc", ["udc", *flags]):
        return code
    work = WorkDir.open(folder)
    run = resolve(Options().over(work.read_record()["options"]))
    baseline = run_baseline(run, work.path / "baseline")
    write_json(
        pathlib.Path(__file__).with_name(f"zoo_runs_{case}.json"),
        {
            "command": shlex.join(["python", "benchmarks/zoo_runs.py", *_without_paths(arguments)]),
            "case": case,
            "searched": work.read_results(),
            "baseline": baseline,
            "seconds_of_this_call": round(time.monotonic() - started),
        },
    )
    return 0


def _without_paths(arguments: list[str]) -> list[str]:
    """The machine's folders are nobody's business."""
    private = ("--workdir=", "--data_dir=")
    return [a.split("=")[0] + "=FOLDER" if a.startswith(private) else a for a in arguments]


def run_baseline(run: Run, folder: pathlib.Path) -> dict:
    """Trains the network as it is for as many epochs as search and finetuning had."""
    done = folder / "results.json"
    if done.exists():
        return json.loads(done.read_text())
    data, recipe, task = run.load_data(), run.recipe, task_of(run.recipe.task)
    keras.utils.set_random_seed(run.seed)
    model = _network(recipe, data)
    epochs = recipe.search_epochs + recipe.stages.total_epochs
    steps = math.ceil(len(data.train) / recipe.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(
        recipe.learning_rate[0], epochs * steps, alpha=1e-3
    )
    adam = recipe.optimizer == "adam"
    optimizer = keras.optimizers.Adam(rate) if adam else keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer, task.loss(model), metrics=task.metrics(), jit_compile=False)
    train = data.training_batches(
        recipe.batch_size,
        recipe.augmentation,
        run.seed,
        epoch=lambda: int(model.optimizer.iterations) // steps,
    )
    model.fit(
        train,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        callbacks=[
            EpochLines("baseline", epochs),
            EpochLog(folder / "history.jsonl"),
            keras.callbacks.BackupAndRestore(str(folder / "state"), delete_checkpoint=False),
        ],
    )
    results = {"epochs": epochs, "parameters": model.count_params()}
    results["test_score"] = float(
        model.evaluate(data.batches("test", recipe.batch_size), verbose=0, return_dict=True)[
            task.metric
        ]
    )
    if recipe.task == "super_resolution":
        results["sets"] = score_sets(model, run.options.data_dir)
        results["macs"] = _macs(model)
    else:
        results |= _as_int8(run, model, data, folder)
    with replaced_atomically(done) as partial:
        partial.write_text(json.dumps(results, indent=1))
    return results


def _network(recipe: Recipe, data) -> keras.Model:
    if recipe.task == "super_resolution":
        return fsrcnn(data.input_shape, search_depth=False)
    return recipe.model(data.input_shape, data.classes)


def _as_int8(run: Run, model: keras.Model, data, folder: pathlib.Path) -> dict:
    calibration = data.arrays("train", 512)[0]
    result = export.export(model, folder / "artefacts", calibration=calibration)
    file = tflite_file.read(result.tflite_path)
    into, out = (Quantization.of_tensor(file.tensors[i[0]]) for i in (file.inputs, file.outputs))
    x, y = data.arrays("test")
    outputs = [
        export.run(
            result.tflite_path, into.quantize(x[i : i + _BATCHES_PER_SCORE]), on="tflite"
        ).outputs[0]
        for i in range(0, len(x), _BATCHES_PER_SCORE)
    ]
    return {
        "int8_test_score": score(run, out.dequantize(np.concatenate(outputs)), y),
        "flash_bytes": result.flash_bytes,
        "sram_bytes": result.sram_bytes,
    }


def _macs(model: keras.Model) -> int:
    """Multiplications by kernels, at each place of the output (of the input, if transposed)."""
    total = 0
    for layer in model.layers:
        kernel = getattr(layer, "kernel", None)
        if kernel is None:
            continue
        transposed = isinstance(layer, keras.layers.Conv2DTranspose)
        shape = (layer.input if transposed else layer.output).shape[1:-1]
        total += math.prod(shape) * math.prod(kernel.shape)
    return total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
