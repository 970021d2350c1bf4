"""Reading the architecture out of a searched model."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from absl import logging

from udc_tf import network_check
from udc_tf.compact.architecture import Architecture, LayerSummary, get_layer_weights
from udc_tf.compact.build import Compactor, Configuration, LayerChoice, carry_weights
from udc_tf.cost.device_targets import OnDevice
from udc_tf.cost.flash import FlashCost
from udc_tf.cost.macs import MacsCost
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import BoundTarget, Flash, Target
from udc_tf.layers.searchable_kernels import SearchableKernel
from udc_tf.quantize.quantizers import FLOAT_BITS
from udc_tf.search import decisions
from udc_tf.search.problem import SearchProblem
from udc_tf.search.repair import Budget, preferences, repair, smallest_of
from udc_tf.training import batch_norm
from udc_tf.training.seeding import seed_random_layers

if TYPE_CHECKING:
    from udc_tf.search.model import SearchModel

_FEW_WEIGHTS = 0.1  # of the predicted flash
_Option = TypeVar("_Option", int, float)


class UnreachedError(ValueError):
    """No configuration was found inside the targets, by what is predicted."""


def extract_architecture(search: "SearchModel", batches: Iterable[Any] | None) -> Architecture:
    """The most likely configuration inside every target, with the search's weights."""
    targets = search.problem.targets
    if not any(isinstance(t, OnDevice) for t in targets):
        predicted = _within_by_prediction(search)
        if predicted is not None:
            return architecture_of(search, predicted, batches)
    # Vela says what the device takes: of flash, too, where what is predicted will not do.
    chosen, asked = network_check.choose_within(search)
    found = architecture_of(search, chosen, batches)
    needs = [
        line if need is None else need_of(target, need)
        for target, need, line in zip(targets, asked, found.needs, strict=True)
    ]
    return dataclasses.replace(found, needs=tuple(needs))


def _within_by_prediction(search: "SearchModel") -> np.ndarray | None:
    """The most likely options inside the targets; None where only Vela can say what is inside.

    What is predicted of flash may be some percent too low. `export` then takes that away from the
    weights, unless there are next to none.
    """
    problem = search.problem
    flash = [b for t, b in zip(problem.targets, problem.bound, strict=True) if isinstance(t, Flash)]
    can_ask = flash and problem.compactable is not None
    try:
        chosen = repaired_choice(search)
    except UnreachedError:
        if can_ask:
            return None
        raise
    if can_ask and any(weight_share(b, chosen) < _FEW_WEIGHTS for b in flash):
        return chosen if network_check.is_within(search, chosen) else None
    return chosen


def weight_share(flash: Any, chosen: np.ndarray) -> float:
    """Of all predicted bytes of flash those of weights.

    Args:
        flash: a bound target of flash.
    """
    counts = flash.maps.counts(flash.maps.one_hot(chosen))
    return float(flash.priced.weight_bytes(counts).sum() / flash.cost(counts))


def most_likely_architecture(search: "SearchModel") -> Architecture:
    """The most likely configuration as it is, without weights: inside the targets or not."""
    likely = decisions.most_likely(search.state.log_probabilities())
    return describe(search, likely.numpy().argmax(axis=1))


def architecture_of(
    search: "SearchModel", chosen: np.ndarray, batches: Iterable[Any] | None = None
) -> Architecture:
    """The architecture of any choice of options, with the search's weights."""
    plain = describe(search, chosen)
    if search.problem.compactable is None:
        return plain
    graph, groups = search.problem.compactable
    compactor = Compactor(graph, groups, plain.configuration)
    compact = compactor.build()
    carry_weights(compactor.layers, search_weights(search, plain.choices))
    layers = batch_norm.batch_norm_layers(compact)
    if layers and batches is None:
        logging.warning(
            "No data to measure batch-norm statistics on: give `statistics`. The network keeps "
            "those of the search, which mix many configurations."
        )
    elif layers and batches is not None:
        seed_random_layers(compact, search.settings.seed)  # which are at work while it measures
        batch_norm.measure_statistics(layers, lambda x: compact(x, training=True), batches)
    return dataclasses.replace(plain, weights=get_layer_weights(compact))


def repaired_choice(
    search: "SearchModel", scores: np.ndarray | None = None, budget: Budget | None = None
) -> np.ndarray:
    """Option numbers: the most likely ones (or by other scores), moved inside the targets.

    Args:
        search: the searched model.
        scores: what is thought of each option; None takes the search's preferences.
        budget: the targets; None takes the search's.
    """
    budget, plan = budget or Budget(search.problem.bound), search.problem.plan
    worth = None
    if scores is None:
        scores = preferences(search.state.log_probabilities().numpy(), plan)
        worth = search.state.worth()
    smallest = smallest_of(plan, budget)
    chosen = repair(scores, search.state.valid.numpy(), budget, smallest, worth)
    ratio = budget.ratio(chosen)
    if ratio > 1:
        raise UnreachedError(f"No configuration inside the targets was found: {ratio:.1%} of them.")
    return chosen


