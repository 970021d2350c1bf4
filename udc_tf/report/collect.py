"""Everything a report shows, read from a work directory; what is missing is left out."""

import dataclasses
import importlib.metadata
import pathlib
import platform
from typing import Any

import keras
import numpy as np

from udc_tf.files import read_json
from udc_tf.layers.inventory import kernel_layers
from udc_tf.report import readers
from udc_tf.saved_models import load_model

_PACKAGES = ("udc-tf", "tensorflow", "keras", "numpy", "ethos-u-vela", "tflite-micro")


@dataclasses.dataclass(frozen=True)
class Facts:
    """The content of a work directory."""

    folder: pathlib.Path
    run: dict[str, Any]
    results: dict[str, Any]
    architecture: dict[str, Any]
    probabilities: dict[str, Any]
    manifest: dict[str, Any]
    export: dict[str, Any]  # the exporter's report.json
    search: list[dict[str, float]]
    finetune: list[dict[str, float]]
    network: keras.Model | None  # as finetuned

    @property
    def search_settings(self) -> dict[str, Any]:
        return self.run.get("sections", {}).get("search", {})

    @property
    def task(self) -> str:
        return self.search_settings.get("task", "classification")

    @property
    def title(self) -> str:
        settings = self.search_settings
        name = settings.get("recipe") or str(settings.get("model", "network"))
        return name.replace("_", " ")

    def layer_bytes(self) -> list[tuple[str, float, float | None]]:
        """Name, predicted and compiled bytes of each layer's weights.

        The prediction is s*b + H(s) for the layer as the search chose it.
        """
        compiled = {row["layer"]: row for row in self.export.get("layers", [])}
        rows = []
        for layer in self.architecture.get("layers", []):
            found = compiled.get(layer["name"]) or compiled.get(layer["name"].replace("/", "_"))
            vela = None if found is None else found.get("vela_bytes")
            rows.append((layer["name"], bound_bytes(layer), vela))
        return rows


def collect(folder: pathlib.Path) -> Facts:
    folder = pathlib.Path(folder)
    return Facts(
        folder=folder,
        run=_json(folder / "run.json"),
        results=readers.read_results(folder / "results.json"),
        architecture=_json(folder / "architecture.json"),
        probabilities=readers.read_probabilities(folder / "probabilities.json"),
        manifest=readers.read_manifest(folder / "artefacts" / "manifest.json"),
        export=readers.read_export_report(folder / "artefacts" / "report.json"),
        search=readers.read_history(folder / "search.jsonl"),
        finetune=readers.read_history(folder / "finetune.jsonl"),
        network=_network(folder / "network.keras"),
    )


def bound_bytes(layer: dict[str, Any]) -> float:
    """(s*b + H(s)) / 8 for each weight.

    >>> bound_bytes({"nonzeros": 1.0, "bits": 4, "weights": 16})
    8.0
    """
    s = layer["nonzeros"]
    entropy = 0.0 if s in (0, 1) else -(s * np.log2(s) + (1 - s) * np.log2(1 - s))
    return float(layer["weights"] * (s * layer["bits"] + entropy) / 8)


def weight_rows(network: keras.Model) -> list[dict[str, Any]]:
    """For each layer: its weights before quantization, the levels, and the pruned zone."""
    rows = []
    for layer in kernel_layers(network):
        integers = layer.integer_kernel()
        theta = keras.ops.convert_to_numpy(layer.theta).ravel()
        kept = keras.ops.convert_to_numpy(layer.mask).ravel() > 0
        pruned = np.abs(theta[~kept])
        rows.append(
            {
                "name": layer.name,
                "bits": layer.deployed_bits,
                "theta": theta,
                "levels": np.unique(integers.codes) * integers.step,
                "beta": float(pruned.max()) if pruned.size else 0.0,
            }
        )
    return rows


def versions() -> dict[str, str]:
    found = {"Python": platform.python_version(), "system": platform.platform(terse=True)}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _network(path: pathlib.Path) -> keras.Model | None:
    return load_model(path, "remove it, and finetune anew") if path.exists() else None


def _json(path: pathlib.Path) -> dict[str, Any]:
    return read_json(path, "there is no report without it") if path.exists() else {}
