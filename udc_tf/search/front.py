"""Several budgets from one search: the front of size against accuracy.

During the warm-up the decisions stand still, so that one can serve every budget. It samples around
the first guess for a budget in the middle: weights that have seen all options alike serve no
configuration well, and those of neighbouring budgets are near. Each budget's own search goes on
from where the warm-up ended, with a first guess of its own.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras

from udc_tf.compact.architecture import Architecture
from udc_tf.cost.targets import Target
from udc_tf.search import setting_out
from udc_tf.search.model import SearchModel
from udc_tf.training import workers
from udc_tf.training.training_state import StateFolder


def set_out_for_all(search: SearchModel) -> None:
    """Where a warm-up for several budgets samples."""
    setting_out.warm_up(search)


def shared_epochs(warmup: float, epochs: int) -> int:
    """Whole epochs of a run that belong to its warm-up.

    >>> shared_epochs(0.5, 9), shared_epochs(0.2, 30)
    (4, 6)
    """
    return int(warmup * epochs + 1e-6)


def search_front(
    search: SearchModel,
    targets: Sequence[Target | Sequence[Target]],
    x: Any = None,
    y: Any = None,
    *,
    epochs: int,
    workdir: str | os.PathLike,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    **kwargs: Any,
) -> list[Architecture]:
    """Searches once for each of several budgets, with one warm-up for all.

    The longer the warm-up, the more is shared: of k budgets with a warm-up of w, the front costs
    w + k(1-w) searches instead of k. With `SearchSettings(warmup=2/3)` three budgets cost 1.67.

    Args:
        search: a compiled searchable model; the warm-up is for its own target, best one in the
            middle of `targets`.
        targets: for each network that is wanted, what `make_searchable` takes as `target`. They
            differ in their budgets only.
        x, y: as for `fit`.
        epochs: of warm-up and search together, for each budget.
        workdir: where states and architectures are kept, in a folder for each budget. Called again
            after an interruption, the search goes on from there.
        callbacks, kwargs: for `fit`.

    Returns:
        The architectures, in the order of the targets.

    Example:

    ```python
    settings = udc_tf.SearchSettings(warmup=2 / 3)
    search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("24KiB"), settings)
    search.compile(loss=..., metrics=[...])
    budgets = [udc_tf.Flash(size) for size in ("16KiB", "24KiB", "32KiB")]
    small, middle, large = udc_tf.search_front(search, budgets, train, epochs=30, workdir="front")
    ```
    """
    if not targets:
        raise ValueError("A front needs at least one target. Received: none")
    folder = pathlib.Path(workdir)

    def fit(state: StateFolder, **length: Any) -> None:
        search.fit(x, y, callbacks=list(callbacks), workdir=state, **length, **kwargs)

    shared = shared_epochs(search.settings.warmup, epochs)
    if not shared:
        raise ValueError(
            "There is nothing to share: the warm-up must be an epoch or more. Received: "
            f"warmup={search.settings.warmup} of {epochs} epochs"
        )
    names = [folder_name(target) for target in targets]
    if len(set(names)) < len(names):
        raise ValueError(f"The targets must differ. Received: {targets}")
    if not all((folder / name / "architecture.json").exists() for name in names):
        set_out_for_all(search)
        fit(StateFolder(folder / "warmup"), epochs=shared, planned_epochs=epochs)
    architectures = []
    for name, target in zip(names, targets, strict=True):
        found = folder / name / "architecture.json"
        if not found.exists():
            search.retarget(target)
            fit(StateFolder(folder / name / "state", begin_from=folder / "warmup"), epochs=epochs)
            architecture = search.architecture()
            if workers.is_chief():
                architecture.save(found)
            workers.barrier(search.distribute_strategy)
        architectures.append(Architecture.load(found))
    return architectures


def folder_name(target: Target | Sequence[Target]) -> str:
    """A folder for a target, by its budget.

    >>> from udc_tf.cost.targets import Flash, Macs
    >>> folder_name(Flash("24KiB")), folder_name([Flash("900B"), Macs(2e6)])
    ('24KiB', '900B')
    """
    first = target[0] if isinstance(target, Sequence) else target
    size = int(first.budget)
    return f"{size // 1024}KiB" if size % 1024 == 0 else f"{size}B"
