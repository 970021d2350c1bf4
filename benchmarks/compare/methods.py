"""How each method of the comparison comes to its network; all end in the same export.

Equal training: a method has `epochs` passes over the training images, the search's included. All
networks are trained by `udc_tf.finetune` with its default stages and rates (TFMOT's excepted, which
follows the same rates). Where export has to tighten a network, two epochs follow, as on the command
line, whatever the method; its row says so.

Equal flash: what a method proposes is compiled before it is trained on, with weights of some
training, and proposed anew until it takes up the budget (`sizing`). That is counted for none.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

import udc_tf
from benchmarks.compare.runs import Run
from benchmarks.compare.sizing import (
    LOSS,
    SPACE,
    Bench,
    most_likely_within,
    sized,
    statistics_batches,
)
from benchmarks.compare.tasks import Task
from benchmarks.harness import Row, Stopwatch
from udc_tf.cost.priced_network import Plan
from udc_tf.export import tflite_file
from udc_tf.export.errors import BudgetError
from udc_tf.export.integer_network import Quantization
from udc_tf.search import decisions
from udc_tf.search.extract import architecture_of, describe
from udc_tf.search.repair import preferences
from udc_tf.training.divergence import DivergedError, not_finite

# bits, non-zeros: each with the largest width that fits. The first is int8 by width alone. Dense 4
# bits and 2 bits of 50% were in the grid once, and never its best (three budgets, one seed, runs of
# 8,000 images).
UNIFORM = ((8, 1.0), (8, 0.2), (4, 0.5), (4, 0.2), (4, 0.1))
INT8 = "8 bits, 100%"
STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0)  # lambda of vanilla DNAS
# Random preferences that are repaired: wide enough for any option to come out on top.
WISH_SPREAD = 3.0


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A way to search: what differs from the defaults, and how many images it sees.

    Attributes:
        instead: bits and non-zeros of a network of full width that takes over the search's weights
            in place of what the search chose; it may be too large for the budget.
    """

    search: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stages: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    instead: tuple[int, float] | None = None
    # 250 steps. Runs as short as these lack training above all: of 12 epochs, 6 of search led to
    # 0.850, 4 to 0.845, 2 to 0.857 (Fashion-MNIST, 10,000 images, 9,000 bytes, seed 0, validation).
    search_images: int = 16_000

    def search_epochs(self, run: Run) -> int:
        """In whole epochs; something is left for finetuning."""
        return max(1, min(run.epochs - 1, round(self.search_images / run.images)))


# "udc" is what the table reports; the others are to find out what helps (--methods=udc,udc:fresh).
RECIPES = {
    # Half of it warm-up: in two epochs, the first guess would else be made after fifty steps.
    "udc": Recipe({"warmup": 0.5}),
    "udc:fresh": Recipe({"warmup": 0.5}, stages={"start": "fresh"}),
    # What of the distance to a uniform network is the choice, and what the search's epochs.
    "udc:uniform instead": Recipe({"warmup": 0.5}, instead=(4, 0.2)),
}


def search_method(bench: Bench, run: Run, recipe: Recipe) -> Row:
    """Search, repair, finetune with the weights that the search left."""
    task, watch = bench.task, Stopwatch()
    search_epochs = recipe.search_epochs(run)
    target = bench.target(run.budget)
    settings = udc_tf.SearchSettings(**{**recipe.search, "seed": run.seed})
    search, found = searched(task, target, settings, search_epochs)
    found["search_cpu_seconds"] = watch.read().cpu
    if recipe.instead is None:
        arch = proposed(search, task, target)
    else:
        chosen = uniform_options(search.problem.plan, 1.0, *recipe.instead)
        arch = architecture_of(search, chosen, statistics_batches(task))
    found["predicted_bytes"] = arch.flash_bytes
    found["layers"] = [(q.outputs, q.bits, round(q.nonzeros, 3)) for q in arch.layers]
    tiny = arch.build()
    stages = udc_tf.Stages(epochs=run.epochs - search_epochs, **recipe.stages)
    return {**found, **trained_and_deployed(bench, run, tiny, stages, target, watch)}


