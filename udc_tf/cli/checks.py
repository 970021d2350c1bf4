"""What can be known before the first step is checked before it: nothing is written until then."""

import os
from collections.abc import Mapping, Sequence

import keras
from absl import logging

import udc_tf
from udc_tf.cli.options import Run
from udc_tf.cli.usage import UsageError
from udc_tf.cli.workdir import WorkDir
from udc_tf.files import DamagedFileError
from udc_tf.finetune.step import check_teacher
from udc_tf.graph.verdicts import Check
from udc_tf.models.data import Dataset, FileDataset
from udc_tf.saved_models import load_model
from udc_tf.search.make import searchable, searchable_to_fit
from udc_tf.training.training_data import fits_shape


def check_runs(runs: Mapping[str, Run], work: WorkDir, steps: Sequence[str]) -> None:
    """Checks data, network, budgets and teacher of runs that differ in their budgets alone.

    Args:
        runs: by the names of their budgets.
        work: where they will be; what is done there needs no check.
        steps: those that the command has.

    Raises:
        ValueError: in one sentence.
    """
    run = next(iter(runs.values()))
    if "finetune" in steps and not work.network.exists():
        _check_distillation(run)
    data = run.load_data()
    check_augmentation(run, data)
    will_search = "search" in steps and not work.architecture.exists()
    will_finetune = tuple(steps) != ("export",) and not work.network.exists()
    with_teacher = will_finetune and run.options.teacher not in (None, "none")
    if not will_search and not with_teacher:
        return
    network = run.build_model(data.input_shape, data.classes)
    check_outputs(run, network, data)
    if with_teacher:
        load_teacher(run, network)
    if will_search:
        targets = [target for each in runs.values() for target in each.targets()]
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)  # the search itself will warn of a large budget
        try:
            if run.device is not None and run.size_compiles > 0:
                searchable_to_fit(network, run.recipe.space, targets, run.recipe.search)
            else:
                searchable(network, run.recipe.space, targets, run.recipe.search)
        finally:
            logging.set_verbosity(verbosity)
        check_device(run, network, steps)


def _check_distillation(run: Run) -> None:
    name = run.recipe.name
    if run.recipe.distil and run.options.teacher is None:
        raise UsageError(
            f"{name} distils, as the paper does. `udc-teacher --recipe={name} --workdir=FOLDER` "
            "trains a teacher; then say --teacher=FOLDER/teacher.keras, or --teacher=none to go "
            "without. Received: no --teacher"
        )


def check_device(run: Run, network: keras.Model, steps: Sequence[str]) -> Check | None:
    """Whether the NPU runs the network, if it is for one.

    That is so if it has a budget of flash, or if one of the steps is to export it.

    Raises:
        ValueError: it does not; in one sentence.
    """
    if run.device is None and "export" not in steps:
        return None
    found = udc_tf.check(network, run.accelerator, space=run.recipe.space, allow_cpu=run.allow_cpu)
    found.require()
    return found


def check_augmentation(run: Run, data: Dataset | FileDataset) -> None:
    """Whether the examples are what the augmentation takes."""
    if run.recipe.augmentation is not None and len(data.input_shape) != 3:
        raise UsageError(
            "Only images are augmented: say --augmentation=none. Received: data with examples of "
            f"shape {data.input_shape}"
        )


def check_outputs(run: Run, network: keras.Model, data: Dataset | FileDataset) -> None:
    """Whether the network gives what the task's loss compares with the data."""
    if len(network.outputs) != 1:
        raise UsageError(f"The network must have one output. Received: {len(network.outputs)}")
    given = tuple(network.output_shape[1:])
    if run.recipe.task == "classification":
        wanted = f"at least {data.classes} numbers, one for each class of the data"
        fits = len(given) == 1 and given[0] is not None and given[0] >= data.classes
    else:
        shape = tuple(data.train.y.shape[1:])
        wanted = f"what the data have as targets, of shape {shape}"
        fits = fits_shape(given, shape)
    if not fits:
        raise UsageError(
            f"For --task={run.recipe.task} the network must give {wanted}. Received: a network "
            f"with an output of shape {given}"
        )


def load_teacher(run: Run, student: keras.Model) -> keras.Model | None:
    """The teacher that the flags name, if it can teach `student`."""
    path = run.options.teacher
    if path in (None, "none"):
        return None
    if not os.path.isfile(path):
        raise UsageError(f"There is no file {path} for --teacher.")
    try:
        teacher = load_model(path, "give another --teacher, or --teacher= for none")
    except DamagedFileError as error:
        raise UsageError(f"--teacher={path} cannot be loaded as a .keras model: {error}") from error
    try:
        check_teacher(teacher, student)
    except ValueError as error:
        raise UsageError(f"--teacher={path}: {error}") from error
    return teacher
