"""Every layer and every activation of Keras: accepted, or refused before training.

What is accepted must be right: `tests/export/every_layer_test.py`.
"""

import keras
import numpy as np
import pytest
from absl import logging as absl_logging
from keras import layers as kl

import udc_tf
from tests.support.every_layer import ACTIVATIONS, LAYERS, network_of
from udc_tf.graph.trace import trace
from udc_tf.graph.verdicts import refusals

_ROOMY = udc_tf.Flash("64MiB")


def _right_or_refused(model: keras.Model, name: str) -> str | None:
    """The sentence in which a network is refused; None if it is not."""
    try:
        udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
    except ValueError as error:
        said = str(error)
        assert f"`{name}`" in said and "\n" not in said and "Received: " in said, said
        assert "; " in said, said  # what to do instead
        return said
    return None


class TestEveryLayer:
    @pytest.mark.parametrize("name", LAYERS)
    def test_is_lowered_or_refused(self, name):
        _right_or_refused(network_of(name), "tested")

    def test_some_are_lowered_and_some_refused(self):
        assert _right_or_refused(network_of("MaxPooling2D"), "tested") is None
        said = _right_or_refused(network_of("AdditiveAttention"), "tested")
        assert "for ethos-u55-128" in said and "take Attention" in said

    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_activation_is_lowered_or_refused(self, name):
        function = getattr(keras.activations, name)
        x = keras.Input((8, 8, 4))
        inside = kl.Conv2D(4, 1, activation=function, name="tested")(x)
        inside = _right_or_refused(keras.Model(x, inside), "tested")
        stem = kl.Conv2D(4, 1, name="stem")(x)
        alone = keras.Model(x, kl.Activation(function, name="tested")(stem))
        assert (inside is None) == (_right_or_refused(alone, "tested") is None)
        if inside is not None:
            assert "; take " in inside


@keras.saving.register_keras_serializable("verdicts_test")
class _OwnCall(kl.Conv2D):
    def call(self, inputs):
        return 2 * super().call(inputs)


@keras.saving.register_keras_serializable("verdicts_test")
class _OfTheFuture(kl.Layer):
    """As a layer that a later version of Keras brings."""

    def call(self, inputs):
        return inputs


class TestUnknown:
    def test_subclass_with_a_call_of_its_own(self):
        x = keras.Input((8, 8, 4))
        model = keras.Model(x, kl.Conv2D(2, 1)(_OwnCall(4, 1, name="tested")(x)))
        assert "with its own `call`" in _right_or_refused(model, "tested")

    def test_layer_of_another_version(self, monkeypatch):
        monkeypatch.setattr(_OfTheFuture, "__module__", "keras.src.layers.of_the_future")
        x = keras.Input((8, 8, 4))
        model = keras.Model(x, _OfTheFuture(name="tested")(kl.Conv2D(4, 1)(x)))
        assert "_OfTheFuture has no int8 operator" in _right_or_refused(model, "tested")

    def test_operation_of_keras(self):
        x = keras.Input((8, 8, 4))
        model = keras.Model(x, keras.ops.cumsum(kl.Conv2D(4, 1)(x), axis=1))
        assert "Cumsum has no int8 operator" in _right_or_refused(model, "cumsum")

    def test_sizes_that_are_not_known(self):
        x = keras.Input((None, None, 3), name="any_size")
        model = keras.Model(x, kl.Conv2D(4, 3)(x))
        assert "give keras.Input every size" in _right_or_refused(model, "any_size")


def _sum_of_ranks(x):
    return x + keras.ops.mean(x, axis=1)


CALLS = {
    "depthwise strides": (lambda x: kl.DepthwiseConv2D(3, (1, 2), name="tested")(x), "equal ones"),
    "mask": (lambda x: kl.Softmax(name="tested")(x, np.ones((1, 8, 8, 4))), "leave the mask out"),
    "training": (lambda x: kl.Dropout(0.5, name="tested")(x, training=True), "leave `training`"),
    "axis of a softmax": (lambda x: kl.Softmax(1, name="tested")(x), "take axis=-1"),
    "the batch": (lambda x: kl.Concatenate(0, name="tested")([x, x]), "take another axis"),
    "a layer": (lambda x: kl.Conv2D(4, 1, activation=kl.ReLU(), name="tested")(x), "put it behind"),
    "float16": (lambda x: kl.Conv2D(4, 1, dtype="float16", name="tested")(x), "a mixed policy"),
    "six axes": (
        lambda x: kl.Permute((1, 3, 2, 4, 5), name="tested")(kl.Reshape((4, 2, 4, 2, 4))(x)),
        "up to 5 axes",
    ),
}