def searched(task: Task, target, settings: udc_tf.SearchSettings, epochs: int):
    """The searched model, and where its most likely configuration stood before the repair."""
    keras.utils.set_random_seed(settings.seed)
    search = udc_tf.make_searchable(task.network(), SPACE, target, settings)
    search.compile(loss=LOSS, metrics=["accuracy"])
    history = search.fit(*task.train, batch_size=task.batch_size, epochs=epochs, verbose=0).history
    log_pi = search.state.log_probabilities()
    ratio = float(search.cost_ratios(decisions.most_likely(log_pi)[None])[0])
    return search, {
        "argmax_ratio": round(ratio, 4),
        "met_before_repair": ratio <= 1.0,
        "entropy": round(float(history["entropy"][-1]), 4),
    }


def proposed(search, task: Task, target: udc_tf.Flash) -> udc_tf.Architecture:
    """What a search ended with, repaired to take up the budget, as `architecture` does it."""
    scores = preferences(search.state.log_probabilities().numpy(), search.problem.plan)
    worth = search.state.worth()
    return sized(lambda b: most_likely_within(search, scores, b, task, worth), task, target)


def dnas_recipe(setting: str) -> Recipe:
    """Plain differentiable search with the lambda named by the setting."""
    plain = dataclasses.asdict(udc_tf.SearchSettings.vanilla(float(setting.split()[-1])))
    return Recipe({k: v for k, v in plain.items() if k != "seed"})


def uniform(bench: Bench, run: Run) -> Row:
    """The widest network of given bits and non-zeros that fits, trained from scratch."""
    watch = Stopwatch()
    bits, nonzeros = parse_uniform(run.setting)
    if run.budget is None:
        target, arch = None, widest_uniform(bench, udc_tf.Flash("64MiB"), bits, nonzeros)
    else:
        target = bench.target(run.budget)
        arch = widest_uniform(bench, target, bits, nonzeros)
    if arch is None:
        return {"budget_met": False, "failed": "no width is small enough"}
    found = {"predicted_bytes": arch.flash_bytes, "channels": channels_of(arch)}
    keras.utils.set_random_seed(run.seed)
    tiny = arch.build(inherit_weights=False)
    stages = udc_tf.Stages(epochs=run.epochs)
    return {**found, **trained_and_deployed(bench, run, tiny, stages, target, watch)}


def channels_of(arch: udc_tf.Architecture) -> list[int]:
    return [layer.outputs for layer in arch.layers]


def uniform_setting(bits: int, nonzeros: float) -> str:
    return f"{bits} bits, {nonzeros:.0%}"


def parse_uniform(setting: str) -> tuple[int, float]:
    """
    >>> parse_uniform(uniform_setting(4, 0.25))
    (4, 0.25)
    """
    bits, share = setting.split(" bits, ")
    return int(bits), float(share.rstrip("%")) / 100


def widest_uniform(bench: Bench, target, bits: int, nonzeros: float):
    """The architecture with one width for all layers, in steps of a 64th; None if none fits."""
    space = udc_tf.SearchSpace(
        widths=tuple(n / 64 for n in range(1, 65)),
        bits=tuple({1, bits, 8}),
        sparsities=tuple({0.01, nonzeros, 1.0}),
    )
    # No budget here: what fits is decided below.
    any_size = dataclasses.replace(target, budget=2**30)
    search = udc_tf.make_searchable(bench.plain_network(), space, any_size)

    def propose(predicted: float):
        for n in range(64, 0, -1):
            chosen = uniform_options(search.problem.plan, n / 64, bits, nonzeros)
            if describe(search, chosen).flash_bytes <= predicted:
                return architecture_of(search, chosen, statistics_batches(bench.task))
        return None

    return sized(propose, bench.task, target)


