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


def _shapes(node):
    return [attr["value"] for output in node["outputsMetadata"] for attr in output["attrs"]]


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
    assert _shapes(nodes["join"]) == ["8x8x4"]
    assert nodes["join"]["label"] == "Add"


def test_outputs_of_a_layer_are_told_apart():
    image = keras.Input((4, 4, 2), name="image")
    halves = keras.layers.Lambda(lambda x: [x[..., :1], x], name="halves")(image)
    nodes = _nodes(keras.Model(image, keras.layers.ReLU(name="second")(halves[1])))
    (edge,) = nodes["second"]["incomingEdges"]
    assert (edge["sourceNodeId"], edge["sourceNodeOutputId"]) == ("halves", "1")
    assert _shapes(nodes["halves"]) == ["4x4x1", "4x4x2"]
    assert _shapes(nodes["image"]) == ["4x4x2"] and _shapes(nodes["outputs"]) == []


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
