"""The finished network as a graph for Model Explorer: `model_graph.json`.

Google's Model Explorer (`pip install ai-edge-model-explorer`, `model-explorer model_graph.json`)
draws it: a node per layer, those of nested models in groups, with bits, non-zeros and compiled
bytes. The `.tflite` files need nothing of the kind: it reads them as they are, and so does Netron.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from udc_tf.files import replaced_atomically
from udc_tf.graph.trace import Node, TensorRef, trace

FILE = "model_graph.json"


def write_model_graph(
    folder: pathlib.Path, network: keras.Model, layers: Sequence[Mapping[str, Any]]
) -> pathlib.Path:
    """Writes the graph of a network into a folder.

    Args:
        layers: of the exporter's report: what each layer with weights became.
    """
    with replaced_atomically(folder / FILE) as partial:
        partial.write_text(json.dumps(model_graph(network, layers), indent=1), encoding="utf-8")
    return folder / FILE


def model_graph(network: keras.Model, layers: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """A graph collection as Model Explorer reads it.

    Example:

    >>> inputs = keras.Input((4,), name="readings")
    >>> network = keras.Model(inputs, keras.layers.Dense(2, name="head")(inputs), name="tiny")
    >>> for node in model_graph(network)["graphs"][0]["nodes"]:
    ...     print(node["id"], [edge["sourceNodeId"] for edge in node["incomingEdges"]])
    readings []
    head ['readings']
    outputs ['head']
    """
    graph = trace(network, copy=False)
    became = {row["layer"]: row for row in layers}
    made_by = {ref.id: node.name for node in graph.nodes for ref in _tensors(node.outputs)}
    inputs = _tensors(graph.inputs)
    made_by |= {ref.id: name for ref, name in zip(inputs, graph.input_names, strict=True)}
    nodes = [
        *(_entry(made_by[ref.id], "Input", [], {"shape": _shape(ref)}) for ref in inputs),
        *(_of_call(node, made_by, became) for node in graph.nodes),
        _entry("outputs", "Outputs", [made_by[ref.id] for ref in _tensors(graph.outputs)], {}),
    ]
    return {"label": graph.name, "graphs": [{"id": graph.name, "nodes": nodes}]}


def _of_call(
    node: Node, made_by: Mapping[int, str], became: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    facts = {"shape": ", ".join(_shape(ref) for ref in _tensors(node.outputs))}
    # A layer of a nested model is "nested/name", and "nested_name" in the file.
    found = became.get(node.name) or became.get(node.name.replace("/", "_"), {})
    facts |= {key: f"{value:,}" for key, value in found.items() if isinstance(value, (int, float))}
    sources = [made_by[ref.id] for ref in node.inputs]
    return _entry(node.name, type(node.layer).__name__, sources, facts)


def _entry(
    name: str, label: str, sources: Sequence[str], facts: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "id": name,
        "label": label,
        "namespace": name.rpartition("/")[0],
        "attrs": [{"key": key, "value": value} for key, value in facts.items()],
        "incomingEdges": [
            {"sourceNodeId": source, "targetNodeInputId": str(place)}
            for place, source in enumerate(sources)
        ],
    }


def _tensors(structure: Any) -> list[TensorRef]:
    return [ref for ref in keras.tree.flatten(structure) if isinstance(ref, TensorRef)]


def _shape(ref: TensorRef) -> str:
    return "x".join(str(size) for size in ref.shape[1:])
