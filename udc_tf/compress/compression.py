"""`compress`: a trained model to a budget without training, in minutes."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from udc_tf.compress.compress_settings import CompressSettings
from udc_tf.compress.compressor import Compressor
from udc_tf.compress.examples import checked_labels, gives_logits, take_examples, trained_model
from udc_tf.compress.put_back_norms import with_norms
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import Target
from udc_tf.quantize.plain_numbers import is_number
from udc_tf.search.front import folder_name
from udc_tf.search.make import checked_targets, problem_of
from udc_tf.search.space import SearchSpace

# Without training, large steps cost most: bits one by one, and shares of non-zeros down to a tenth.
SPACE = SearchSpace(
    bits=(2, 3, 4, 5, 6, 7, 8), sparsities=(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0)
)


def compress(
    model: keras.Model | str | os.PathLike,
    target: Target | Sequence[Target],
    data: Any,
    *,
    space: SearchSpace | None = None,
    labels: Any = None,
    seconds: float | None = None,
    workdir: str | os.PathLike | None = None,
    settings: CompressSettings | None = None,
    seed: int = 0,
    allow_cpu: bool = False,
    say: Callable[[str], object] = print,
) -> keras.Model:
    """A trained model inside a budget, without training.

    Bits and non-zeros are chosen for each layer by what they cost at the network's outputs; weights
    are then pruned and rounded so that each layer's outputs stay as they were; biases, batch norms
    and activation ranges are set for that; at last the outputs of the whole network are brought
    nearer to the original's. The result is compiled, so that the budget is known to hold;
    `udc_tf.export.export` writes it.

    Args:
        model: a trained functional or Sequential model, or the path of its .keras or .h5 file. It
            is left as it is.
        target: `udc_tf.Flash(...)` or another target, or several that must all hold.
        data: some hundred inputs such as the network will see, without labels: an array, a list or
            dictionary of arrays, a `tf.data.Dataset` or batches.
        space: the bits and sparsities to choose from; channels and kernels are not cut.
        labels: class numbers of the examples. The accuracy on them is then reported; besides, the
            outputs are known to be logits if they are no probabilities. A model that was compiled
            with a cross-entropy of logits says that by itself.
        seconds: after so many, no further effects are measured at the network's outputs, those of
            the layers that are left are estimated, and the outputs of the whole are not matched.
        workdir: where sensitivities and the result are kept. Called again after an interruption,
            with the same arguments, it goes on from there.
        settings: which parts are at work.
        seed: of the noise with which importances are estimated.
        allow_cpu: whether operators that the NPU does not run may be left to the CPU.
        say: is told of progress.

    Returns:
        The compact model, as `Architecture.build()` gives it; `tiny.architecture` is that
        architecture, its weights included, and `tiny.compression` tells how it went.

    Raises:
        ValueError: the model, the examples or the labels will not do, the device does not run the
            network, or no choice of options is inside the targets.

    Example:

    >>> import numpy as np
    >>> import udc_tf
    >>> x = keras.Input((8, 8, 1))
    >>> y = keras.layers.Conv2D(8, 3, activation="relu")(x)
    >>> model = keras.Model(x, keras.layers.Dense(10)(keras.layers.Flatten()(y)))
    >>> images = np.random.default_rng(0).normal(size=(32, 8, 8, 1)).astype("float32")
    >>> model.compile("adam", "mse")
    >>> _ = model.fit(images, np.ones((32, 10)), verbose=0)
    >>> few = udc_tf.CompressSettings(steps=50)  # by itself it takes more
    >>> tiny = udc_tf.compress(
    ...     model, udc_tf.Flash("3500B"), images, settings=few
    ... )  # doctest: +ELLIPSIS
    compress: the least is ... bytes of flash, the budget is 3,500 bytes of flash...
    >>> tiny.compression.flash_bytes <= 3500
    True
    """
    (tiny,) = compress_front(
        model,
        [checked_targets(target)],
        data,
        space=space,
        labels=labels,
        seconds=seconds,
        workdir=workdir,
        settings=settings,
        seed=seed,
        allow_cpu=allow_cpu,
        say=say,
    )
    return tiny


def compress_front(
    model: keras.Model | str | os.PathLike,
    targets: Sequence[Target | Sequence[Target]],
    data: Any,
    *,
    space: SearchSpace | None = None,
    labels: Any = None,
    seconds: float | None = None,
    workdir: str | os.PathLike | None = None,
    settings: CompressSettings | None = None,
    seed: int = 0,
    allow_cpu: bool = False,
    say: Callable[[str], object] = print,
) -> list[keras.Model]:
    """The same for several budgets, from one measurement of the sensitivities.

    Args:
        targets: for each network that is wanted, what `compress` takes as `target`.
        workdir: as there; of several targets, each has a folder of its own in it.

    All other arguments are those of `compress`.

    Example:

    ```python
    budgets = [udc_tf.Flash(size) for size in ("24KiB", "32KiB", "48KiB")]
    for tiny in udc_tf.compress_front("trained.keras", budgets, images):
        print(tiny.compression.flash_bytes, tiny.compression.divergence)
    ```
    """
    begun = time.process_time()
    _require_plain(seconds, seed, settings, workdir, say)
    until = None if seconds is None else time.monotonic() + seconds
    wanted = [checked_targets(target) for target in targets]
    if not wanted:
        raise ValueError("A front needs at least one target. Received: none")
    folders: list[Path | None] = [None if workdir is None else Path(workdir) for _ in wanted]
    if len(wanted) > 1 and workdir is not None:
        folders = [Path(workdir, folder_name(one)) for one in wanted]
        if len(set(folders)) < len(folders):
            raise ValueError(f"The targets must differ. Received: {targets}")
    settings, space = settings or CompressSettings(), _checked_space(space)
    model = trained_model(model)
    are_logits = labels is not None or gives_logits(model)
    if settings.put_back_norms:
        problem_of(model, space, wanted[0], allow_cpu)  # refuses what cannot be, as it was given
        model = with_norms(model)
    problems = [problem_of(model, space, one, allow_cpu) for one in wanted]
    _require_no_choices(problems[0].plan)
    inputs = take_examples(model, data, settings.examples)
    classes = checked_labels(model, labels, len(inputs[0]))
    problems[0].require_device()
    compressor = Compressor(
        model,
        problems[0],
        inputs,
        classes,
        settings,
        seed,
        say,
        workdir,
        until,
        begun,
        are_logits=are_logits,
    )
    if len(problems) > 1:
        for problem in problems:
            compressor.require_reachable(problem)
    return [
        compressor.compressed(problem, folder)
        for problem, folder in zip(problems, folders, strict=True)
    ]


def _require_plain(seconds: Any, seed: Any, settings: Any, workdir: Any, say: Any) -> None:
    if seconds is not None and not (is_number(seconds) and seconds > 0):
        raise ValueError(f"`seconds` must be a number above zero, or None. Received: {seconds!r}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"`seed` must be a whole number, at least 0. Received: {seed!r}")
    if settings is not None and not isinstance(settings, CompressSettings):
        raise ValueError(f"`settings` must be udc_tf.CompressSettings(...). Received: {settings!r}")
    if not callable(say):
        raise ValueError(f"`say` must be a function of a line of text. Received: {say!r}")
    if workdir is not None and Path(workdir).exists() and not Path(workdir).is_dir():
        raise ValueError(f"`workdir` must be a folder. Received: {str(workdir)!r}, a file")


def _checked_space(space: SearchSpace | None) -> SearchSpace:
    space = SPACE if space is None else space
    if not isinstance(space, SearchSpace) or space.widths or space.kernels:
        raise ValueError(
            "Without training, bits and sparsities are chosen, no channels and no kernel sizes: "
            "udc_tf.SearchSpace(bits=..., sparsities=...); to cut channels, search "
            f"(udc_tf.make_searchable). Received: {space!r}"
        )
    return space


def _require_no_choices(plan: Plan) -> None:
    choices = [d.subject for d in plan.decisions if d.kind == "choice"]
    if choices:
        raise ValueError(
            "A model without `Choice` layers is needed: search decides about those. Received: "
            f"{', '.join(choices)}"
        )
