"""Whether a device runs a network: the core asks here, and `udc_tf.export` answers when asked.

`export` stands on the core, which therefore brings it in with a call, never with an import.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import keras
from absl import logging

from udc_tf.cost.priced_network import Plan
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.trace import Graph, trace
from udc_tf.graph.verdicts import Check, refusals


def check(
    model: keras.Model,
    accelerator: str = "ethos-u55-128",
    *,
    space: Any = None,
    allow_cpu: bool = False,
) -> Check:
    """What an accelerator makes of a network, layer by layer, before anything is trained.

    Each layer is searched, kept as it is, on the CPU or refused, with the reason and with what to
    do instead. The rulebook of layers knows what can be written as int8; of what can, Vela and TFLM
    are asked with the largest and the smallest network of the space, untrained: some seconds.

    Args:
        model: a functional or Sequential model; it is left as it is.
        accelerator: Vela's name of the NPU.
        space: a `udc_tf.SearchSpace` or the name of a preset; "ethos_u55" by default.
        allow_cpu: whether operators may be left to the CPU; they are then counted and named.

    Returns:
        A `Check`: `ok`, `rows`, `refused`, `on_cpu`. Printed, it is a table.

    Example:

    >>> x = keras.Input((8, 8))
    >>> y = keras.layers.LSTM(4, recurrent_dropout=0.1, name="memory")(x)
    >>> found = check(keras.Model(x, keras.layers.Dense(2, name="head")(y)))
    >>> found.ok, [row.name for row in found.refused]
    (False, ['memory'])
    """
    return _asked().check(model, accelerator, space, allow_cpu)


def require_search(
    graph: Graph, groups: ChannelGroups, plan: Plan, accelerator: str, allow_cpu: bool
) -> None:
    """Raises a `ValueError` if the device does not run what a search may end with."""
    _require(_asked().check_search(graph, groups, plan, accelerator, allow_cpu))


def require_network(model: keras.Model, accelerator: str | None, allow_cpu: bool) -> None:
    """Raises a `ValueError` if the device does not run this network; warns if there is none."""
    if accelerator is not None:
        _require(_asked().check_network(model, accelerator, allow_cpu))
    else:
        require_int8(trace(model), ())


def require_int8(graph: Graph, accelerators: Sequence[str]) -> None:
    """Raises a `ValueError` for what no device runs, by the rulebook alone; warns if none is meant.

    Args:
        graph: the network.
        accelerators: the devices that it is meant for.
    """
    found = Check(graph.name, ", ".join(accelerators) or "any Ethos-U", refusals(graph))
    if accelerators:
        found.require()
    elif not found.ok:
        logging.warning("No device was named, so training goes on, but %s", found.sentence())


def with_first_sizes(problem: Any) -> Any:
    """A `SearchProblem` whose targets of flash know the files that Vela made of its extremes."""
    return importlib.import_module("udc_tf.export.first_sizes").with_first_sizes(problem)


def choose_within(search: Any) -> tuple[Any, tuple[float | None, ...]]:
    """Options of a search's decisions that Vela says are inside of every target, and what of each.

    That is None for a target that Vela knows nothing about.
    """
    trial = importlib.import_module("udc_tf.export.trials").choose_within(search)
    return trial.chosen, trial.needs


def is_within(search: Any, chosen: Any) -> bool:
    """Whether Vela says that these options of a search's decisions are inside of every target."""
    return importlib.import_module("udc_tf.export.trials").is_within(search, chosen)


def require_smallest(search: Any) -> None:
    """Raises a `ValueError` if Vela says that not even the smallest network keeps the targets."""
    importlib.import_module("udc_tf.export.trials").require_smallest(search)


def _require(found: Check) -> None:
    found.require()
    if found.on_cpu:
        named = ", ".join(str(row) for row in found.on_cpu)
        logging.warning("%d layers run on the CPU: %s", len(found.on_cpu), named)


def _asked() -> Any:
    return importlib.import_module("udc_tf.export.device_check")
