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
    inputs = _tensors(graph.inputs)
    made_by = {ref.id: (name, 0) for ref, name in zip(inputs, graph.input_names, strict=True)}
    for node in graph.nodes:
        made_by |= {ref.id: (node.name, place) for place, ref in enumerate(_tensors(node.outputs))}
    nodes = [
        *(_entry(made_by[ref.id][0], "Input", [], [ref], {}) for ref in inputs),
        *(_of_call(node, made_by, became) for node in graph.nodes),
        _entry("outputs", "Outputs", [made_by[ref.id] for ref in _tensors(graph.outputs)], [], {}),
    ]
    return {"label": graph.name, "graphs": [{"id": graph.name, "nodes": nodes}]}


def _of_call(
    node: Node,
    made_by: Mapping[int, tuple[str, int]],
    became: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    # A layer of a nested model is "nested/name", and "nested_name" in the file.
    found = became.get(node.name) or became.get(node.name.replace("/", "_"), {})
    facts = {key: f"{value:,}" for key, value in found.items() if isinstance(value, (int, float))}
    sources = [made_by[ref.id] for ref in node.inputs]
    return _entry(node.name, type(node.layer).__name__, sources, _tensors(node.outputs), facts)


def _entry(
    name: str,
    label: str,
    sources: Sequence[tuple[str, int]],
    outputs: Sequence[TensorRef],
    facts: Mapping[str, str],
) -> dict[str, Any]:
    """A node.

    Args:
        sources: of each input, the node that it comes from and which of that one's outputs it is.
        facts: what Model Explorer shows of the node beside its shapes.
    """
    return {
        "id": name,
        "label": label,
        "namespace": name.rpartition("/")[0],
        "attrs": [{"key": key, "value": value} for key, value in facts.items()],
        "incomingEdges": [
            {
                "sourceNodeId": source,
                "sourceNodeOutputId": str(output),
                "targetNodeInputId": str(place),
            }
            for place, (source, output) in enumerate(sources)
        ],
        # By this key Model Explorer knows a shape, which it also writes beside the edges.
        "outputsMetadata": [
            {"id": str(place), "attrs": [{"key": "tensor_shape", "value": _shape(ref)}]}
            for place, ref in enumerate(outputs)
        ],
    }


def _tensors(structure: Any) -> list[TensorRef]:
    return [ref for ref in keras.tree.flatten(structure) if isinstance(ref, TensorRef)]


def _shape(ref: TensorRef) -> str:
    return "x".join(str(size) for size in ref.shape[1:])
