"""The result of a search: one configuration, with what it costs and the weights it starts from."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from udc_tf.compact.build import Compactor, Configuration, LayerChoice
from udc_tf.files import DamagedFileError, read_arrays, read_json, replaced_atomically
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.conversion import keep_output_names
from udc_tf.graph.trace import trace
from udc_tf.saved_models import build_model, check_config

_FORMAT = 1
_REMEDY = "save the architecture anew"
_DAMAGE = (LookupError, TypeError, AttributeError, ArithmeticError, ValueError, RecursionError)
# Of the original and the compact network: a file that says a billion must not fill the memory.
WEIGHT_LIMIT = 1 << 28
CHANNEL_LIMIT = 1 << 22


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """One layer of an architecture, its bytes as predicted, or as `udc_tf.compress` compiled it."""

    name: str
    kernel_size: tuple[int, ...]
    inputs: int
    outputs: int
    original_outputs: int
    bits: int
    nonzeros: float
    weights: int
    bytes: float


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One option of every decision.

    Attributes:
        choices: decision -> option, as in `SearchModel.probabilities`.
        layers: the layers that remain, with their bytes.
        flash_bytes, macs: of the whole network. Bytes are predicted; those of `udc_tf.compress` are
            of the compiled file.
        targets: what the search had to meet, as dictionaries.
        weights: of the compact network, by layer and variable; None to start from scratch.
        needs: for each target `what` it is, the `need` as predicted (of SRAM and cycles as Vela
            says), what there is to `have`, and the `excess`.

    Example:

    ```python
    arch = search.architecture()
    arch.save("arch.json")
    tiny = udc_tf.Architecture.load("arch.json").build()
    ```
    """

    source: dict[str, Any]  # the original model, serialized
    configuration: Configuration
    choices: Mapping[str, float]
    layers: tuple[LayerSummary, ...]
    flash_bytes: int
    macs: int
    targets: tuple[dict[str, Any], ...]
    weights: Mapping[str, Mapping[str, np.ndarray]] | None = None
    needs: tuple[dict[str, Any], ...] = ()

    def build(self, inherit_weights: bool = True) -> keras.Model:
        """The compact Keras model, its bits and sparsities fixed.

        Args:
            inherit_weights: start from the search's weights, if there are any; else anew.
        """
        try:
            with limited_weights(WEIGHT_LIMIT):
                compact = self._compact()
        except Exception as error:  # the file may say anything, and Keras trusts it
            raise ValueError(
                "The network of this architecture cannot be built; is the file damaged? "
                f"Received: {type(error).__name__}: {error}"
            ) from error
        if inherit_weights and self.weights is not None:
            set_layer_weights(compact, self.weights)
        else:
            for layer in compact.layers:
                if hasattr(layer, "refresh_mask"):
                    layer.initialize_range()
                    layer.refresh_mask()
        return compact

    def _compact(self) -> keras.Model:
        model = build_model(self.source)
        graph = trace(model, copy=False)
        tensors = keras.tree.flatten((graph.inputs, [node.outputs for node in graph.nodes]))
        if any(((ref.shape or (0,))[-1] or 0) > CHANNEL_LIMIT for ref in tensors):
            raise ValueError(f"a tensor of more than {CHANNEL_LIMIT} channels")
        compact = Compactor(graph, ChannelGroups(graph), self.configuration).build()
        keep_output_names(model, compact)
        return compact

    def table(self) -> str:
        """The layers as text: what each became and what it costs."""
        rows = [("layer", "kernel", "channels", "bits", "non-zeros", "weights", "bytes")]
        for layer in self.layers:
            rows.append(
                (
                    layer.name,
                    "x".join(map(str, layer.kernel_size)) or "-",
                    f"{layer.inputs} -> {layer.outputs} of {layer.original_outputs}",
                    str(layer.bits),
                    f"{layer.nonzeros:.0%}",
                    f"{layer.weights:,}",
                    f"{layer.bytes:,.0f}",
                )
            )
        rows.append(("in all, with the rest", "", "", "", "", "", f"{self.flash_bytes:,}"))
        sizes = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(
                [
                    cell.ljust(n) if i == 0 else cell.rjust(n)
                    for i, (cell, n) in enumerate(zip(row, sizes, strict=True))
                ]
            )
            for row in rows
        ]
        lines.append(f"multiply-accumulates: {self.macs:,}")
        for one in self.needs:
            over = f", {one['excess']:,} too many" if one["excess"] else ""
            lines.append(f"needs {one['what']}, has {one['have']:,}{over}")
        return "\n".join(lines)

    def save(self, path: str | os.PathLike) -> None:
        """Writes `path` (JSON) and, beside it with the ending .npz, the weights."""
        path = Path(path)
        if path.suffix != ".json":
            raise ValueError(f"An architecture is saved as .json. Received: {str(path)!r}")
        content = {
            "format": _FORMAT,
            "choices": dict(self.choices),
            "flash_bytes": self.flash_bytes,
            "macs": self.macs,
            "targets": list(self.targets),
            "needs": list(self.needs),
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "configuration": dataclasses.asdict(self.configuration),
            "has_weights": self.weights is not None,
            "model": self.source,
        }
        if self.weights is not None:
            flat: dict[str, Any] = {
                f"{layer}\n{name}": value
                for layer, values in self.weights.items()
                for name, value in values.items()
            }
            with replaced_atomically(path.with_suffix(".npz")) as partial, open(partial, "wb") as f:
                np.savez(f, **flat)
        with replaced_atomically(path) as partial:
            partial.write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike, remedy: str = _REMEDY) -> "Architecture":
        """Reads what `save` wrote.

        Args:
            path: of the .json; the weights lie beside it.
            remedy: what to do about a damaged file, for the message.

        Raises:
            DamagedFileError: a file is damaged, or its network asks for code that is not known
                here: an architecture is data.
        """
        path = Path(path)
        content = read_json(path, remedy)
        try:
            if content.get("format") != _FORMAT:
                raise ValueError(f"format {content.get('format')!r} instead of {_FORMAT}")
            check_config(content["model"])
            loaded = cls._from_json(content)
            if not content["has_weights"]:
                return loaded
        except _DAMAGE as error:
            raise DamagedFileError(path, error, remedy) from error
        weights = _load_weights(path.with_suffix(".npz"), remedy)
        return dataclasses.replace(loaded, weights=weights)

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> "Architecture":
        configuration = content["configuration"]
        return cls(
            source=content["model"],
            configuration=Configuration(
                channels=_numbers(configuration["channels"], int),
                layers={n: _choice(c) for n, c in configuration["layers"].items()},
                branches=_numbers(configuration["branches"], int),
            ),
            choices=_numbers(content["choices"], float),
            layers=tuple(_summary(row) for row in content["layers"]),
            flash_bytes=_number(content["flash_bytes"], int),
            macs=_number(content["macs"], int),
            targets=tuple(dict(target) for target in content["targets"]),
            needs=tuple(_need(row) for row in content.get("needs", ())),
        )


