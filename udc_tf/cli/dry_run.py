"""`--dry_run`: what would be searched, how small it can get, what memory and time it takes."""

import collections
import itertools
import math
import statistics
import time
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from udc_tf.cli.checks import check_device, check_outputs
from udc_tf.cli.options import Run, steps_per_epoch
from udc_tf.cli.training_steps import make_search
from udc_tf.cli.usage import Say
from udc_tf.cli.workdir import STEPS
from udc_tf.cost.priced_network import Decision
from udc_tf.models.data import DataError, Dataset, FileDataset
from udc_tf.search.memory_estimate import step_memory
from udc_tf.search.model import SearchModel

_TIMED_STEPS = 3
_LARGEST_BATCH = 32  # an ImageNet network's own batches would take minutes and gigabytes


def dry_run(run: Run, say: Say = print, timed: bool = True) -> None:
    """Prints the plan of a run."""
    data = data_or_stand_in(run, say)
    model = run.build_model(data.input_shape, data.classes)
    if not isinstance(data, _StandIn):
        check_outputs(run, model, data)
    checked = check_device(run, model, STEPS)
    search = make_search(run, model, data)
    plan = search.problem.plan
    kernels = [layer.theta for layer in search.layers_by_name.values() if hasattr(layer, "theta")]
    weights = sum(math.prod(kernel.shape) for kernel in kernels)
    say(f"network: {search.name.removesuffix('_search')}, {weights:,} weights in kernels")
    combinations = sum(math.log10(len(d.options)) for d in plan.decisions)
    say(f"search space: {len(plan.decisions)} decisions, about 10^{combinations:.0f} networks")
    for text, count in _counted(_describe(d) for d in plan.decisions).items():
        say(f"  {count:3} x {text}")
    for reach in search.reachable():
        say(f"reachable: {reach}; budget {reach.target.describe(reach.target.budget)}")
    say("not searched:" if plan.left_out else "not searched: nothing")
    for name, reason in plan.left_out.items():
        say(f"  {name}: {reason}")
    if checked is not None:
        say(f"device: {str(checked).splitlines()[-1]}")
        for row in checked.on_cpu:
            say(f"  on the CPU: {row}")
    say(f"memory of the search: {step_memory(search, run.search_batch)}")
    if timed:
        _say_time(run, search, data, say)


def _describe(decision: Decision) -> str:
    options = [round(o, 2) for o in decision.options]
    if len(options) > 6:
        # Fractions that make whole channels differ a little from layer to layer.
        return f"{decision.kind}: {len(options)} options from {options[0]:.1g} to {options[-1]:g}"
    return f"{decision.kind}: {', '.join(f'{o:g}' for o in options)}"


def _counted(texts: Iterable[str]) -> dict[str, int]:
    return dict(collections.Counter(texts))


class _StandIn:
    """Data of the recipe's shapes, where the real ones are not at hand."""

    def __init__(self, run: Run):
        recipe = run.recipe
        self.input_shape, self.classes = tuple(recipe.input_shape), recipe.classes
        self.train = range(50_000)


def data_or_stand_in(run: Run, say: Say) -> "Dataset | FileDataset | _StandIn":
    """The data if they are on this machine, else something of their recipe's shapes."""
    try:
        data = run.load_data(download=False)
        say(f"data: {data.describe()}")
        return data
    except DataError as error:
        if run.options.model is not None:
            raise
        say(f"data: not at hand, taken as 50,000 examples ({error})")
        return _StandIn(run)


def _say_time(
    run: Run, search: SearchModel, data: Dataset | FileDataset | _StandIn, say: Say
) -> None:
    batch = min(run.search_batch, _LARGEST_BATCH)
    count = batch * (1 + _TIMED_STEPS)
    shape = () if run.recipe.task == "classification" else search.network.output_shape[1:]
    x, y = np.zeros((count, *data.input_shape), "float32"), np.zeros((count, *shape), "float32")
    clock = StepClock()
    search.fit(x, y, batch_size=batch, epochs=1, verbose=0, callbacks=[clock])
    per_example = clock.seconds_per_step() / batch
    steps = steps_per_epoch(len(data.train), run.search_batch)
    searched = run.recipe.search_epochs * len(data.train) * per_example
    # A finetuning step costs about as much as one of the search.
    finetuned = run.recipe.stages.total_epochs * len(data.train) * per_example
    say(
        f"time on this machine: search {_duration(searched)} ({run.recipe.search_epochs} epochs of "
        f"{steps:,} steps), finetuning {_duration(finetuned)} "
        f"({run.recipe.stages.total_epochs} epochs), from {_TIMED_STEPS} timed steps"
    )


class StepClock(keras.callbacks.Callback):
    """Times all steps but the first, which traces."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._ends.append(time.perf_counter())

    def seconds_per_step(self) -> float:
        """The median: in one of them the search makes its first guess."""
        return statistics.median(b - a for a, b in itertools.pairwise(self._ends))


def _duration(seconds: float) -> str:
    """
    >>> _duration(30), _duration(600), _duration(20000)
    ('30 s', '10 min', '5.6 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
