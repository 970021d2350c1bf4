"""What each part of the search is worth: the paper's ablation, at this project's size.

    python -m benchmarks.ablation                        # runs what is missing, then reports
    python -m benchmarks.ablation --only_report

Fashion-MNIST at 14x14 with the comparison's network, its middle budget. Every run adds its row
to results/ablation.json; ablation.md is the report, with figures beside it:

- parts: the search without one part or another. E(argmax) / e* before the repair, accuracy of the
  most likely configuration inside the shared weights, and after repair and a short finetuning.
- random search: best accuracy against the number of trials, from compare.json.
- number format: levels beyond the pruned zone (Q^) against plain ones (Q), at several densities.
- gradient variance: of the gradient of the logits, by samples and temperature.
- search cost: from step_overhead.json.
"""

import functools
import pathlib

import keras
import numpy as np
import tensorflow as tf
from absl import flags

import udc_tf
from benchmarks import ablation_report, harness
from benchmarks.compare import tasks
from benchmarks.compare.methods import deployed, proposed, searched
from benchmarks.compare.runs import Run
from benchmarks.compare.sizing import SPACE, Bench
from benchmarks.harness import Row, Rows, Stopwatch
from benchmarks.networks import uniform_compact
from udc_tf.models import resnet8
from udc_tf.search import sampling

_ONE = {"samples": 1}
_NO_REJECTION = {"rejection": False}
_NO_PROJECTION = {"projection": False}
_DISTANCE = {"evidence": 0.0, "price": 0.0}  # |E - e*|, and nothing asked of the loss
_UNIFORM = {"certainty": 0.0, **_DISTANCE}  # as in the paper, without a first guess
# Name -> what differs from the defaults.
PARTS = {
    "full": {},
    "vanilla": None,  # SearchSettings.vanilla
    "no projection": _NO_PROJECTION,
    "no rejection": _NO_REJECTION,
    "uniform start": _UNIFORM,
    "1 sample": _ONE,
    "lambda 0.1": {**_DISTANCE, "strength": 0.1},
    "lambda 10": {**_DISTANCE, "strength": 10.0},
    "no evidence": {"evidence": 0.0},
    "|E - e*|": _DISTANCE,
    "vanilla, lambda 10": 10.0,
    "uniform start, no projection": {**_UNIFORM, **_NO_PROJECTION},
    "uniform start, no rejection": {**_UNIFORM, **_NO_REJECTION},
    "8 samples": {"samples": 8},
    "no warm-up": {"warmup": 0.0},
    "no rejection, no projection": {**_NO_REJECTION, **_NO_PROJECTION},
    "vanilla, lambda 0.1": 0.1,
}
FORMATS = {"Q^": "shifted", "Q": "plain"}
DENSITIES = (0.05, 0.2, 0.5)
FORMAT_BITS = (2, 4)
SAMPLES, TEMPERATURES = (1, 2, 4, 8), (0.66, 0.33, 0.1)
_GRADIENTS = 48  # draws of which the variance is taken


def settings_of(part: str, seed: int) -> udc_tf.SearchSettings:
    changes = PARTS[part]
    if isinstance(changes, dict):
        return udc_tf.SearchSettings(seed=seed, **changes)
    return udc_tf.SearchSettings.vanilla(1.0 if changes is None else changes, seed=seed)


def part(bench: Bench, run: Run, finetune_epochs: int) -> Row:
    """A search with something left out, and what becomes of its choice."""
    task, target = bench.task, bench.target(run.budget)
    watch = Stopwatch()  # without the size fit, if one was made just now
    search, found = searched(task, target, settings_of(run.setting, run.seed), run.epochs)
    found["search_cpu_seconds"] = watch.read().cpu
    shared = search.evaluate(*task.validation, batch_size=500, verbose=0, return_dict=True)
    found["shared_accuracy"] = round(float(shared["accuracy"]), 4)
    tiny = proposed(search, task, target).build()
    udc_tf.finetune(
        tiny,
        task.train,
        stages=udc_tf.Stages(epochs=finetune_epochs),
        batch_size=task.batch_size,
        seed=run.seed,
        verbose=0,
    )
    found |= deployed(tiny, task, target)
    return {**found, "finetune_epochs": finetune_epochs, "cpu_seconds": watch.read().cpu}