def chosen_options(plan: Plan, choices: Mapping[str, float], base: np.ndarray) -> np.ndarray:
    """Option numbers from names and values; decisions that are not named stay as in `base`."""
    known = {d.name: i for i, d in enumerate(plan.decisions)}
    chosen = base.copy()
    for name, value in choices.items():
        if name not in known:
            raise ValueError(f"The decisions are {', '.join(known)}. Received: {name!r}")
        options = plan.decisions[known[name]].options
        near = np.isclose(options, value)
        if not near.any():
            raise ValueError(f"The options of {name} are {options}. Received: {value!r}")
        chosen[known[name]] = int(near.argmax())
    return chosen


def describe(search: "SearchModel", chosen: np.ndarray) -> Architecture:
    """The architecture of option numbers, without weights."""
    return describe_choice(search.problem, chosen)


def describe_choice(problem: SearchProblem, chosen: np.ndarray) -> Architecture:
    """The same for a problem that nothing searches."""
    plan = problem.plan
    choices = {d.name: d.options[k] for d, k in zip(plan.decisions, chosen, strict=True)}
    flash = next((t for t in problem.targets if isinstance(t, Flash)), None)
    floats = any(FLOAT_BITS in (layer.options.bits or ()) for layer in plan.layers)
    bound = (flash.cost if flash else FlashCost()).bind(plan) if not floats else None
    maps = (bound or problem.bound[0]).maps
    counts = maps.counts(maps.one_hot(chosen))
    size = bound.layer_bytes(counts) if bound else counts.weights * counts.bits / 8
    countable = all(layer.positions is not None for layer in plan.layers)
    macs = float(MacsCost().bind(plan).cost(counts)) if countable else 0
    layers = []
    for i, layer in enumerate(plan.layers):
        if not counts.present[i]:
            continue
        kernel = choices.get(f"kernel/{layer.name}", _only(layer.options.kernels))
        rank = len(layer.kernel_size)
        layers.append(
            LayerSummary(
                name=layer.name,
                kernel_size=(int(kernel),) * rank if kernel else layer.kernel_size,
                inputs=round(float(counts.inputs[i])),
                outputs=round(float(counts.outputs[i])),
                original_outputs=len(layer.outputs),
                bits=int(choices.get(f"bits/{layer.name}", _only(layer.options.bits) or 8)),
                nonzeros=float(counts.nonzeros[i]),
                weights=round(float(counts.weights[i])),
                bytes=round(float(size[i]), 1),
            )
        )
    return Architecture(
        source=problem.source or {},
        configuration=_configuration(plan, choices),
        choices=choices,
        layers=tuple(layers),
        flash_bytes=round(float(bound.cost(counts))) if bound else 0,
        macs=round(macs),
        targets=tuple(t.to_dict() for t in problem.targets),
        needs=tuple(
            _need(t, b, chosen) for t, b in zip(problem.targets, problem.bound, strict=True)
        ),
    )


def _need(target: Target, bound: BoundTarget, chosen: np.ndarray) -> dict[str, Any]:
    """What of a target's budget a configuration needs, as predicted."""
    return need_of(target, float(bound.cost(bound.maps.counts(bound.maps.one_hot(chosen)))))


def need_of(target: Target, cost: float) -> dict[str, Any]:
    """A line of `Architecture.needs`."""
    need, have = round(cost), round(target.budget)
    return {
        "what": target.describe(need),
        "need": need,
        "have": have,
        "excess": max(need - have, 0),
    }


def _only(options: tuple[_Option, ...] | None) -> _Option | None:
    """The option of a decision that has just one; None where nothing is searched."""
    return options[0] if options else None


def _configuration(plan: Plan, choices: Mapping[str, float]) -> Configuration:
    channels = {}
    for g, counts in plan.widths.items():
        name = plan.groups[g].name
        fraction = choices.get(f"width/{name}")
        channels[name] = (
            counts[0] if fraction is None else round(fraction * plan.groups[g].channels)
        )
    layers = {}
    for layer in plan.layers:
        options = layer.options
        kernel = choices.get(f"kernel/{layer.name}", _only(options.kernels))
        layers[layer.name] = LayerChoice(
            bits=int(choices.get(f"bits/{layer.name}", _only(options.bits) or FLOAT_BITS)),
            nonzeros=float(choices.get(f"sparsity/{layer.name}", _only(options.sparsities) or 1.0)),
            kernel_size=None if kernel is None else int(kernel),
        )
    branches = {d.subject: int(choices[d.name]) for d in plan.decisions if d.kind == "choice"}
    return Configuration(channels, layers, branches)


def search_weights(
    search: "SearchModel", choices: Mapping[str, float]
) -> dict[str, dict[str, np.ndarray]]:
    """The searched network's weights by the original layers' names, ranges of the chosen bits."""
    weights = {}
    for name, layer in search.layers_by_name.items():
        values = {v.name: v.numpy() for v in layer.weights}
        if isinstance(layer, SearchableKernel):
            ranges, options = values.pop("log_ranges", None), layer.options.bits
            values.pop("buckets", None)
            if ranges is not None and options is not None:
                bits = choices.get(f"bits/{name}", options[0])
                values["log_range"] = ranges[options.index(bits)]
        weights[name] = values
    return weights
