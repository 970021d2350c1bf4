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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from udc_tf.compact.build import Compactor, Configuration, LayerChoice
from udc_tf.cost.priced_network import Decision, Plan
from udc_tf.export import tflm_check, vela
from udc_tf.export.errors import ExportError
from udc_tf.export.int8 import to_int8
from udc_tf.export.measuring import make_bell_shaped, make_ranges_differ
from udc_tf.finetune.preparation import reinitialize
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.conversion import safe_name
from udc_tf.graph.trace import Graph, trace
from udc_tf.graph.verdicts import Check, Row, Verdict, rows_of
from udc_tf.search.plan import plan_search
from udc_tf.search.space import SearchSpace

# Of the networks that are asked about, whose operators do not depend on them.
_BITS = 8


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
    return _after_asking(
        found, lambda: files_of_search(graph, groups, plan, accelerator), allow_cpu
    )


@undisturbed_randomness()
def files_of_search(
    graph: Graph, groups: ChannelGroups, plan: Plan, accelerator: str
) -> tuple["FirstFile", ...]:
    """What Vela makes of each of `configurations(plan)`.

    Raises:
        ExportError: one of them is no int8 network, or Vela or TFLM refuses it.
    """
    made = configurations(plan)
    networks = (Compactor(graph, groups, configuration).build() for configuration in made)
    extent = repr(plan.widths), repr(_kernels(plan, min)), repr(_kernels(plan, max))
    names = [safe_name(p.name) for p in plan.layers]
    return _files((accelerator, *_structure(graph), *extent), accelerator, networks, names)


@undisturbed_randomness()
def check_network(model: keras.Model, accelerator: str, allow_cpu: bool) -> Check:
    """The check of a network as it is, of which nothing is searched any more."""
    graph = trace(model)
    found = Check(graph.name, accelerator, rows_of(graph, (), {}))
    if not found.ok:
        return found
    key = (accelerator, *_structure(graph))
    copies = (keras.models.clone_model(m) for m in [model])
    return _after_asking(found, lambda: _files(key, accelerator, copies), allow_cpu)


def searched_names(plan: Plan) -> set[str]:
    """The calls about which a search decides something."""
    decided = {d.subject for d in plan.decisions}
    cut = {i for i, g in enumerate(plan.groups) if plan.decision_index("width", g.name) is not None}
    opened = {p.name for p in plan.layers if cut.intersection(plan.group_of(p.outputs))}
    names = {p.name for p in plan.layers if p.name in decided or p.name in opened}
    return names | {d.subject for d in plan.decisions if d.kind == "choice"}


def configurations(plan: Plan) -> list[Configuration]:
    """The largest network, with every branch of every choice once, and the smallest."""
    return [_configuration(plan, extreme, branch) for extreme, branch in _extremes(plan)]


def options_of_configurations(plan: Plan) -> list[np.ndarray]:
    """The numbers of their options; of bits and non-zeros, which they do not have, the first."""

    def number(decision: Decision, extreme: _Extreme, branch: int) -> int:
        if decision.kind == "choice":
            return min(branch, len(decision.options) - 1)
        if decision.kind in ("bits", "sparsity"):
            return 0
        return decision.options.index(extreme(decision.options))

    return [
        np.array([number(d, extreme, branch) for d in plan.decisions])
        for extreme, branch in _extremes(plan)
    ]


_Extreme = Callable[[Iterable[Any]], Any]


def _extremes(plan: Plan) -> list[tuple[_Extreme, int]]:
    """Which options of widths and kernels, and the number of the branch of each choice."""
    branches = max((len(d.options) for d in plan.decisions if d.kind == "choice"), default=1)
    return [*((max, branch) for branch in range(branches)), (min, 0)]


def _configuration(plan: Plan, extreme: _Extreme, branch: int) -> Configuration:
    channels = {plan.groups[g].name: extreme(counts) for g, counts in plan.widths.items()}
    kernels = _kernels(plan, extreme)
    layers = {p.name: LayerChoice(_BITS, kernel_size=kernels.get(p.name)) for p in plan.layers}
    choices = {d.subject: len(d.options) for d in plan.decisions if d.kind == "choice"}
    return Configuration(channels, layers, {c: min(branch, n - 1) for c, n in choices.items()})


def _kernels(plan: Plan, extreme: _Extreme) -> dict[str, int]:
    return {p.name: extreme(p.options.kernels) for p in plan.layers if p.options.kernels}


# Asking.


@dataclasses.dataclass(frozen=True)
class FirstFile:
    """What Vela makes of a network before anything is trained.

    Attributes:
        left: the operators that it leaves to the CPU, by the layers' names.
        flash_bytes: of the file.
        weight_bytes: of the encoded kernels that were asked about, in their order.
    """

    left: Mapping[str, vela.CpuOperator]
    flash_bytes: int
    weight_bytes: tuple[int, ...]


# By structure, of networks that an NPU runs as a whole: most are asked about several times, and not
# always under the same names.
_KNOWN: dict[tuple, tuple[FirstFile, ...]] = {}


def _files(
    key: tuple, accelerator: str, networks: Iterable[keras.Model], kernels: Sequence[str] = ()
) -> tuple[FirstFile, ...]:
    if key in _KNOWN:
        return _KNOWN[key]
    found = tuple(_compiled(network, accelerator, kernels) for network in networks)
    if not any(file.left for file in found):
        _KNOWN[key] = found
    return found


def _after_asking(found: Check, files: Callable[[], Iterable[FirstFile]], allow_cpu: bool) -> Check:
    left: dict[str, vela.CpuOperator] = {}
    try:
        for file in files():
            left |= file.left
    except ExportError as error:
        why = f"an untrained int8 file of it fails: {' '.join(str(error).split())}"
        whole = Row(found.network, "Model", Verdict.REFUSED, why, _NOT_FORESEEN)
        return dataclasses.replace(found, rows=(*found.rows, whole))
    if not left:
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


def _compiled(network: keras.Model, accelerator: str, kernels: Sequence[str]) -> FirstFile:
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
    steps = exact.network.steps
    layer_of = {exact.network.values[s.output].name: s.name for s in steps}
    left = {layer_of.get(o.name, o.name): o for o in compiled.left_to_cpu}
    # By name: a layer that is called again reads the weights that are there.
    stored = {steps[index].name: size for index, size in compiled.weight_bytes.items()}
    return FirstFile(left, compiled.flash_bytes, tuple(stored.get(name, 0) for name in kernels))


def _make_ordinary(network: keras.Model, rng: np.random.Generator) -> None:
    """Weights and ranges such as training leaves: zeros, say, would be refused for themselves."""
    reinitialize(network)
    make_bell_shaped(network, rng)
    make_ranges_differ(network, rng)


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