class TestCalls:
    """Settings and calls of layers that are otherwise known."""

    @pytest.mark.parametrize("kind", CALLS)
    def test_is_refused(self, kind):
        make, why = CALLS[kind]
        x = keras.Input((8, 8, 4))
        model = keras.Model(x, make(kl.Conv2D(4, 1)(x)))
        assert why in _right_or_refused(model, "tested")

    def test_operation_on_tensors_of_several_ranks(self):
        x = keras.Input((8, 8, 4))
        model = keras.Model(x, _sum_of_ranks(kl.Conv2D(4, 1)(x)))
        name = model.operations[-1].name  # Keras counts them
        assert "not one number of axes" in _right_or_refused(model, name)

    def test_the_layer_is_named_and_not_what_keras_calls_for_it(self):
        x = keras.Input((8, 4))
        model = keras.Model(x, kl.LSTM(3)(kl.Masking(name="tested")(x)))
        assert "`tested` (Masking)" in _right_or_refused(model, "tested")

    def test_nested_model_with_a_mask(self):
        x, mask = keras.Input((8, 4)), keras.Input((8,), dtype="bool")
        inner = keras.Sequential([keras.Input((8, 4)), kl.LSTM(3)], name="tested")
        model = keras.Model([x, mask], inner(x, mask=mask))
        assert "is called with `mask`" in _right_or_refused(model, "tested")

    def test_nested_models_of_two_inputs_and_frozen_ones(self):
        x = keras.Input((8, 8, 4))
        inner = keras.Model([a := keras.Input((8, 8, 4)), x], kl.Dropout(0.5)(kl.Add()([a, x])))
        y = inner([kl.Conv2D(4, 1)(x), kl.Conv2D(4, 1)(x)], training=False)
        assert _right_or_refused(keras.Model(x, y), inner.name) is None

    def test_function_that_cannot_be_copied(self):
        x = keras.Input((8, 8, 4))
        model = keras.Model(x, kl.Conv2D(4, 1, activation=lambda v: v, name="tested")(x))
        _right_or_refused(model, "tested")
        with pytest.raises(ValueError, match=r"does not read `tested` \(Conv2D\) back"):
            udc_tf.check(model)

    def test_model_that_trains_in_its_own_way(self):
        class Trained(keras.Model):  # Keras cannot read it back: it is not registered
            def train_step(self, data):
                return super().train_step(data)

        x = keras.Input((8, 8, 4))
        assert _right_or_refused(Trained(x, kl.Conv2D(4, 1)(x), name="tested"), "tested") is None


class TestOtherTargets:
    def test_search_and_warn(self, caplog):
        model = network_of("AdditiveAttention")
        absl_logging.use_absl_handler()
        with caplog.at_level("WARNING", logger="absl"):
            udc_tf.make_searchable(model, "ethos_u55", udc_tf.PaperSize("64MiB"))
        assert "training goes on, but" in caplog.text and "`tested`" in caplog.text

    def test_one_device_among_them_refuses(self):
        targets = [udc_tf.PaperSize("64MiB"), _ROOMY]
        with pytest.raises(ValueError, match=r"`tested` .*AdditiveAttention"):
            udc_tf.make_searchable(network_of("AdditiveAttention"), "ethos_u55", targets)


def test_several_refusals_are_counted():
    x = keras.Input((8, 8, 4))
    y = kl.LayerNormalization(1, name="a")(kl.Conv2D(4, 1)(x))
    y = kl.UnitNormalization(1, name="c")(kl.LayerNormalization(1, name="b")(y))
    model = keras.Model(x, y)
    assert [row.name for row in refusals(trace(model))] == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"`a` .*so are 2 more: `b`, `c`\)"):
        udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
