"""The two steps that train: search and finetuning."""

import dataclasses
import math
import pathlib
import sys
import time
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from absl import logging

import udc_tf
from udc_tf import export
from udc_tf.cli.checks import load_teacher
from udc_tf.cli.history import EpochLines
from udc_tf.cli.image_sets import score_sets
from udc_tf.cli.options import Run, steps_per_epoch
from udc_tf.cli.tasks import task_of
from udc_tf.cli.usage import Say, UsageError
from udc_tf.cli.workdir import WorkDir, write_json
from udc_tf.cost.targets import Target
from udc_tf.files import replaced_atomically
from udc_tf.finetune.run import finetune
from udc_tf.models.data import Dataset, FileDataset
from udc_tf.saved_models import load_model
from udc_tf.search.model import SearchModel
from udc_tf.training.schedules import CosineOverRun
from udc_tf.training.tensorboard_log import TensorBoard
from udc_tf.training.training_state import StateFolder
from udc_tf.training.workers import Workers

ALONE = Workers()
_SCORES = ("validation_score", "test_score")
_VALIDATIONS = 10  # of a search: each measures the batch-norm statistics anew


class HasInputs(Protocol):
    """Data, or what stands in for them."""

    @property
    def input_shape(self) -> tuple[int, ...]: ...


def make_search(
    run: Run, model: keras.Model, data: HasInputs, targets: list[Target] | None = None
) -> SearchModel:
    """The searchable model of a run and its network, compiled."""
    targets = targets or run.targets()
    # Random layers take their seeds from the process, which may have drawn before or not.
    keras.utils.set_random_seed(run.seed)
    search = udc_tf.make_searchable(
        model, run.recipe.space, targets, run.recipe.search, allow_cpu=run.allow_cpu
    )
    task, rate = task_of(run.recipe.task), run.recipe.decision_learning_rate
    search.compile(
        optimizer=run.recipe.make_optimizer(_rate(run)),
        decision_optimizer=None if rate is None else keras.optimizers.Adam(rate),
        loss=task.loss(model),
        metrics=task.metrics(),
    )
    search(np.zeros((1, *data.input_shape), "float32"))  # built, so that its state can be restored
    return search


def run_search(
    run: Run, work: WorkDir, say: Say = print, workers: Workers = ALONE
) -> udc_tf.Architecture:
    """Searches, or reads what an earlier search found."""
    if work.architecture.exists():
        found = load_architecture(work)
        say(f"search: done before, {work.architecture}")
        return found
    data = run.load_data()
    say(f"search: {data.describe()}")
    # First of all, so that its layers are named alike however often a run is interrupted.
    model = run.build_model(data.input_shape, data.classes)
    targets = fitted_targets(run, work, model, say, workers)
    with workers.scope():
        search = make_search(run, model, data, targets)
    train_search(search, run, work, data, say, workers)
    return keep_architecture(search, work, workers)


