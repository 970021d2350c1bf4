"""What becomes of each layer of a network on its device, and why: the table of `udc_tf.check`.

Here is what the rulebook of layers knows, which costs nothing to ask. What Vela leaves to the CPU,
Vela has to be asked; `udc_tf.export` does that.
"""

import dataclasses
import enum
from collections.abc import Collection, Container, Mapping, Sequence

import keras
from keras import layers as kl

from udc_tf.graph import activations
from udc_tf.graph.layer_rules import absorbed, kernel_kind, refusal, rule_of_node
from udc_tf.graph.trace import Graph, Node, TensorRef
from udc_tf.graph.uses import Uses
from udc_tf.layers.choice import Mix


class Verdict(enum.StrEnum):
    """What becomes of a layer."""

    SEARCHED = "searched"
    KEPT = "kept as it is"
    ON_CPU = "on the CPU"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer.

    Attributes:
        name: of the layer.
        kind: its class.
        verdict: what becomes of it.
        reason: why; for a layer that runs, as what.
        instead: what to do about it; empty where nothing has to be done.
    """

    name: str
    kind: str
    verdict: Verdict
    reason: str = ""
    instead: str = ""

    def __str__(self) -> str:
        told = "; ".join(filter(None, (self.reason, self.instead)))
        return f"`{self.name}` ({self.kind}): {told}"


@dataclasses.dataclass(frozen=True)
class Check:
    """What an accelerator makes of a network, layer by layer; printed, a table.

    Attributes:
        network: its name.
        accelerator: Vela's name of the NPU.
        rows: one per call of a layer, in the network's order.
    """

    network: str
    accelerator: str
    rows: tuple[Row, ...]

    @property
    def refused(self) -> tuple[Row, ...]:
        """The layers for which the network cannot be exported."""
        return self.with_verdict(Verdict.REFUSED)

    @property
    def on_cpu(self) -> tuple[Row, ...]:
        """The layers that the CPU will run, which was allowed."""
        return self.with_verdict(Verdict.ON_CPU)

    @property
    def ok(self) -> bool:
        """Whether the network can be exported."""
        return not self.refused

    def with_verdict(self, verdict: Verdict) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.verdict is verdict)

    def sentence(self) -> str:
        """Why the network is refused, and what to do instead: the first layer, and how many more.

        Raises:
            ValueError: it is not refused.
        """
        if self.ok:
            raise ValueError(f"Only a refused network has a reason. Received: {self.network}")
        # Keras itself calls operations for some layers, such as what finds a mask.
        first, *others = sorted(self.refused, key=lambda row: not hasattr(kl, row.kind))
        names = ", ".join(f"`{row.name}`" for row in others[:3])
        verb = "are" if others[1:] else "is"
        more = f" (so {verb} {len(others)} more: {names}{', ...' if others[3:] else ''})"
        return (
            f"`{self.network}` cannot be exported for {self.accelerator}: {first}"
            f"{more if others else ''}. Received: {first.kind}"
        )

    def require(self) -> None:
        """Raises a `ValueError` with `sentence()` if the network is refused."""
        if not self.ok:
            raise ValueError(self.sentence())

    def __str__(self) -> str:
        cells: list[tuple[str, ...]] = [("layer", "kind", "verdict", "why", "instead")]
        cells += [(r.name, r.kind, str(r.verdict), r.reason, r.instead) for r in self.rows]
        if self.ok:
            cells = [row[:-1] for row in cells]  # nothing has to be done
        sizes = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = ["  ".join(c.ljust(n) for c, n in zip(row, sizes, strict=True)) for row in cells]
        counts = ", ".join(f"{len(rows)} {v}" for v in Verdict if (rows := self.with_verdict(v)))
        verb = "runs" if self.ok else "does not run"
        lines.append(f"{self.accelerator} {verb} {self.network}: {counts}.")
        return "\n".join(line.rstrip() for line in lines)


def refusals(graph: Graph) -> tuple[Row, ...]:
    """The calls for which a network cannot be exported to any device, by the rulebook alone.

    >>> from udc_tf.graph.trace import trace
    >>> x = keras.Input((8, 8, 3))
    >>> y = kl.LayerNormalization(axis=1, name="norm")(kl.Conv2D(4, 3)(x))
    >>> print(*refusals(trace(keras.Model(x, y))))
    `norm` (LayerNormalization): a LayerNormalization over axes (1,) has no int8 operator here; \
