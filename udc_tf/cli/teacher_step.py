"""`udc-teacher`: trains a recipe's network as it is, for others to distil from."""

import dataclasses
from typing import Any

import keras

from udc_tf.cli.checks import check_augmentation, check_outputs
from udc_tf.cli.options import Options, Run, resolve, steps_per_epoch
from udc_tf.cli.tasks import task_of
from udc_tf.cli.training_steps import epoch_lines, evaluate, save_network, state_folder, verbosity
from udc_tf.cli.usage import Say, UsageError
from udc_tf.cli.workdir import WorkDir
from udc_tf.models.data import Dataset, FileDataset
from udc_tf.training.divergence import EndsWhenNotFinite, told_briefly
from udc_tf.training.schedules import CosineOverRun
from udc_tf.training.training_data import for_replicas
from udc_tf.training.training_state import KeepState, TrainingState, state_of
from udc_tf.training.workers import Workers, spans_processes

_STEP = "teacher"
# What of a search's configuration a teacher depends on as well.
_SHARED = (
    "recipe", "model", "arguments", "task", "data", "content of the data", "image_size", "channels",
    "clip_seconds", "window", "sequences", "examples", "learning_rate", "optimizer", "augmentation",
    "seed",
)  # fmt: skip


def teacher_run(options: Options) -> Run:
    """The run whose network becomes the teacher; budgets do not matter for it."""
    return resolve(dataclasses.replace(options, flash=None), needs_budget=False)


def run_teacher(run: Run, work: WorkDir, line: str, say: Say, workers: Workers) -> None:
    """Trains the teacher in a folder, or goes on with it; `line` is the command."""
    if workers.strategy is not None and spans_processes(workers.strategy):
        raise UsageError(
            "A teacher is trained by one process, on as many GPUs as it has: run udc-teacher "
            "without TF_CONFIG. Received: several workers"
        )
    data = run.load_data()
    check_augmentation(run, data)
    with workers.scope():
        model = run.build_model(data.input_shape, data.classes)
        check_outputs(run, model, data)
    work.begin(_STEP, {_STEP: _section(run)}, run.options.given(), line)
    if not work.teacher.exists():
        say(f"teacher: {data.describe()}; {_epochs(run)} epochs")
        _train(run, model, work, data, say, workers)
    say(f"teacher: {work.teacher}; distil with --teacher={work.teacher}")


def _epochs(run: Run) -> int:
    return run.options.teacher_epochs or run.recipe.search_epochs


def _section(run: Run) -> dict[str, Any]:
    """What the teacher depends on, as it is compared with a work directory's."""
    search, stages = run.sections()["search"], run.recipe.stages
    return {
        **{name: search[name] for name in _SHARED if name in search},
        "batch_size": run.recipe.batch_size,
        "epochs": _epochs(run),
        "l2": stages.l2,
        "label_smoothing": stages.label_smoothing,
    }


def _train(
    run: Run,
    model: keras.Model,
    work: WorkDir,
    data: Dataset | FileDataset,
    say: Say,
    workers: Workers,
) -> None:
    recipe, task, epochs = run.recipe, task_of(run.recipe.task), _epochs(run)
    steps = steps_per_epoch(len(data.train), recipe.batch_size)
    rate = CosineOverRun(*recipe.learning_rate, steps=epochs * steps)
    with workers.scope():
        optimizer = recipe.make_optimizer(rate)
        smoothing = recipe.stages.label_smoothing
        model.compile(optimizer, task.loss(model, smoothing), metrics=task.metrics())
        optimizer.build(model.trainable_variables)
    _regularize(model, recipe.stages.l2)
    variables = {"network": state_of(model), "optimizer": optimizer.variables}
    state = TrainingState(state_folder(work, _STEP), _STEP, variables, _section(run))
    state.restore()
    train = data.training_batches(
        recipe.batch_size,
        recipe.augmentation,
        run.seed,
        epoch=lambda: state.progress.epochs,
    )
    with told_briefly():
        model.fit(
            for_replicas(train, model.distribute_strategy.num_replicas_in_sync),
            epochs=epochs,
            initial_epoch=state.progress.epochs,
            validation_data=data.batches("validation", recipe.batch_size),
            callbacks=[*epoch_lines(_STEP, epochs, say), EndsWhenNotFinite(), KeepState(state)],
            shuffle=False,  # `training_batches` does
            verbose=verbosity(workers),
        )
    score = evaluate(run, model, data.batches("test", recipe.batch_size))
    say(f"teacher: test {task.label} {task.describe(score)}")
    save_network(model, work.teacher)


def _regularize(model: keras.Model, l2: float) -> None:
    """As finetuning does: a gradient of l2 times the weight, on kernels only."""
    for variable in model.trainable_variables:
        if variable.name.endswith("kernel"):
            variable.regularizer = keras.regularizers.L2(l2 / 2) if l2 else None
