"""Whether a device runs a network, known before anything is trained.

The rulebook of layers says what can be written as int8 at all. What the NPU then makes of it, Vela
is asked, and TFLM whether it runs the file: with the largest and the smallest network that a search
could end with, untrained, for operators and shapes do not depend on weights.
"""

import contextlib
import dataclasses
import pathlib
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from udc_tf.compact.build import Compactor, Configuration, LayerChoice
from udc_tf.cost.priced_network import Plan
from udc_tf.export import tflm_check, vela
from udc_tf.export.errors import ExportError
from udc_tf.export.int8 import to_int8
from udc_tf.export.size_fit import make_bell_shaped
from udc_tf.finetune.preparation import reinitialize
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.conversion import safe_name
from udc_tf.graph.trace import Graph, trace
from udc_tf.graph.verdicts import Check, Row, Verdict, rows_of
from udc_tf.layers.inventory import activation_quantizers
from udc_tf.search.plan import plan_search
from udc_tf.search.space import SearchSpace

# Of the networks that are asked about, whose operators do not depend on them.
_BITS = 8
_LARGEST = 4.0  # value of a tensor


@contextlib.contextmanager
def undisturbed_randomness() -> Iterator[None]:
    """Networks that are made to be asked about must not change what is trained afterwards."""
    kept, kept_by_numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(kept)
        np.random.set_state(kept_by_numpy)


@undisturbed_randomness()
def check(
    model: keras.Model, accelerator: str, space: SearchSpace | str | None, allow_cpu: bool
) -> Check:
    """What `udc_tf.check` returns."""
    vela.default_system(accelerator)  # an unknown accelerator is told before any work
    if not isinstance(space, SearchSpace):
        space = SearchSpace.preset(space or "ethos_u55")
    graph = trace(model)
    groups = ChannelGroups(graph)
    plan = plan_search(graph, groups, space)
    return check_search(graph, groups, plan, accelerator, allow_cpu)


@undisturbed_randomness()
def check_search(
    graph: Graph, groups: ChannelGroups, plan: Plan, accelerator: str, allow_cpu: bool
) -> Check:
    """The check of a network with all that a search may make of it."""
    found = Check(graph.name, accelerator, rows_of(graph, searched_names(plan), plan.left_out))
    if not found.ok:
        return found
    key = (accelerator, *_structure(graph), repr(plan.widths), repr(_kernels(plan)))

    def networks() -> Iterator[keras.Model]:
        for configuration in configurations(plan):
            yield Compactor(graph, groups, configuration).build()

    return _after_asking(found, key, networks, allow_cpu)


@undisturbed_randomness()
def check_network(model: keras.Model, accelerator: str, allow_cpu: bool) -> Check:
    """The check of a network as it is, of which nothing is searched any more."""
    graph = trace(model)
    found = Check(graph.name, accelerator, rows_of(graph, (), {}))
    if not found.ok:
        return found
    key = (accelerator, *_structure(graph))
    return _after_asking(found, key, lambda: [keras.models.clone_model(model)], allow_cpu)


def searched_names(plan: Plan) -> set[str]:
    """The calls about which a search decides something."""
    decided = {d.subject for d in plan.decisions}
    cut = {i for i, g in enumerate(plan.groups) if plan.decision_index("width", g.name) is not None}
    opened = {p.name for p in plan.layers if cut.intersection(plan.group_of(p.outputs))}
    names = {p.name for p in plan.layers if p.name in decided or p.name in opened}
    return names | {d.subject for d in plan.decisions if d.kind == "choice"}


def configurations(plan: Plan) -> list[Configuration]:
    """The largest network, with every branch of every choice once, and the smallest."""
    choices = {d.subject: len(d.options) for d in plan.decisions if d.kind == "choice"}
    whole = {p.name: LayerChoice(_BITS) for p in plan.layers}
    found = [
        Configuration(layers=whole, branches={c: min(k, n - 1) for c, n in choices.items()})
        for k in range(max(choices.values(), default=1))
    ]
    channels = {plan.groups[g].name: counts[0] for g, counts in plan.widths.items()}
    kernels = _kernels(plan)
    small = {p.name: LayerChoice(_BITS, kernel_size=kernels.get(p.name)) for p in plan.layers}
    return [*found, Configuration(channels, small, found[0].branches)]


def _kernels(plan: Plan) -> dict[str, int]:
    return {p.name: min(p.options.kernels) for p in plan.layers if p.options.kernels}


# Asking.