def uniform_options(plan: Plan, width: float, bits: int, nonzeros: float) -> np.ndarray:
    """Option numbers for the same in all layers, as near as there are options.

    The first and the last layer stay dense with 8 bits, as is usual where bits are uniform.
    """
    inner = {"width": width, "bits": bits, "sparsity": nonzeros}
    outer = {**inner, "bits": 8, "sparsity": 1.0}
    ends = (plan.layers[0].name, plan.layers[-1].name)

    def nearest(decision) -> int:
        wanted = (outer if decision.subject in ends else inner)[decision.kind]
        return int(np.abs(np.asarray(decision.options) - wanted).argmin())

    return np.asarray([nearest(d) for d in plan.decisions])


def random_trial(bench: Bench, run: Run, draw: int) -> Row:
    """Random preferences for every option, repaired to the budget; trained from scratch."""
    watch = Stopwatch()
    target = bench.target(run.budget)
    search = udc_tf.make_searchable(bench.plain_network(), SPACE, target)
    valid = search.state.valid.numpy()
    wish = WISH_SPREAD * np.random.default_rng(draw).normal(size=valid.shape)
    wish = np.where(valid, wish, -np.inf)
    arch = sized(lambda b: most_likely_within(search, wish, b, bench.task), bench.task, target)
    found = {"draw": draw, "predicted_bytes": arch.flash_bytes, "channels": channels_of(arch)}
    keras.utils.set_random_seed(run.seed)
    tiny = arch.build(inherit_weights=False)
    stages = udc_tf.Stages(epochs=run.epochs)
    return {**found, **trained_and_deployed(bench, run, tiny, stages, target, watch)}


def trained_and_deployed(bench: Bench, run: Run, tiny, stages, target, watch: Stopwatch) -> Row:
    task = bench.task

    def train(network, how):
        settings = {"batch_size": task.batch_size, "seed": run.seed, "verbose": 0}
        udc_tf.finetune(network, task.train, stages=how, **settings)

    try:
        train(tiny, stages)
        training = watch.read().cpu
        row = deployed(tiny, task, target, lambda network: train(network, stages.recovery()))
        row["training_cpu_seconds"] = training
    except DivergedError as error:
        row = {"budget_met": False, "failed": str(error)}
    cpu, wall = watch.read()
    return {**row, "cpu_seconds": cpu, "seconds": wall}


def deployed(
    tiny: keras.Model,
    task: Task,
    target: udc_tf.Flash | None,
    recover: Callable[[keras.Model], None] | None = None,
) -> Row:
    """Exports, tightening if need be, and scores the int8 file."""
    if (bad := not_finite(tiny)) is not None:
        raise DivergedError(f"{bad} is not finite.")  # a ReLU may hide it from the loss
    options = {"calibration": task.train[0][:256], "recover": recover}
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = udc_tf.export.export(tiny, folder, target=target, **options)
        except BudgetError as error:
            return {"budget_met": False, "failed": str(error)}
        return {
            "flash_bytes": result.flash_bytes,
            "budget_met": target is None or result.flash_bytes <= target.budget,
            "tightening_rounds": len(result.report["tightening"]),
            **int8_accuracies(result.tflite_path, task),
        }


def int8_accuracies(path: pathlib.Path, task: Task) -> dict[str, float]:
    """Of an int8 .tflite on validation and test images."""
    file = tflite_file.read(path)
    quantize = Quantization.of_tensor(file.tensors[file.inputs[0]]).quantize
    accuracies = {}
    for part in ("validation", "test"):
        x, y = getattr(task, part)
        outputs = udc_tf.export.run(path, quantize(x), on="tflite").outputs[0]
        right = outputs.reshape(len(x), -1).argmax(axis=1) == y
        accuracies[f"{part}_accuracy"] = round(float(right.mean()), 4)
    return accuracies
