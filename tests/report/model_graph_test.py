"""The graph for Model Explorer: every layer, every edge, what each layer became."""

import json

import keras

import udc_tf
from udc_tf.report.model_graph import model_graph, write_model_graph


def _nodes(network, layers=()):
    (graph,) = model_graph(network, layers)["graphs"]
    return {node["id"]: node for node in graph["nodes"]}


def _sources(node):
    return [edge["sourceNodeId"] for edge in node["incomingEdges"]]


def _two_branches():
    inputs = keras.Input((8, 8, 3), name="image")
    tower = keras.Sequential([keras.layers.Conv2D(4, 3, padding="same", name="left")], name="tower")
    left = tower(inputs)
    right = keras.layers.Conv2D(4, 1, name="right")(inputs)
    joined = keras.layers.Add(name="join")([left, right])
    return keras.Model(inputs, [joined, right], name="towers")


def test_edges_are_those_of_the_network():
    nodes = _nodes(_two_branches())
    assert _sources(nodes["join"]) == ["tower/left", "right"]
    assert _sources(nodes["outputs"]) == ["join", "right"]
    assert nodes["tower/left"]["namespace"] == "tower"
    assert {"key": "shape", "value": "8x8x4"} in nodes["join"]["attrs"]
    assert nodes["join"]["label"] == "Add"


def test_compact_network_tells_what_its_layers_became(tmp_path):
    network = udc_tf.compact(_two_branches(), bits=4)
    layers = [{"layer": "tower_left", "bits": 4, "vela_bytes": 1240, "kind": "CONV_2D"}]
    path = write_model_graph(tmp_path, network, layers)
    read = json.loads(path.read_text())
    assert read["label"] == network.name
    nodes = {node["id"]: node for node in read["graphs"][0]["nodes"]}
    assert {"key": "vela_bytes", "value": "1,240"} in nodes["tower_left"]["attrs"]
    known = set(nodes)
    assert all(source in known for node in nodes.values() for source in _sources(node))