def train_search(
    search: SearchModel,
    run: Run,
    work: WorkDir,
    data: Dataset | FileDataset,
    say: Say,
    workers: Workers,
    until: int | None = None,
    begin_from: WorkDir | None = None,
) -> None:
    """Trains for all epochs of the run, or only `until` one of them.

    What another run's search left in `begin_from` is where a new one begins.
    """
    steps = steps_per_epoch(len(data.train), run.search_batch)
    train = data.training_batches(
        run.search_batch,
        run.recipe.augmentation,
        run.seed,
        epoch=lambda: search.state.steps_done() // steps,
    )
    epochs = run.recipe.search_epochs
    logs = [TensorBoard(work.tensorboard), *epoch_lines("search", epochs, say)]
    started = time.monotonic()
    search.fit(
        train,
        epochs=until or epochs,
        planned_epochs=epochs,
        validation_data=data.batches("validation", run.recipe.batch_size),
        validation_freq=max(1, epochs // _VALIDATIONS),
        callbacks=logs if workers.is_chief else [],
        workdir=state_folder(work, "search", begin_from),
        shuffle=False,  # `training_batches` does
        verbose=verbosity(workers),
    )
    if workers.is_chief:
        work.add_results(search_seconds=_seconds(work, "search_seconds", started))


def keep_architecture(
    search: SearchModel, work: WorkDir, workers: Workers = ALONE
) -> udc_tf.Architecture:
    """The architecture that a search ended with, and what a report says about the search."""
    architecture = search.architecture()
    if not workers.is_chief:
        return architecture
    write_json(
        work.probabilities,
        {name: [list(p.keys()), list(p.values())] for name, p in search.probabilities().items()},
    )
    work.add_results(
        predicted_flash_bytes=architecture.flash_bytes,
        macs=architecture.macs,
        original_parameters=sum(math.prod(v.shape) for v in search.network.trainable_variables),
        left_out=search.problem.plan.left_out,
        changes=[dataclasses.asdict(change) for change in search.changes()],
    )
    architecture.save(work.architecture)  # last: its presence says that the step is done
    return architecture


def fitted_targets(
    run: Run, work: WorkDir, model: keras.Model, say: Say, workers: Workers = ALONE
) -> list[Target]:
    """The targets, those for a device with what Vela says about some of this network's kind."""
    if run.device is None or run.size_compiles == 0:
        return run.targets()
    if not work.size_model.exists():
        say(f"search: compiling {run.size_compiles} networks of this space, to know their sizes")
    # Networks that are only measured need no batch-norm statistics, of which the core would warn.
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        with workers.chief_first():
            fitted = export.fit_size_model(
                model,
                run.recipe.space,
                run.targets(),
                path=work.size_model,
                configurations=run.size_compiles,
                seed=run.seed,
                allow_cpu=run.allow_cpu,
            )
    finally:
        logging.set_verbosity(verbosity)
    return fitted


def run_finetune(run: Run, work: WorkDir, say: Say = print, workers: Workers = ALONE) -> None:
    """Finetunes, unless an earlier run did."""
    if not work.architecture.exists():
        raise UsageError(f"{work.path} has no architecture yet: run udc-search there first.")
    if work.network.exists():
        _measure_again(run, work, say, workers)
        say(f"finetune: done before, {work.network}")
        return
    data = run.load_data()
    architecture = load_architecture(work)
    recipe, task = run.recipe, task_of(run.recipe.task)
    say(f"finetune: {recipe.stages.total_epochs} epochs in stages of {recipe.stages.epochs}")
    with workers.scope():
        tiny = architecture.build()
        teacher = load_teacher(run, tiny)
    logs = [
        TensorBoard(work.tensorboard / "finetune"),
        *epoch_lines("finetune", recipe.stages.total_epochs, say),
    ]
    started = time.monotonic()
    finetune(
        tiny,
        data.training_batches(recipe.batch_size, recipe.augmentation, run.seed),
        validation_data=data.batches("validation", recipe.batch_size),
        stages=recipe.stages,
        teacher=teacher,
        loss=task.loss(tiny, recipe.stages.label_smoothing),
        metrics=task.metrics(),
        optimizer=keras.optimizers.Adam() if recipe.optimizer == "adam" else None,
        workdir=state_folder(work, "finetune"),
        callbacks=logs if workers.is_chief else (),
        seed=run.seed,
        verbose=verbosity(workers),
        accelerator=run.device,
        allow_cpu=run.allow_cpu,
    )
    if not workers.is_chief:
        return
    if workers.strategy is not None:
        # What is left the chief does alone, with a network that waits for nobody.
        together, tiny = tiny, architecture.build()
        tiny.set_weights(together.get_weights())
    work.add_results(
        finetune_seconds=_seconds(work, "finetune_seconds", started), **_scores(run, tiny, data)
    )
    work.forget_results("verification")  # of another network, if there is one
    save_network(tiny, work.network)


def _measure_again(run: Run, work: WorkDir, say: Say, workers: Workers) -> None:
    """The scores of a finetuned network whose results are lost."""
    results = work.read_results()
    if workers.is_chief and not all(isinstance(results.get(n), float) for n in _SCORES):
        say(f"finetune: {work.results} lacks the scores; measured again")
        data = run.load_data()
        work.add_results(**_scores(run, load_network(work), data))


def _scores(run: Run, network: keras.Model, data: Dataset | FileDataset) -> dict[str, Any]:
    return {
        "metric": task_of(run.recipe.task).metric,
        "examples": {part: len(data.part(part)) for part in ("train", "validation", "test")},
        **evaluate_parts(run, network, data),
    }


def recover(run: Run, network: keras.Model, data: Dataset | FileDataset, say: Say = print) -> None:
    """Two more epochs for a network that export made smaller."""
    recipe, task = run.recipe, task_of(run.recipe.task)
    say("export: a little over the budget; tightened, and finetuned for two epochs more")
    finetune(
        network,
        data.training_batches(recipe.batch_size, recipe.augmentation, run.seed + 1),
        stages=recipe.stages.recovery(),
        loss=task.loss(network, recipe.stages.label_smoothing),
        metrics=task.metrics(),
        optimizer=keras.optimizers.Adam() if recipe.optimizer == "adam" else None,
        seed=run.seed,
        verbose=0,
        accelerator=run.device,
        allow_cpu=run.allow_cpu,
    )


def save_network(network: keras.Model, path: pathlib.Path) -> None:
    with replaced_atomically(path) as partial:
        network.save(partial, include_optimizer=False)


def evaluate_parts(run: Run, network: keras.Model, data: Dataset | FileDataset) -> dict[str, Any]:
    """The task's metric on the validation and the test part, and on whole images."""
    scores: dict[str, Any] = {
        f"{part}_score": evaluate(run, network, data.batches(part, run.recipe.batch_size))
        for part in ("validation", "test")
    }
    if run.recipe.task == "super_resolution":
        scores["sets"] = score_sets(network, run.options.data_dir)
    return scores


def load_network(work: WorkDir) -> keras.Model:
    return load_model(work.network, "remove it, and the same command finetunes anew")


def load_architecture(work: WorkDir) -> udc_tf.Architecture:
    remedy = f"remove {work.architecture.name}, and the same command takes it anew from the search"
    return udc_tf.Architecture.load(work.architecture, remedy)


def evaluate(run: Run, model: keras.Model, batches: tf.data.Dataset) -> float:
    """The task's metric of a model on batches."""
    task = task_of(run.recipe.task)
    # A name of its own: Keras would number it, and the number would be saved with the network.
    sgd = keras.optimizers.SGD(name="sgd")
    model.compile(sgd, task.loss(model), metrics=task.metrics(), jit_compile=False)
    return float(model.evaluate(batches, verbose=0, return_dict=True)[task.metric])


def _rate(run: Run) -> CosineOverRun:
    return CosineOverRun(*run.recipe.learning_rate, warmup=run.recipe.search.warmup)


def state_folder(work: WorkDir, step: str, begin_from: WorkDir | None = None) -> StateFolder:
    shared = None if begin_from is None else begin_from.state(step)
    return StateFolder(work.state(step), shared, work.history(step))


def _seconds(work: WorkDir, name: str, started: float) -> float:
    return round(float(work.read_results().get(name, 0)) + time.monotonic() - started, 1)


def verbosity(workers: Workers) -> int:
    return 1 if sys.stdout.isatty() and workers.is_chief else 0


def epoch_lines(step: str, epochs: int, say: Say) -> list[keras.callbacks.Callback]:
    return [] if sys.stdout.isatty() else [EpochLines(step, epochs, say)]


def calibration_inputs(data: Dataset | FileDataset, count: int = 256) -> np.ndarray:
    """Inputs of the train part for export, spread over it."""
    return data.arrays("train", count)[0]