# Structures that an NPU is known to run as a whole: most networks are asked about several times.
_ALL_ON_NPU: set[tuple] = set()


def _after_asking(
    found: Check, key: tuple, networks: Callable[[], Iterable[keras.Model]], allow_cpu: bool
) -> Check:
    if key in _ALL_ON_NPU:
        return found
    left: dict[str, vela.CpuOperator] = {}
    try:
        for network in networks():
            left |= _left_to_cpu(network, found.accelerator)
    except ExportError as error:
        why = f"an untrained int8 file of it fails: {' '.join(str(error).split())}"
        whole = Row(found.network, "Model", Verdict.REFUSED, why, _NOT_FORESEEN)
        return dataclasses.replace(found, rows=(*found.rows, whole))
    if not left:
        _ALL_ON_NPU.add(key)
        return found
    return dataclasses.replace(found, rows=_with_cpu(found.rows, left, allow_cpu))


_NOT_FORESEEN = "leave out layers until udc_tf.check accepts it, and please report the one"


def _with_cpu(
    rows: Iterable[Row], left: Mapping[str, vela.CpuOperator], allow_cpu: bool
) -> tuple[Row, ...]:
    changed = []
    waiting = dict(left)
    for row in rows:
        operator = waiting.pop(safe_name(row.name), None)
        changed.append(row if operator is None else _cpu_row(row, operator, allow_cpu))
    for name, operator in waiting.items():  # what the network is given besides its layers
        changed.append(_cpu_row(Row(name, operator.kind, Verdict.KEPT), operator, allow_cpu))
    return tuple(changed)


def _cpu_row(row: Row, operator: vela.CpuOperator, allow_cpu: bool) -> Row:
    why = f" ({operator.reason})" if operator.reason else ""
    reason = f"Vela leaves its {operator.kind} to the CPU{why}"
    if allow_cpu:
        return dataclasses.replace(row, verdict=Verdict.ON_CPU, reason=reason)
    known = (hint for word, hint in _HINTS.items() if word in operator.reason.lower())
    hint = next(known, "change it to what the NPU runs")
    instead = f"{hint}, or allow it with allow_cpu=True (--allow_cpu)"
    return dataclasses.replace(row, verdict=Verdict.REFUSED, reason=reason, instead=instead)


# What to do about a reason of Vela's, by a word in it.
_HINTS = {
    "stride": "take strides of 1 to 3, of 1 or 2 in both directions where it is transposed",
    "scal": "scale height and width by the same 2, 4 or 8",
    "dilat": "take a smaller dilation",
    "kernel": "take a smaller kernel",
    "filter": "take a smaller window",
}


def _left_to_cpu(network: keras.Model, accelerator: str) -> dict[str, vela.CpuOperator]:
    rng = np.random.default_rng(0)
    _make_ordinary(network, rng)
    inputs = keras.tree.flatten(network.input)
    noise = [rng.normal(size=(1, *x.shape[1:])).astype(np.float32) for x in inputs]
    exact = to_int8(network, noise, copy=False)
    tflm_check.load(exact.content)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        path.write_bytes(exact.content)
        compiled = vela.compile_with_vela(path, folder, accelerator, allow_cpu_operators=True)
    layer_of = {exact.network.values[s.output].name: s.name for s in exact.network.steps}
    return {layer_of.get(o.name, o.name): o for o in compiled.left_to_cpu}


def _make_ordinary(network: keras.Model, rng: np.random.Generator) -> None:
    """Weights and ranges such as training leaves: zeros, say, would be refused for themselves."""
    reinitialize(network)
    make_bell_shaped(network, rng)
    for quantizer in activation_quantizers(network):
        if quantizer.fixed_range is None:
            quantizer.set_range(-_LARGEST, _LARGEST)


# What makes no other operator.
_IRRELEVANT = ("name", "dtype", "seed", "bits", "nonzeros", "build_config")


def _structure(graph: Graph) -> tuple[str, ...]:
    """All of a network that its operators depend on; equal networks have it in common."""
    return tuple(
        repr((type(n.layer).__qualname__, _settings(n.layer), n.args, n.kwargs, n.outputs, n.gates))
        for n in graph.nodes
    )


def _settings(layer: keras.Operation) -> dict[str, Any]:
    config = layer.get_config() if isinstance(layer, keras.layers.Layer) else vars(layer)
    return {
        key: value
        for key, value in config.items()
        if key not in _IRRELEVANT
        and not key.startswith("_")
        and not key.endswith(("initializer", "regularizer", "constraint"))
    }
