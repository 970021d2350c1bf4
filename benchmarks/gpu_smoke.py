"""Ten steps of every recipe on random data: for the first who has a GPU, to see that it runs.

    python -m benchmarks.gpu_smoke
    python -m benchmarks.gpu_smoke --recipes=cifar10 --batch_size=8 --samples=2

Each row has the device, seconds to the first step and per step after it, of the search and of
finetuning, the highest memory in use, what `--dry_run` estimates for the search, and how many
weights are in another mask than numpy puts them into on the host, which must be none.
"""

import functools
import resource
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import flags

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, Stopwatch, table
from udc_tf.cli.dry_run import StepClock
from udc_tf.cli.options import Options, Run, resolve
from udc_tf.cli.training_steps import make_search
from udc_tf.finetune.run import finetune
from udc_tf.layers.links import Sampled
from udc_tf.models.recipes import RECIPES
from udc_tf.quantize import masks, ranking
from udc_tf.search.memory_estimate import step_memory
from udc_tf.search.model import SearchModel
from udc_tf.training.workers import Workers

_STAGES = 3


def measure(options: Options, steps: int, workers: Workers) -> Row:
    """Trains what the options say for `steps` steps of search, and about as many of finetuning."""
    run = resolve(options)
    _forget_peak()
    with workers.scope():
        search = make_search(run, run.build_model(None, run.recipe.classes), run.recipe)
    row: Row = {"device": _device(), "batch": run.search_batch}
    row["estimated MiB"] = round(step_memory(search, run.search_batch).total / 2**20)
    clock = StepClock()
    watch = Stopwatch()
    search.fit(random_batches(run, search, steps), verbose=0, shuffle=False, callbacks=[clock])
    row["search"] = _times(clock, watch)
    row["masks that differ"] = masks_that_differ(search)
    with workers.scope():
        tiny = search.architecture().build()
    clock, watch = StepClock(), Stopwatch()
    finetune(
        tiny,
        random_batches(run, search, max(2, steps // _STAGES)),
        stages=udc_tf.Stages(epochs=(1,) * _STAGES),
        loss=search.loss,
        metrics=[],
        callbacks=[clock],
        verbose=0,
        accelerator=run.device,
    )
    row["finetuning"] = _times(clock, watch)
    row["peak MiB"] = _peak_mib()
    return row


def random_batches(run: Run, search: SearchModel, steps: int) -> tf.data.Dataset:
    """Made as they are asked for: some recipes' batches are gigabytes."""
    (inputs,), (outputs,) = search.network.inputs, search.network.outputs
    batch, classes = run.search_batch, outputs.shape[-1]

    def made(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seed = tf.stack([tf.cast(step, tf.int32), run.seed])
        x = tf.random.stateless_normal([batch, *inputs.shape[1:]], seed)
        if run.recipe.task == "classification":
            return x, tf.random.stateless_uniform([batch], seed, 0, classes, tf.int32)
        return x, tf.random.stateless_normal([batch, *outputs.shape[1:]], seed)

    return tf.data.Dataset.range(steps).map(made).prefetch(1)


def masks_that_differ(search: SearchModel) -> int:
    """Weights that the device ranks otherwise than numpy does."""
    pi, count = Sampled(tf.exp(search.state.log_probabilities())[None]), 0
    for layer in search.kernel_layers:
        if layer.buckets is None:
            continue
        magnitude = np.abs(keras.ops.convert_to_numpy(layer.theta))
        activity = layer.activity(pi).numpy()
        wanted = masks.nested_buckets(magnitude, activity, layer.options.sparsities or ())
        found = layer.ranked_buckets(pi, sorting=ranking.sorts_here()).numpy()
        count += int(np.sum(found != wanted))
    return count


def _times(clock: StepClock, watch: Stopwatch) -> Row:
    return {
        "s to the end": watch.read().wall,
        "s per step": round(clock.seconds_per_step(), 4),
    }


def _gpu() -> str | None:
    found = tf.config.list_logical_devices("GPU")
    return found[0].name if found else None


def _device() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return "CPU"
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
    return f"{len(gpus)} x {name}"


def _forget_peak() -> None:
    if gpu := _gpu():
        tf.config.experimental.reset_memory_stats(gpu)


def _peak_mib() -> int:
    """Of the GPU's allocator; without a GPU, of the whole process so far."""
    if gpu := _gpu():
        return round(tf.config.experimental.get_memory_info(gpu)["peak"] / 2**20)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10)


def report(rows: Mapping[str, Row]) -> str:
    head = ("recipe", "device", "batch", "search, s/step", "finetuning, s/step", "peak MiB",
            "estimated", "masks that differ")  # fmt: skip
    lines = [
        (
            name, row["device"], row["batch"], row["search"]["s per step"],
            row["finetuning"]["s per step"], row["peak MiB"], row["estimated MiB"],
            row["masks that differ"],
        )
        for name, row in rows.items()
    ]  # fmt: skip
    return table(head, lines)


def run(rows: Rows) -> str:
    given = flags.FLAGS
    workers = Workers.by_strategy("auto")
    for name in given.recipes or RECIPES:
        options = Options(
            recipe=name,
            batch_size=given.batch_size,
            samples=given.samples,
            samples_per_pass=given.samples_per_pass,
            teacher="none",
        )
        rows.once(name, functools.partial(measure, options, given.steps, workers))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_list("recipes", None, "Which; all by default.")
    flags.DEFINE_integer("steps", 10, "Of the search; finetuning has a third in each stage.")
    flags.DEFINE_integer("batch_size", None, "Instead of the recipes' own.")
    flags.DEFINE_integer("samples", None, "Instead of the recipes' own.")
    flags.DEFINE_integer("samples_per_pass", None, "Instead of the recipes' own.")
    harness.main(run, "gpu_smoke")
