"""8-bit activations: their numbers, and where they are put."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as kl

import udc_tf
from tests.support.layers import run_layer_test
from udc_tf.export.integer_network import Quantization
from udc_tf.export.simulation import fake_quantize
from udc_tf.layers.activation_quantizer import ActivationQuantizer, held


def compact(inputs, outputs, **settings):
    return udc_tf.compact(keras.Model(inputs, outputs), bits=32, **settings)


def quantizers(model):
    return {q.name: q for q in model.layers if isinstance(q, ActivationQuantizer)}


class TestActivationQuantizer:
    def test_new_layer_changes_nothing(self):
        x = tf.random.stateless_normal((4, 5), (1, 2))
        layer = ActivationQuantizer()
        np.testing.assert_array_equal(layer(x), x)
        np.testing.assert_array_equal(layer(x, training=True), x)
        assert float(layer.maximum.numpy()) == 0

    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"momentum": 0.5, "hold_peaks": True},
            {"fixed_range": (0.0, 6.0)},
            {"limit": 1.0},
        ],
    )
    def test_as_keras_layer(self, arguments, tmp_path):
        layer = ActivationQuantizer(**arguments)
        layer.build((None, 4, 6))
        layer.set_range(-0.7, 1.9)
        layer.enabled.assign(1)
        count = 5 if layer.hold_peaks else 7
        run_layer_test(layer, (4, 6), (4, 6), tmp_path, non_trainable=count)

    def test_values_are_int8_codes_times_scale(self):
        layer = ActivationQuantizer()
        layer.build((None, 1000))
        layer.set_range(-0.7, 1.9)
        layer.enabled.assign(1)
        x = tf.linspace(-2.0, 3.0, 1000)[None]
        codes = layer(x).numpy().astype(np.float64) / layer.scale + layer.zero_point
        np.testing.assert_allclose(codes, np.round(codes), atol=1e-3)
        assert round(codes.min()) == -128
        assert round(codes.max()) == 127
        assert layer(tf.zeros((1, 1))).numpy() == 0

    @pytest.mark.parametrize("low, high", [(0.5, 2.0), (-2.0, -0.5)])
    def test_range_includes_zero(self, low, high):
        layer = ActivationQuantizer()
        layer.build(())
        layer.tracking.assign(1)
        layer(tf.constant([low, high]), training=True)
        assert layer.minimum.numpy() == min(low, 0)
        assert layer.maximum.numpy() == max(high, 0)
        layer.set_range(low, high)
        assert layer.minimum.numpy() <= 0 <= layer.maximum.numpy()

    def test_tracking_follows_training_batches_only(self):
        layer = ActivationQuantizer(momentum=0.75)
        layer.build(())
        layer(tf.constant([-9.0, 9.0]), training=True)
        assert layer.maximum.numpy() == 0  # not tracking yet
        layer.tracking.assign(1)
        layer(tf.constant([-1.0, 4.0]), training=True)
        layer(tf.constant([-1.0, 8.0]), training=True)
        layer(tf.constant([-1.0, 80.0]), training=False)
        assert (layer.minimum.numpy(), layer.maximum.numpy()) == (-1.0, 5.0)

    @pytest.mark.parametrize("share_a_range", [False, True])
    @pytest.mark.parametrize("high", [3.567, 3.568, 3.569, 3.57])
    def test_beside_a_tie_inference_and_export_agree(self, share_a_range, high):
        layer = ActivationQuantizer(hold_peaks=share_a_range)
        layer.build((None, 240))
        layer.set_range(-5.61, high)
        layer.enabled.assign(1)
        exported = Quantization.of_range(-5.61, high)
        assert layer.scale == exported.scale
        ties = ((np.arange(-120, 120) + 0.5) * layer.scale).astype("float32")
        x = np.stack([np.nextafter(ties, -9), ties, np.nextafter(ties, 9)]).astype("float32")
        codes = exported.quantize(x)
        for call in (layer, tf.function(layer)):
            np.testing.assert_array_equal(exported.quantize(call(x)), codes)
        np.testing.assert_array_equal(exported.quantize(fake_quantize(x, exported)), codes)
        assert (codes[0] < codes[2]).mean() > 0.8  # a tie lies between; the rest is saturated

    def test_shared_range_covers_the_widest(self):
        layer = ActivationQuantizer(hold_peaks=True)
        layer.build(())
        layer.tracking.assign(1)
        for _ in range(50):
            layer(tf.constant([-1.0, 10.0]), training=True)
            layer(tf.constant([-3.0, 1.0]), training=True)
        assert layer.maximum.numpy() > 9.4
        assert layer.minimum.numpy() == -3.0

    def test_gradient_passes_inside_the_range(self):
        layer = ActivationQuantizer(fixed_range=(-1.0, 1.0))
        layer.build(())
        layer.enabled.assign(1)
        x = tf.constant([-2.0, 0.3, 2.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(layer(x))
        np.testing.assert_array_equal(tape.gradient(y, x), [0.0, 1.0, 0.0])

    def test_a_limited_range_stays_within_and_lets_gradients_back(self):
        layer = ActivationQuantizer(limit=8.0)
        layer.build(())
        layer.set_range(-20.0, 3.0)
        assert (layer.minimum.numpy(), layer.maximum.numpy()) == (-8.0, 3.0)
        layer.enabled.assign(1)
        layer.tracking.assign(1)
        x = tf.constant([-90.0, 0.0, 90.0])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
        np.testing.assert_array_equal(tape.gradient(y, x), [1.0, 1.0, 1.0])
        assert layer.maximum.numpy() == 3.25  # a twentieth of the way to the limit
        assert abs(layer(x)).numpy().max() < 8.1

    @pytest.mark.parametrize("limit", [None, 2.0])
    def test_held_it_trains_alike_without_a_branch(self, limit):
        x, layer = tf.linspace(-3.0, 3.0, 40), ActivationQuantizer(limit=limit)
        layer.build(x.shape)
        layer.set_range(-1.0, 2.0)

        def trained():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
            return y, tape.gradient(y, x)

        def kinds(function):
            return {node.op for node in function.graph.as_graph_def().node}

        for enabled in (0.0, 1.0):
            layer.enabled.assign(enabled)
            wanted = trained()
            with held([layer]):
                step = tf.function(trained).get_concrete_function()
            assert not kinds(step) & {"If", "StatelessIf", "AssignVariableOp", "PartitionedCall"}
            for a, b in zip(step(), wanted, strict=True):
                np.testing.assert_array_equal(a, b)
        layer.tracking.assign(1.0)
        with held([layer]):
            assert layer.held is None  # its range still moves

    def test_bad_arguments_name_what_was_received(self):
        with pytest.raises(ValueError, match="Received: 1"):
            ActivationQuantizer(momentum=1)
        with pytest.raises(ValueError, match=r"Received: \(1, 2\)"):
            ActivationQuantizer(fixed_range=(1, 2))
        with pytest.raises(ValueError, match="Received: 0"):
            ActivationQuantizer(limit=0)


class TestPoints:
    def test_what_only_saturating_functions_take_is_limited(self):
        x = keras.Input((8, 8, 3), name="image")
        gate = kl.Conv2D(4, 3, name="gate", activation="sigmoid")(x)
        swish = kl.Conv2D(4, 3, name="swish")(x)
        swish = kl.Multiply(name="product")([swish, kl.Activation("sigmoid")(swish)])
        tanh = keras.ops.tanh(kl.Add(name="sum")([gate, swish]))
        dense = kl.Dense(4, name="dense", activation="sigmoid")(kl.Conv2D(4, 3, name="conv")(x))
        found = quantizers(compact(x, kl.Add(name="last")([tanh, dense])))
        limits = {name: q.limit for name, q in found.items() if q.limit is not None}
        assert limits == {
            "gate_preactivation_quantizer": 8.0,
            "sum_quantizer": 4.0,
            "dense_preactivation_quantizer": 8.0,
        }

    def test_batch_norm_and_relu_fold_into_the_convolution(self):
        x = keras.Input((8, 8, 3), name="image")
        y = kl.ReLU(name="relu")(kl.BatchNormalization()(kl.Conv2D(4, 3, name="conv")(x)))
        y = kl.Conv2D(4, 3, name="second", activation="relu")(kl.MaxPooling2D()(y))
        y = kl.Dense(2, name="head")(kl.GlobalAveragePooling2D(name="mean")(y))
        names = [f"{n}_quantizer" for n in ("image", "relu", "second", "mean", "head")]
        assert list(quantizers(compact(x, y))) == names

    def test_residual_block(self):
        x = keras.Input((8, 8, 4), name="image")
        y = kl.BatchNormalization(name="bn")(kl.Conv2D(4, 3, padding="same", name="conv")(x))
        z = kl.ReLU(name="relu")(kl.Add(name="add")([x, y]))
        # The convolution has two readers, so neither can be folded into it.
        z = kl.Conv2D(4, 3, name="twice")(z)
        z = kl.Add(name="sum")([kl.ReLU(name="inner")(z), z])
        names = [f"{n}_quantizer" for n in ("image", "bn", "relu", "twice", "inner", "sum")]
        assert list(quantizers(compact(x, z))) == names

    def test_softmax_is_split_off_with_its_prescribed_scale(self):
        x = keras.Input((6,), name="features")
        model = compact(x, kl.Dense(3, activation="softmax", name="head")(x))
        assert [layer.name for layer in model.layers[1:]] == [
            "features_quantizer",
            "head",
            "head_preactivation_quantizer",
            "head_activation",
            "head_quantizer",
        ]
        last = model.layers[-1]
        assert (last.scale, last.zero_point) == (1 / 256, -128)
        assert last.inference_only

    def test_concatenated_tensors_share_a_range(self):
        x = keras.Input((8, 8, 4), name="image")
        a = kl.Conv2D(3, 1, name="a")(x)
        b = kl.MaxPooling2D(1)(kl.Conv2D(3, 1, name="b", activation="relu")(x))
        c = kl.Concatenate(name="c")([a, b])
        model = compact(x, kl.Conv2D(2, 1, name="head")(c))
        found = quantizers(model)
        assert len(found) == 3
        (shared,) = (q for q in found.values() if q.hold_peaks)
        outputs = keras.Model(model.input, model.get_layer("c").input)
        for quantizer in found.values():
            quantizer.enabled.assign(1)
            quantizer.tracking.assign(1)
        batch = tf.random.stateless_normal((2, 8, 8, 4), (0, 1))
        model(batch, training=True)
        for tensor in outputs(batch):
            codes = tensor.numpy() / shared.scale
            np.testing.assert_allclose(codes, np.round(codes), atol=1e-3)

    def test_integer_inputs_are_left_alone(self):
        x = keras.Input((4,), dtype="int32", name="tokens")
        y = kl.Dense(2, name="head")(kl.Flatten()(kl.Embedding(5, 3, name="table")(x)))
        assert list(quantizers(compact(x, y))) == ["table_quantizer", "head_quantizer"]


class TestCompactModel:
    def network(self):
        x = keras.Input((8, 8, 3), name="image")
        y = kl.Conv2D(8, 3, padding="same", use_bias=False, name="conv")(x)
        y = kl.ReLU()(kl.BatchNormalization()(y))
        y = kl.Add()([y, kl.DepthwiseConv2D(3, padding="same", activation="tanh")(y)])
        y = kl.GlobalAveragePooling2D()(y)
        return x, kl.Dense(5, activation="softmax", name="head")(y)

    def test_fresh_model_computes_what_the_original_does(self):
        inputs, outputs = self.network()
        original, model = keras.Model(inputs, outputs), compact(inputs, outputs)
        batch = tf.random.stateless_normal((4, 8, 8, 3), (3, 4))
        np.testing.assert_allclose(model(batch), original(batch), atol=1e-6)

    def test_saved_and_loaded(self, tmp_path):
        model = compact(*self.network(), layers={"conv": {"bits": 4, "nonzeros": 0.5}})
        for quantizer in quantizers(model).values():
            quantizer.enabled.assign(1)
            quantizer.tracking.assign(1)
        batch = tf.random.stateless_normal((4, 8, 8, 3), (3, 4))
        model(batch, training=True)
        model.save(tmp_path / "tiny.keras")
        loaded = keras.saving.load_model(tmp_path / "tiny.keras")
        np.testing.assert_array_equal(model(batch), loaded(batch))
        assert list(quantizers(loaded)) == list(quantizers(model))