def number_format(bench: Bench, run: Run) -> Row:
    """A half-wide network of few non-zeros, trained from scratch in one number format."""
    name, bits, density = run.setting.split(", ")
    watch = Stopwatch()
    keras.utils.set_random_seed(run.seed)
    half = tuple(max(2, f // 2) for f in bench.task.filters)
    model = resnet8(bench.task.input_shape, 10, half)
    tiny = uniform_compact(model, int(bits.split()[0]), float(density.rstrip("%")) / 100)
    stages = udc_tf.Stages(epochs=run.epochs, number_format=FORMATS[name])
    udc_tf.finetune(
        tiny,
        bench.task.train,
        stages=stages,
        batch_size=bench.task.batch_size,
        seed=run.seed,
        verbose=0,
    )
    accuracy = tiny.evaluate(*bench.task.test, batch_size=500, verbose=0, return_dict=True)
    return {
        "test_accuracy": round(float(accuracy["accuracy"]), 4),
        "cpu_seconds": watch.read().cpu,
    }


def gradient_variance(bench: Bench, run: Run) -> Row:
    """The largest variance, over options, of the gradient of the logits on one batch.

    After a warm-up, at undecided logits. More samples share the batch, as in the search.
    """
    task = bench.task
    keras.utils.set_random_seed(run.seed)
    settings = udc_tf.SearchSettings(seed=run.seed, warmup=0.99)
    search = udc_tf.make_searchable(task.network(), SPACE, bench.target(run.budget), settings)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    search.compile(loss=loss)
    search.fit(*task.train, batch_size=task.batch_size, epochs=run.epochs, verbose=0)
    search.state.logits.assign(tf.zeros_like(search.state.logits))
    x, y = (tf.constant(a[: task.batch_size]) for a in task.train)
    logits, valid = search.state.logits.value, search.state.valid
    kappa = tf.constant(search.state._kappa)
    table = {}
    for samples in SAMPLES:

        @tf.function
        def gradient(seed, tau, samples=samples):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                z = sampling.draw(
                    logits,
                    valid,
                    kappa,
                    samples=samples,
                    tau=tau,
                    vartheta=tf.constant(0.0),
                    seed=tf.stack([seed, seed + 1]),
                )
                task_loss = loss(y, search.predict_by_samples(x, z))
                size_loss = tf.reduce_mean(tf.abs(search.cost_ratios(z) - 1.0))
                total = task_loss + settings.strength * size_loss
            return tape.gradient(total, logits)

        for tau in TEMPERATURES:
            draws = [
                gradient(tf.constant(7 * n, tf.int64), tf.constant(tau)).numpy()
                for n in range(_GRADIENTS)
            ]
            table[f"{samples} samples, tau {tau}"] = float(np.var(draws, axis=0).max())
    return {"largest_variance": table}


def plan(seeds, epochs: int, images: int, budget: int):
    """Runs in order, the most telling first."""
    for seed in seeds:
        if seed == seeds[0]:
            yield Run("fashion", "variance", "warm", budget, seed, 1, images)
        for name in PARTS:
            yield Run("fashion", "part", name, budget, seed, epochs, images)
        for bits in FORMAT_BITS:
            for density in DENSITIES:
                for name in FORMATS:
                    setting = f"{name}, {bits} bits, {density:.0%}"
                    yield Run("fashion", "format", setting, None, seed, epochs, images)


def run(rows: Rows) -> str:
    given = flags.FLAGS
    cache = pathlib.Path(given.cache).expanduser()
    bench = functools.cache(
        lambda: Bench(tasks.load("fashion", given.images, cache), cache, given.size_compiles)
    )
    work = {
        "part": functools.partial(part, finetune_epochs=given.finetune_epochs),
        "variance": gradient_variance,
        "format": number_format,
    }

    def perform(one: Run) -> Row:
        keras.utils.clear_session()
        return one.row(work[one.method](bench(), one))

    budget = given.budget or tasks.BUDGETS["fashion"][1]
    for one in plan([int(s) for s in given.seeds], given.epochs, given.images, budget):
        if one.method in given.figures:
            rows.once(one.key, functools.partial(perform, one))
    return ablation_report.write_report(rows.read(), rows.path, pathlib.Path(given.compared))


if __name__ == "__main__":
    flags.DEFINE_list("seeds", ["0", "1", "2"], "One after the other.")
    flags.DEFINE_list("figures", ["part", "variance", "format"], "Which kinds of runs to do.")
    flags.DEFINE_integer("epochs", 4, "Of the search, and of the number format's runs.")
    flags.DEFINE_integer("finetune_epochs", 3, "After the search.")
    flags.DEFINE_integer("images", 8_000, "To train on.")
    flags.DEFINE_integer("budget", None, "Bytes; the comparison's middle one by default.")
    flags.DEFINE_integer("size_compiles", 16, "Networks that the size fit compiles.")
    flags.DEFINE_string(
        "compared", str(harness.RESULTS / "compare.json"), "The comparison's rows: random search."
    )
    flags.DEFINE_string("cache", tasks.CACHE, "As for the comparison.")
    harness.main(run, "ablation")