take axis=-1
    """
    rows = []
    for ref, name in zip(keras.tree.flatten(graph.inputs), graph.input_names, strict=True):
        if why := _unknown_size(ref):
            rows.append(Row(name, "InputLayer", Verdict.REFUSED, why, _GIVE_SIZES))
    if not rows:
        rows = [row for node in graph.nodes if (row := _refused(node)) is not None]
    return tuple(dict.fromkeys(rows))


def rows_of(
    graph: Graph, searched: Collection[str], left_out: Mapping[str, str]
) -> tuple[Row, ...]:
    """One row per call, by the rulebook alone.

    Args:
        graph: the network.
        searched: names of calls about which a search decides something.
        left_out: what a search leaves alone, and why, as `Plan.left_out` has it.
    """
    refused = {row.name: row for row in refusals(graph)}
    uses = Uses.of(graph)
    part_of: dict[int, str] = {}
    for node in graph.nodes:
        for following in absorbed(node, uses):
            part_of.setdefault(id(following), node.name)
    rows = [refused[name] for name in graph.input_names if name in refused]
    wholes: dict[str, list[Row]] = {}
    for node in graph.nodes:
        row = refused.get(node.name if node.whole is None else node.whole.name)
        row = row or _running(node, part_of.get(id(node)), searched, left_out)
        if node.whole is not None and row.name == node.name:
            parts = wholes.setdefault(node.whole.name, [])
            parts.append(row)
            row = Row(node.whole.name, node.whole.kind, Verdict.KEPT)  # told below, all at once
        rows.append(row)
    told = {name: _written_out(parts) for name, parts in wholes.items()}
    return tuple(
        dataclasses.replace(row, verdict=told[row.name][0], reason=told[row.name][1])
        if row.name in told
        else row
        for row in dict.fromkeys(rows)
    )


def _written_out(parts: Sequence[Row]) -> tuple[Verdict, str]:
    """What becomes of a layer over time, out of what becomes of its calls."""
    operators = dict.fromkeys(
        word for row in parts for word in row.reason.split("; ")[:1] if word.startswith("runs as ")
    )
    runs = ", ".join(word.removeprefix("runs as ") for word in operators)
    reasons = [f"is written out step by step: {len(parts)} calls, which run as {runs}"]
    left = {why: None for row in parts for why in row.reason.split("; ")[1:]}
    searched = any(row.verdict is Verdict.SEARCHED for row in parts)
    return Verdict.SEARCHED if searched else Verdict.KEPT, "; ".join([*reasons, *left])


def _running(
    node: Node, part_of: str | None, searched: Container[str], left_out: Mapping[str, str]
) -> Row:
    rule, reasons = rule_of_node(node), []
    is_searched = node.name in searched
    if isinstance(node.layer, Mix):
        reasons.append(f"one of {node.layer.branch_count} branches stays")
    elif part_of is not None:
        reasons.append(f"becomes part of `{part_of}`")
    elif rule.operator is None:
        reasons.append("nothing is left of it")
    else:
        reasons.append(f"runs as {rule.operator}")
    if kernel_kind(node.layer) is not None or rule.unsearched:
        reasons.append(left_out.get(node.name) or rule.unsearched or "")
        reasons += [
            f"its {what} stays: {why}"
            for what in ("width", "kernel")
            if (why := left_out.get(f"{what} of {node.name}"))
        ]
    verdict = Verdict.SEARCHED if is_searched else Verdict.KEPT
    return Row(node.name, _kind(node), verdict, "; ".join(filter(None, reasons)))


def _refused(node: Node) -> Row | None:
    why = refusal(node)
    if why is None:
        for ref in keras.tree.flatten(node.outputs):
            if why := _unknown_size(ref):
                return Row(*_known_as(node), Verdict.REFUSED, why, _GIVE_SIZES)
        return None
    # The rulebook may say itself what to do, behind a semicolon.
    reason, _, instead = why.partition("; ")
    return Row(*_known_as(node), Verdict.REFUSED, reason, instead or _instead(node))


def _known_as(node: Node) -> tuple[str, str]:
    """The name and kind of the layer of the model that a call belongs to."""
    return (node.name, _kind(node)) if node.whole is None else (node.whole.name, node.whole.kind)


def _kind(node: Node) -> str:
    return "Choice" if isinstance(node.layer, Mix) else type(node.layer).__name__


_GIVE_SIZES = "give keras.Input every size but the batch"


def _unknown_size(ref: TensorRef) -> str | None:
    """An int8 network has tensors of fixed sizes, and a batch of one."""
    if None in ref.shape[1:] or ref.shape[:1] not in ((None,), (1,)):
        return f"all sizes but the batch must be known, and the batch open or 1, not {ref.shape}"
    return None


# What to take instead of a layer that is refused, by the ends of its class's name.
_INSTEAD = {
    ("1D", "1DTranspose", "3D", "3DTranspose"): "take its 2-D relative",
    ("Lookup", "Vectorization", "Hashing", "Crossing", "Encoding", "Discretization"): (
        "do it to the data, before the network"
    ),
    ("Spectrogram",): "do it to the data, before the network",
    ("Masking", "Wrapper", "Layer"): "leave it out",
}


def _instead(node: Node) -> str:
    layer, kind = node.layer, type(node.layer).__name__
    if isinstance(layer, kl.Activation) or rule_of_node(node).kernel:
        return f"take one of the activations {', '.join(_known_activations())}"
    if type(layer).__module__.split(".")[0] not in ("keras", "udc_tf"):
        return "write it with layers of Keras itself"
    for ends, instead in _INSTEAD.items():
        if kind.endswith(ends):
            return instead
    return "leave it to the code around the network"


def _known_activations() -> list[str]:
    functions = {n: getattr(keras.activations, n) for n in dir(keras.activations)}
    known = {n: f for n, f in functions.items() if callable(f) and getattr(f, "__name__", "") == n}
    return [n for n, f in known.items() if activations.of_function(f).refused is None]