def _need(row: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: _number(row[name], int) for name in ("need", "have", "excess")}
    return {"what": str(row["what"]), **numbers}


@contextlib.contextmanager
def limited_weights(limit: int) -> Iterator[None]:
    """Refuses layers whose weights would be more than `limit` in all, before they are made."""
    made, add_weight = 0, keras.layers.Layer.add_weight

    def counted(
        self: keras.layers.Layer, shape: Any = None, *args: Any, **kwargs: Any
    ) -> keras.Variable:
        nonlocal made
        made += math.prod(tuple(shape) if np.iterable(shape) else (shape or 1,))
        if made > limit:
            raise ValueError(f"a network of more than {limit} weights")
        return add_weight(self, shape, *args, **kwargs)

    keras.layers.Layer.add_weight = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        keras.layers.Layer.add_weight = add_weight  # type: ignore[method-assign]


def _load_weights(path: Path, remedy: str) -> dict[str, dict[str, np.ndarray]]:
    weights: dict[str, dict[str, np.ndarray]] = {}
    for key, value in read_arrays(path, remedy).items():
        layer, newline, variable = key.partition("\n")
        if not newline:
            raise DamagedFileError(path, f"{key!r} is no layer's variable", remedy)
        weights.setdefault(layer, {})[variable] = value
    return weights


def _number(value: Any, kind: type) -> Any:
    """A JSON value that has to be a whole number, or any number if `kind` is float."""
    allowed = int if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed):
        raise TypeError(f"a number is needed, not {value!r}")
    return kind(value)


def _numbers(values: Mapping[str, Any], kind: type) -> dict[str, Any]:
    return {name: _number(value, kind) for name, value in values.items()}


def _choice(row: Mapping[str, Any]) -> LayerChoice:
    choice = LayerChoice(**row)
    kernel_size = choice.kernel_size
    return LayerChoice(
        bits=_number(choice.bits, int),
        nonzeros=_number(choice.nonzeros, float),
        kernel_size=None if kernel_size is None else _number(kernel_size, int),
    )


def _summary(row: Mapping[str, Any]) -> LayerSummary:
    whole = ("inputs", "outputs", "original_outputs", "bits", "weights")
    return LayerSummary(
        name=str(row["name"]),
        kernel_size=tuple(_number(size, int) for size in row["kernel_size"]),
        **{name: _number(row[name], int) for name in whole},
        **{name: _number(row[name], float) for name in ("nonzeros", "bytes")},
    )


def get_layer_weights(model: keras.Model) -> dict[str, dict[str, np.ndarray]]:
    """All weights of a flat model, by layer and variable."""
    return {
        layer.name: {v.name: v.numpy() for v in layer.weights}
        for layer in model.layers
        if layer.weights
    }


def set_layer_weights(model: keras.Model, weights: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """The counterpart of `get_layer_weights`.

    Raises:
        ValueError: `weights` are those of another network.
    """
    for layer in model.layers:
        for variable in layer.weights:
            value = weights.get(layer.name, {}).get(variable.name)
            if value is None or value.shape != tuple(variable.shape):
                found = "nothing" if value is None else f"shape {value.shape}"
                raise ValueError(
                    f"The weights are of another network: {layer.name} needs {variable.name} of "
                    f"{tuple(variable.shape)}. Received: {found}"
                )
            variable.assign(value)
