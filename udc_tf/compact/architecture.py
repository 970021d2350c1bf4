"""The result of a search: one configuration, with what it costs and the weights it starts from."""

import dataclasses
import json
import os
from collections.abc import Mapping
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


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """One layer of an architecture, as predicted."""

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
        layers: the layers that remain, with their predicted bytes.
        flash_bytes, macs: predicted for the whole network.
        targets: what the search had to meet, as dictionaries.
        weights: of the compact network, by layer and variable; None to start from scratch.

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

    def build(self, inherit_weights: bool = True) -> keras.Model:
        """The compact Keras model, its bits and sparsities fixed.

        Args:
            inherit_weights: start from the search's weights, if there are any; else anew.
        """
        model = build_model(self.source)
        graph = trace(model, copy=False)
        compactor = Compactor(graph, ChannelGroups(graph), self.configuration)
        compact = compactor.build()
        keep_output_names(model, compact)
        if inherit_weights and self.weights is not None:
            set_layer_weights(compact, self.weights)
        else:
            for layer in compact.layers:
                if hasattr(layer, "refresh_mask"):
                    layer.initialize_range()
                    layer.refresh_mask()
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
        return "\n".join([*lines, f"multiply-accumulates: {self.macs:,}"])

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
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "configuration": dataclasses.asdict(self.configuration),
            "has_weights": self.weights is not None,
            "model": self.source,
        }
        if self.weights is not None:
            flat = {
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
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DamagedFileError(path, error, remedy) from error
        if not content["has_weights"]:
            return loaded
        weights = _load_weights(path.with_suffix(".npz"), remedy)
        return dataclasses.replace(loaded, weights=weights)

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> "Architecture":
        configuration = content["configuration"]
        return cls(
            source=content["model"],
            configuration=Configuration(
                channels=dict(configuration["channels"]),
                layers={n: LayerChoice(**c) for n, c in configuration["layers"].items()},
                branches=dict(configuration["branches"]),
            ),
            choices=dict(content["choices"]),
            layers=tuple(
                LayerSummary(**{**row, "kernel_size": tuple(row["kernel_size"])})
                for row in content["layers"]
            ),
            flash_bytes=int(content["flash_bytes"]),
            macs=int(content["macs"]),
            targets=tuple(content["targets"]),
        )


def _load_weights(path: Path, remedy: str) -> dict[str, dict[str, np.ndarray]]:
    weights: dict[str, dict[str, np.ndarray]] = {}
    for key, value in read_arrays(path, remedy).items():
        layer, newline, variable = key.partition("\n")
        if not newline:
            raise DamagedFileError(path, f"{key!r} is no layer's variable", remedy)
        weights.setdefault(layer, {})[variable] = value
    return weights


def get_layer_weights(model: keras.Model) -> dict[str, dict[str, np.ndarray]]:
    """All weights of a flat model, by layer and variable."""
    return {
        layer.name: {v.name: v.numpy() for v in layer.weights}
        for layer in model.layers
        if layer.weights
    }


def set_layer_weights(model: keras.Model, weights) -> None:
    """The counterpart of `get_layer_weights`."""
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
