"""Several budgets at once: one warm-up, then a search for each."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, cast

from udc_tf.cli.options import Run
from udc_tf.cli.training_steps import (
    fitted_targets,
    keep_architecture,
    make_search,
    train_search,
)
from udc_tf.cli.usage import Say, UsageError
from udc_tf.cli.workdir import WorkDir
from udc_tf.cost.targets import Target
from udc_tf.files import replaced_atomically
from udc_tf.search.front import set_out_for_all, shared_epochs
from udc_tf.training.workers import Workers


def front_sections(runs: Mapping[str, Run]) -> dict[str, dict[str, Any]]:
    """What the steps of a front depend on: as those of one budget, with all of them."""
    sections = [run.sections() for run in runs.values()]
    budgets = [section["search"]["flash"] for section in sections]
    return {**sections[0], "search": {**sections[0]["search"], "flash": budgets}}


def _flash(run: Run) -> int:
    if run.flash_target is None:
        raise UsageError("A front is of several --flash budgets. Received: none")
    return run.flash_target.budget


def _with_budgets(fitted: Sequence[Target], own: Sequence[Target]) -> list[Target]:
    """Targets with the costs of the first and the budgets of the second."""
    pairs = zip(fitted, own, strict=True)
    return [dataclasses.replace(cast(Any, a), budget=b.budget) for a, b in pairs]


def search_front(
    runs: Mapping[str, Run], top: WorkDir, parts: Mapping[str, WorkDir], say: Say, workers: Workers
) -> None:
    """Searches for all budgets that have no architecture yet; their folders are in `parts`."""
    if all(part.architecture.exists() for part in parts.values()):
        say("search: done before, for all budgets")
        return
    middle = sorted(runs.values(), key=_flash)[len(runs) // 2]
    data = middle.load_data()
    say(f"search: {data.describe()}")
    # One size model for all, fitted near the middle of them; export checks what is compiled.
    model = middle.build_model(data.input_shape, data.classes)
    targets = fitted_targets(middle, top, model, say, workers)
    with workers.scope():
        search = make_search(middle, model, data, targets)
    shared = shared_epochs(middle.recipe.search.warmup, middle.recipe.search_epochs)
    say(f"search: {shared} epochs of warm-up for all {len(runs)} budgets")
    set_out_for_all(search)
    train_search(search, middle, top, data, say, workers, until=shared)
    for name, run in runs.items():
        work = parts[name]
        if work.architecture.exists():
            say(f"search: done before, {work.architecture}")
            continue
        say(f"search: {name}")
        if workers.is_chief and top.size_model.exists() and not work.size_model.exists():
            with replaced_atomically(work.size_model) as partial:
                shutil.copy(top.size_model, partial)
        search.retarget(_with_budgets(targets, run.targets()))
        train_search(search, run, work, data, say, workers, begin_from=top)
        say(keep_architecture(search, work, workers).table())
        workers.wait()
