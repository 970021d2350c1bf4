"""A whole run of `udc` for 4x super resolution, beside the network as it is and bicubic.

    python -m benchmarks.super_resolution --workdir=FOLDER

Far shorter than the recipe. The network that is searched in is trained for as many epochs, in float
and with all its multiplications. Both can be interrupted and started again. PSNR is that of the Y
channel on set5 and set14.
"""

import math
import pathlib
from collections.abc import Mapping

import keras
from absl import flags

from benchmarks import harness
from benchmarks.harness import SHARED, Row, Rows, table
from udc_tf.cli.commands import main as udc
from udc_tf.cli.history import EpochLines
from udc_tf.cli.image_sets import SETS, score_sets
from udc_tf.cli.options import Options, Run, resolve
from udc_tf.cli.tasks import task_of
from udc_tf.cli.workdir import WorkDir
from udc_tf.models import fsrcnn

PASSED_ON = ("workdir", "data_dir", "search_epochs", "finetune_epochs", "learning_rate")


def measure(given: Mapping[str, object]) -> Row:
    arguments = ["--recipe=super_resolution", *(f"--{name}={given[name]}" for name in PASSED_ON)]
    if code := udc("udc", ["udc", *arguments]):
        raise SystemExit(code)
    work = WorkDir.open(given["workdir"])
    run = resolve(Options().over(work.read_record()["options"]))
    return {"searched": work.read_results(), "baseline": baseline(run, work.path / "baseline")}


def baseline(run: Run, folder: pathlib.Path) -> Row:
    """Trains the network as it is for as many epochs as search and finetuning had."""
    data, recipe, task = run.load_data(), run.recipe, task_of(run.recipe.task)
    keras.utils.set_random_seed(run.seed)
    model = fsrcnn(data.input_shape, search_depth=False)
    epochs = recipe.search_epochs + recipe.stages.total_epochs
    steps = math.ceil(len(data.train) / recipe.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(
        recipe.learning_rate[0], epochs * steps, alpha=1e-3
    )
    adam = keras.optimizers.Adam(rate)
    model.compile(adam, task.loss(model), metrics=task.metrics(), jit_compile=False)
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
            keras.callbacks.BackupAndRestore(str(folder / "state"), delete_checkpoint=False),
        ],
    )
    scores = model.evaluate(data.batches("test", recipe.batch_size), verbose=0, return_dict=True)
    return {
        "epochs": epochs,
        "parameters": model.count_params(),
        "test_score": float(scores[task.metric]),
        "sets": score_sets(model, run.options.data_dir),
        "macs": _macs(model),
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


def report(rows: Mapping[str, Row]) -> str:
    lines = []
    for name, row in rows.items():
        for kind, found in row.items():
            psnr = (f"{found['sets'][s]['psnr']:.2f}" for s in SETS)
            lines.append((name, kind, *psnr, f"{found['macs'] / 1e6:.1f}"))
        bicubic = (f"{found['sets'][s]['bicubic']:.2f}" for s in SETS)
        lines.append((name, "bicubic", *bicubic, ""))
    return table(("run", "", *(f"{s}, dB" for s in SETS), "million MACs at 64x64"), lines)


def run(rows: Rows) -> str:
    given = flags.FLAGS.flag_values_dict()
    epochs = f"{given['search_epochs']} + {given['finetune_epochs']} epochs"
    rows.once(f"{epochs}, learning rate {given['learning_rate']}", lambda: measure(given))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_string("workdir", "runs/super_resolution", "Where the run is kept.")
    flags.DEFINE_string("data_dir", str(SHARED / "data" / "super_resolution"), "The images.")
    flags.DEFINE_integer("search_epochs", 4, "Of the search.")
    flags.DEFINE_integer("finetune_epochs", 6, "Of finetuning.")
    flags.DEFINE_float("learning_rate", 0.001, "Of the search.")
    harness.main(run, "super_resolution")
