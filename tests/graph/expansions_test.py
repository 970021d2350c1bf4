"""Layers that are expanded into simpler ones compute what they did, under the same names always."""

import sys

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from tests.support.networks import normal
from udc_tf.graph.trace import trace
from udc_tf.graph.verdicts import refusals

IMAGE, SEQUENCE, VECTOR = (6, 6, 8), (6, 8), (8,)
RANDOM = keras.initializers.RandomUniform(0.5, 1.5)
SCALED = {"gamma_initializer": RANDOM, "beta_initializer": RANDOM}

_CONVNEXT, _INCEPTION = (
    sys.modules[network.__module__]
    for network in (keras.applications.ConvNeXtTiny, keras.applications.InceptionResNetV2)
)

ONE_INPUT = {
    "LayerScale": (_CONVNEXT.LayerScale(0.3, 8), IMAGE),
    "LayerNormalization": (kl.LayerNormalization(**SCALED), IMAGE),
    "LayerNormalization, plain": (kl.LayerNormalization(center=False, scale=False), VECTOR),
    "RMSNormalization": (kl.RMSNormalization(), SEQUENCE),
    "UnitNormalization": (kl.UnitNormalization(), SEQUENCE),
    "GroupNormalization(4)": (kl.GroupNormalization(4, **SCALED), IMAGE),
    "GroupNormalization(1)": (kl.GroupNormalization(1, **SCALED), SEQUENCE),
    "GroupNormalization(-1)": (kl.GroupNormalization(-1, **SCALED), IMAGE),
    "GroupNormalization of a vector": (kl.GroupNormalization(2), VECTOR),
    "EinsumDense ab,bc->ac": (kl.EinsumDense("ab,bc->ac", 3, "tanh", bias_axes="c"), VECTOR),
    "EinsumDense ...x,xy->...y": (kl.EinsumDense("...x,xy->...y", (6, 6, 3), "relu"), IMAGE),
    "EinsumDense abc,bcde->ade": (kl.EinsumDense("abc,bcde->ade", (3, 2), "softmax"), SEQUENCE),
}
TWO_INPUTS = {
    "Dot": (kl.Dot(1), VECTOR),
    "Dot, normalized": (kl.Dot(-1, normalize=True), VECTOR),
    "Dot (1, 2)": (kl.Dot((1, 2)), (8, 8)),
    "Dot 2": (kl.Dot(2), SEQUENCE),
    "Attention": (kl.Attention(), SEQUENCE),
    "CustomScaleLayer": (_INCEPTION.CustomScaleLayer(0.3), SEQUENCE),
}


def same(model: keras.Model, data) -> list[str]:
    """Asserts that the traced calls compute what the model does; returns their names."""
    graph = trace(model)
    flat = graph.rebuild(lambda node: node.layer)
    expected, got = model(data, training=False), flat(data, training=False)
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)
    return [node.name for node in graph.nodes]


@pytest.mark.parametrize("kind", ONE_INPUT)
def test_layer_of_one_input(kind):
    layer, shape = ONE_INPUT[kind]
    inputs = keras.Input(shape)
    model = keras.Model(inputs, layer(inputs))
    for bias in (v for v in model.weights if v.name == "bias"):
        bias.assign(normal(*bias.shape, count=1)[0])
    names = same(model, normal(*shape, count=4))
    assert all(name.startswith(f"{layer.name}/") for name in names)
    assert names == same(model, normal(*shape, count=4))  # whatever Keras has counted meanwhile


@pytest.mark.parametrize("kind", TWO_INPUTS)
def test_layer_of_two_inputs(kind):
    layer, shape = TWO_INPUTS[kind]
    inputs = [keras.Input(shape), keras.Input(shape)]
    data = normal(*shape, count=8)
    same(keras.Model(inputs, layer(inputs)), [data[:4], data[4:]])


class TestMultiHeadAttention:
    def _model(self, call, **settings):
        layer = kl.MultiHeadAttention(2, 4, bias_initializer=RANDOM, name="heads", **settings)
        inputs = [keras.Input((6, 8)), keras.Input((5, 8))]
        return keras.Model(inputs, call(layer, *inputs))

    data = normal(6, 8, count=4), normal(5, 8, count=4)

    def test_of_two_sequences(self):
        model = self._model(lambda heads, a, b: heads(a, value=b), value_dim=3, output_shape=7)
        names = same(model, list(self.data))
        assert {"heads/query", "heads/value", "heads/attention_output"} <= set(names)

    def test_of_a_sequence_with_itself_and_named_arguments(self):
        def call(heads, a, b):
            return kl.Concatenate(axis=1)([heads(key=a, value=a, query=a), b])

        same(self._model(call), list(self.data))

    def test_parts_are_searched(self):
        model = self._model(lambda heads, a, b: heads(a, b))
        search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("1MiB"))
        names = {decision.name for decision in search.problem.plan.decisions}
        assert {"bits/heads/query", "sparsity/heads/attention_output"} <= names

    @pytest.mark.parametrize(
        "arguments,why",
        [({"use_causal_mask": True}, "causal"), ({"return_attention_scores": True}, "scores")],
    )
    def test_calls_that_have_no_operators(self, arguments, why):
        model = self._model(lambda heads, a, b: heads(a, b, **arguments))
        (row,) = refusals(trace(model))
        assert row.name == "heads" and why in row.reason and row.instead == "leave it out"


def test_shared_normalization_has_its_weights_once():
    inputs, norm = keras.Input(SEQUENCE), kl.LayerNormalization(name="norm", **SCALED)
    model = keras.Model(inputs, norm(norm(inputs)))
    same(model, normal(*SEQUENCE, count=4))
    scales = {id(n.layer) for n in trace(model).nodes if n.name == "norm/scale"}
    assert len(scales) == 1


def test_layer_for_several_shapes_is_refused():
    inputs, norm = keras.Input(SEQUENCE), kl.LayerNormalization(name="norm")
    outputs = norm(kl.Concatenate(axis=1)([norm(inputs), inputs]))
    (row,) = refusals(trace(keras.Model(inputs, outputs)))
    assert row.name == "norm" and row.instead == "take one for each"


def test_layers_of_applications_are_built_anew():
    x = keras.Input(IMAGE)
    y = _CONVNEXT.LayerScale(0.3, 8)(kl.Conv2D(8, 1)(x))
    y = kl.Add()([x, _CONVNEXT.StochasticDepth(0.1)(y)])
    y = _INCEPTION.CustomScaleLayer(0.2)([x, kl.Conv2D(8, 1)(y)])
    search = udc_tf.make_searchable(keras.Model(x, y), "ethos_u55", udc_tf.Flash("64KiB"))
    assert search.architecture().build().output_shape == (None, *IMAGE)
