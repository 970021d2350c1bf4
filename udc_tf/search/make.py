"""`make_searchable`: from an ordinary Keras model to one that searches its own configuration."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from absl import logging

from udc_tf import network_check
from udc_tf.compact.architecture import Architecture
from udc_tf.cost.device_targets import Cycles, Sram, is_fitted
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import BoundTarget, Target, target_from_dict
from udc_tf.graph import conversion
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.layer_rules import kernel_kind
from udc_tf.graph.trace import Graph, Node, trace
from udc_tf.graph.traceable import not_copied, plain, require_same_functions
from udc_tf.layers.choice import Mix
from udc_tf.layers.searchable_kernels import (
    SearchableKernel,
    UDCConv1D,
    UDCConv1DTranspose,
    UDCConv2D,
    UDCConv2DTranspose,
    UDCDense,
    UDCDepthwiseConv1D,
    UDCDepthwiseConv2D,
)
from udc_tf.search.model import SearchModel
from udc_tf.search.named_groups import is_subclassed, plan_named_groups
from udc_tf.search.plan import plan_search
from udc_tf.search.problem import SearchProblem, accelerators_of
from udc_tf.search.reachable import reachable
from udc_tf.search.repair import Budget, extreme
from udc_tf.search.settings import SearchSettings
from udc_tf.search.space import SearchSpace

_SEARCHABLE = {
    "Conv1D": UDCConv1D,
    "DepthwiseConv1D": UDCDepthwiseConv1D,
    "Conv2D": UDCConv2D,
    "DepthwiseConv2D": UDCDepthwiseConv2D,
    "Conv1DTranspose": UDCConv1DTranspose,
    "Conv2DTranspose": UDCConv2DTranspose,
    "Dense": UDCDense,
}


_OF_A_TARGET = ("budget", "bind", "describe", "to_dict")
_ROUGHLY = 1.25  # what is not fitted may take a budget for too small that is not


class UnreachableError(ValueError):
    """No configuration of the network and the space is inside the targets."""


def make_searchable(
    model: keras.Model,
    space: SearchSpace | str = "ethos_u55",
    target: Target | Sequence[Target] | None = None,
    settings: SearchSettings | None = None,
    *,
    allow_cpu: bool = False,
    start: Architecture | Mapping[str, float] | None = None,
) -> SearchModel:
    """A model whose `fit` searches for the best configuration of `model` inside the targets.

    The weights of `model` are taken over; `model` itself is left as it is.

    A network with a layer that has no int8 operator is refused here if a target is for a device;
    else it is searched, with a warning. Vela, which takes seconds, is asked when `fit` is called:
    before the first step. `udc_tf.check` tells all of it, layer by layer.

    Args:
        model: a functional or Sequential model, or a subclassed one written with UDC layers whose
            `width_group` and `input_group` are named (there the layers' own options count, not
            `space`).
        space: options, or the name of a preset.
        target: one target, or several that must all hold. It must be given.
        settings: constants of the algorithm.
        allow_cpu: whether operators that the NPU does not run may be left to the CPU.
        start: an architecture, such as `udc_tf.compress` gives it, or its `choices`: when the
            warm-up ends, the search sets out from the options that are nearest to these instead of
            from its own first guess. What it does not say stays whole.

    Raises:
        ValueError: nothing can be searched, a target is below the smallest configuration, or the
            device of a target does not run the network.

    Example:

    >>> import udc_tf
    >>> x = keras.Input((8, 8, 1))
    >>> y = keras.layers.Conv2D(8, 3, activation="relu")(x)
    >>> y = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(y))
    >>> search = make_searchable(keras.Model(x, y), "ethos_u55", udc_tf.Flash("2.5KiB"))
    >>> search.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    """
    search = searchable(model, space, target, settings, allow_cpu=allow_cpu, start=start)
    for one in search.problem.targets:
        if not is_fitted(one):
            logging.warning(
                "The budget of %s will hold, but is not used to the full: nothing has been "
                "measured for this network. udc_tf.export.fit_size_model(model, space, target) "
                "compiles a few configurations and gives the target that knows it.",
                one.describe(one.budget),
            )
    return search


def searchable(
    model: keras.Model,
    space: SearchSpace | str,
    target: Target | Sequence[Target] | None,
    settings: SearchSettings | None = None,
    *,
    allow_cpu: bool = False,
    start: Architecture | Mapping[str, float] | None = None,
) -> SearchModel:
    """What `make_searchable` does, without a word about targets that are not fitted."""
    space = SearchSpace.preset(space) if isinstance(space, str) else space
    targets = checked_targets(target)
    settings = settings or SearchSettings()
    if is_subclassed(model):
        layers, plan = plan_named_groups(model)
        logging.warning(
            "`%s` is a subclassed model: its architecture can be searched, but neither built nor "
            "exported; write it as a functional model for that.",
            model.name,
        )
        network: keras.Model = model
        problem = _bound(None, plan, space, targets, None, allow_cpu)
        _check_reachable(targets, problem.bound, problem.plan)
    else:
        problem = problem_of(model, space, targets, allow_cpu)
        _check_reachable(targets, problem.bound, problem.plan)
        network, layers = _searchable_network(problem.compactable[0], problem.plan)
        conversion.keep_output_names(model, network)
    if start is not None:
        choices = start.choices if isinstance(start, Architecture) else start
        problem = dataclasses.replace(problem, start=_checked_start(choices, problem.plan))
    for name, reason in problem.plan.left_out.items():
        logging.info("Not searched: %s, because %s", name, reason)
    return SearchModel(network, layers, problem, settings, name=f"{model.name}_search")


def searchable_to_fit(
    model: keras.Model,
    space: SearchSpace | str,
    target: Target | Sequence[Target] | None,
    settings: SearchSettings | None = None,
) -> SearchModel:
    """The same, before anything has been measured: budgets that are nearly reachable are eased."""
    try:
        return searchable(model, space, target, settings)
    except UnreachableError as refusal:
        try:
            return searchable(model, space, [_eased(t) for t in checked_targets(target)], settings)
        except UnreachableError:
            raise refusal from None


def _eased(target: Target) -> Target:
    if is_fitted(target):
        return target
    return target_from_dict({**target.to_dict(), "budget": round(_ROUGHLY * target.budget)})


def _checked_start(choices: Mapping[str, float], plan: Plan) -> dict[str, float]:
    """Refuses an architecture of another network; decisions that this space lacks do not matter."""
    layers = {f"{kind}/{layer.name}" for layer in plan.layers for kind in ("bits", "sparsity")}
    known = layers | {d.name for d in plan.decisions}
    if choices and known.isdisjoint(choices):
        raise ValueError(
            "`start` must be an architecture of this network, whose decisions are such as "
            f"{min(known)!r}. Received: {', '.join(sorted(choices)[:3])}"
        )
    return {name: float(value) for name, value in choices.items()}


def checked_targets(target: Target | Sequence[Target] | None) -> tuple[Target, ...]:
    """The targets of the argument `target`."""
    targets = tuple(target) if isinstance(target, (list, tuple)) else (target,)
    if not targets or not all(hasattr(t, "bind") for t in targets):
        raise ValueError(
            "`target` must be given: one or several of udc_tf.Flash, udc_tf.Sram, udc_tf.Cycles, "
            f"udc_tf.Macs, udc_tf.PaperSize. Received: {target!r}"
        )
    for one in targets:
        if lacking := [name for name in _OF_A_TARGET if not hasattr(one, name)]:
            raise ValueError(
                f"A target of your own has {', '.join(_OF_A_TARGET)} (docs/extending.md shows "
                f"one). Received: a {type(one).__name__} without {', '.join(lacking)}"
            )
    return targets


def problem_of(
    model: keras.Model, space: SearchSpace, targets: tuple[Target, ...], allow_cpu: bool = False
) -> SearchProblem:
    """What is to be decided about a functional model, with its targets bound to it.

    Raises:
        ValueError: nothing can be decided, or a layer has no int8 operator.
    """
    model = plain(model)
    source = keras.saving.serialize_keras_object(model)
    graph = trace(_loaded_again(model, source), copy=False)
    network_check.require_int8(graph, accelerators_of(targets))
    groups = ChannelGroups(graph)
    plan = plan_search(graph, groups, space, _multiple(space, targets))
    _require_decisions(graph, plan)
    return _bound(source, plan, space, targets, (graph, groups), allow_cpu)


def _bound(
    source: dict[str, Any] | None,
    plan: Plan,
    space: SearchSpace,
    targets: tuple[Target, ...],
    compactable: Any,
    allow_cpu: bool,
) -> SearchProblem:
    bound = tuple(t.bind(plan) for t in targets)
    return SearchProblem(source, plan, space, targets, bound, compactable, allow_cpu)


def _multiple(space: SearchSpace, targets: Sequence[Target]) -> int:
    """What numbers of channels are multiples of: a brick, or what the multipliers make at once."""
    if not isinstance(space.snap, str):
        return space.snap
    kinds = {type(target) for target in targets}
    return 16 if Sram in kinds else 8 if Cycles in kinds else 1


def _require_decisions(graph: Graph, plan: Plan) -> None:
    if not plan.decisions:
        left_out = (f"{name}: {reason}" for name, reason in plan.left_out.items())
        raise ValueError(
            f"Nothing can be searched in `{graph.name}` with this space. Left out: "
            f"{'; '.join(left_out) or 'no layer has a kernel'}."
        )


def _loaded_again(model: keras.Model, source: dict[str, Any]) -> keras.Model:
    """A copy by way of its serialized form, from which the compact network will be made."""
    if not model.built:
        return model  # `trace` says what is missing
    try:
        # A copy: Keras takes the dictionary apart while it reads it.
        loaded = keras.saving.deserialize_keras_object(copy.deepcopy(source))
        loaded.set_weights(model.get_weights())
    except Exception as error:  # whatever a layer's own code raises
        raise not_copied(model, error) from error
    require_same_functions(model, loaded)
    return loaded


def _check_reachable(targets: Sequence[Target], bound: tuple[BoundTarget, ...], plan: Plan) -> None:
    for reach, b in zip(reachable(targets, bound, plan), bound, strict=True):
        wanted = reach.target.describe(b.budget)
        if b.budget < reach.smallest:
            raise UnreachableError(
                f"No configuration is that small: this network and space reach {reach}. "
                f"Received: a budget of {wanted}"
            )
        if b.budget > reach.largest:
            logging.warning(
                "Every configuration is inside the budget of %s: this network and space reach %s.",
                wanted,
                reach,
            )
    budget, chosen = Budget(bound), None
    for b in bound:
        smallest = extreme(b, plan, True)
        if budget.ratio(smallest) <= 1:
            chosen = smallest
    if chosen is None:
        raise UnreachableError(
            "No configuration was found inside all targets at once; each can be met alone. "
            f"Received: {', '.join(t.describe(t.budget) for t in targets)}"
        )


def _searchable_network(
    graph: Graph, plan: Plan
) -> tuple[keras.Model, dict[str, keras.layers.Layer]]:
    priced = {p.name: p for p in plan.layers}
    made: dict[int, keras.Operation] = {}
    originals: dict[str, keras.layers.Layer] = {}
    layers: dict[str, keras.layers.Layer] = {}

    def make(node: Node) -> keras.Operation:
        if node.name in priced:
            options = dataclasses.asdict(priced[node.name].options)
            kind = kernel_kind(node.layer) or ""  # what is priced has one
            config = conversion.kernel_config(node.layer, node.name)
            new: Any = _SEARCHABLE[kind](**config, **options)
        elif isinstance(node.layer, Mix):
            new = Mix(node.layer.branch_count, name=conversion.safe_name(f"{node.name}_mix"))
            if plan.decision_index("choice", node.name) is not None:
                new.decision = f"choice/{node.name}"
        elif isinstance(node.layer, keras.layers.Layer):
            new = conversion.copy_layer(node.layer, node.name)
        else:
            return node.layer
        originals[node.name], layers[node.name] = node.layer, new
        return new

    def convert(node: Node) -> keras.Operation:
        if id(node.layer) not in made:
            made[id(node.layer)] = make(node)
        return made[id(node.layer)]

    network = graph.rebuild(convert)
    for name, layer in layers.items():
        _take_over(originals[name], layer)
    return network, layers


def _take_over(old: keras.layers.Layer, new: keras.layers.Layer) -> None:
    if isinstance(new, SearchableKernel):
        weights = conversion.layer_weights(old)
        new.theta.assign(weights["kernel"])
        if new.bias is not None:
            new.bias.assign(weights["bias"])
        new.initialize_ranges()
    elif new.weights:
        new.set_weights([np.asarray(w) for w in old.get_weights()])
