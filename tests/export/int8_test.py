"""The exact int8 .tflite: its integers, its ranges, and the data they are measured on."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as kl

import udc_tf
from tests.support.int8_checks import as_trained, check, conv_bn_relu, kinds
from tests.support.networks import normal
from udc_tf.export import errors, int8, tflite_file, tflm_check
from udc_tf.export.integer_network import Quantization
from udc_tf.layers.activation_quantizer import ActivationQuantizer


class TestCodes:
    @pytest.mark.parametrize("bits", [1, 2, 4, 8])
    def test_file_holds_the_integers_of_every_kind_of_layer(self, bits):
        keras.utils.set_random_seed(bits)
        inputs = keras.Input((8, 8, 4))
        x = conv_bn_relu(inputs, 8, padding="same")
        x = kl.DepthwiseConv2D(3, padding="same", name="depthwise")(x)
        x = kl.Conv2DTranspose(6, 3, strides=2, padding="same", name="up")(x)
        x = kl.BatchNormalization()(x)
        outputs = kl.Dense(5, name="head")(kl.Flatten()(x))
        data = normal(8, 8, 4)
        model = udc_tf.compact(keras.Model(inputs, outputs), bits=bits, nonzeros=0.5)
        as_trained(model, data)
        exact = check(model, data)
        file = tflite_file.read(exact.content)
        # The way back from TFLite's layout, written down independently of the way there.
        back = {
            "CompactConv2D": lambda w: w.transpose(1, 2, 3, 0),
            "CompactDepthwiseConv2D": lambda w: w[0][..., None],
            "CompactConv2DTranspose": lambda w: w.transpose(1, 2, 0, 3),
            "CompactDense": lambda w: w.T,
        }
        seen = 0
        for operator, step in zip(file.operators, exact.network.steps, strict=True):
            if step.kernel is None:
                continue
            layer = model.get_layer(step.name)
            weights = file.tensors[operator.inputs[1]]
            kernel = layer.integer_kernel()
            codes = back[type(layer).__name__](weights.data)
            np.testing.assert_array_equal(np.abs(codes), np.abs(kernel.codes))
            assert np.count_nonzero(codes) == kernel.nonzeros
            assert np.abs(codes).max() <= max(2 ** (bits - 1) - 1, 1)
            # Codes times scales: the kernel of the forward pass, times gamma/sigma if any.
            shape = [1] * 4
            shape[weights.quantized_axis] = -1
            real = weights.data * (
                weights.scales.reshape(shape) if len(weights.scales) > 1 else weights.scales
            )
            applied = np.asarray(layer.effective_kernel(False))
            ratio = back[type(layer).__name__](real)[applied != 0] / applied[applied != 0]
            if step.name in ("depthwise", "head"):
                # A dense layer's scale gives way a little, see `dense_scale`; all of it as one.
                np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
                np.testing.assert_allclose(ratio, 1, rtol=5e-4 if step.name == "head" else 1e-5)
            seen += 1
        assert seen == 4

    def test_tampered_file_is_noticed(self):
        model = keras.Sequential([keras.Input((4,)), kl.Dense(3, name="head")])
        exact = int8.to_int8(model, normal(4))
        codes = exact.network.steps[0].kernel.codes.tobytes()
        at = exact.content.index(codes)
        content = bytearray(exact.content)
        content[at] ^= 1
        with pytest.raises(errors.ConversionError, match=r"`head` differ.*1 codes"):
            int8.verify(int8.Int8Model(bytes(content), exact.network, exact.quantizations))

    def test_twice_gives_the_same_bytes(self):
        model = keras.Sequential([keras.Input((6, 6, 2)), kl.Conv2D(3, 3), kl.ReLU()])
        data = normal(6, 6, 2)
        assert int8.to_int8(model, data).content == int8.to_int8(model, data).content

    def test_constants_are_aligned(self):
        model = keras.Sequential([keras.Input((7, 7, 3)), kl.Conv2D(5, 3), kl.Conv2D(3, 3)])
        exact = int8.to_int8(model, normal(7, 7, 3))
        for step in exact.network.kernels:
            assert exact.content.index(step.kernel.codes.tobytes()) % 16 == 0


class TestRanges:
    def _model(self, low=-1.0, high=3.0):
        inputs = keras.Input((6, 6, 3))
        quantizers = [ActivationQuantizer(name=f"q{i}") for i in range(3)]
        x = kl.ReLU()(kl.Conv2D(4, 3)(quantizers[0](inputs)))
        x = kl.MaxPooling2D()(quantizers[1](x))
        model = keras.Model(inputs, quantizers[2](kl.Dense(2)(kl.Flatten()(x))))
        model = udc_tf.compact(model, bits=8, nonzeros=0.5)
        quantizers = [model.get_layer(quantizer.name) for quantizer in quantizers]
        for quantizer, bounds in zip(quantizers, [(-4, 4), (0, 2.5), (low, high)], strict=True):
            quantizer.set_range(*bounds)
            quantizer.enabled.assign(1.0)
        return model

    def test_trained_ranges_need_no_data_and_equal_keras(self):
        model, data = self._model(), normal(6, 6, 3, count=32)
        exact = int8.to_int8(model)
        assert kinds(exact) == ["CONV_2D", "MAX_POOL_2D", "RESHAPE", "FULLY_CONNECTED"]
        (last,) = exact.network.outputs
        assert exact.quantizations[last] == Quantization.of_range(-1, 3)
        keras_codes = exact.quantizations[last].quantize(model.predict(data, verbose=0))
        np.testing.assert_array_equal(exact.reference([data])[0], keras_codes)
        golden = tflm_check.run(exact.content, exact.quantize_inputs([data]))[0]
        assert np.mean(np.abs(golden.astype(int) - keras_codes) <= 1) == 1

    def test_quantizer_that_saw_nothing_is_calibrated(self):
        model = self._model()
        model.get_layer("q1").seen.assign(0.0)
        with pytest.raises(errors.CalibrationError, match=r"3 tensors"):
            int8.to_int8(model)
        int8.to_int8(model, normal(6, 6, 3))

    def test_range_of_a_dense_layer_with_batch_norm_is_its_own(self):
        # It becomes a convolution and a reshape; the range must not come as an operator after them.
        inputs = keras.Input((6,))
        quantizers = [ActivationQuantizer(name=f"q{i}") for i in range(2)]
        x = kl.BatchNormalization()(kl.Dense(4, name="dense")(quantizers[0](inputs)))
        outputs = quantizers[1](kl.ReLU()(x))
        model = udc_tf.compact(keras.Model(inputs, outputs), bits=8, nonzeros=0.5)
        for quantizer, bounds in zip(quantizers, [(-3, 3), (0, 1.5)], strict=True):
            model.get_layer(quantizer.name).set_range(*bounds)
            model.get_layer(quantizer.name).enabled.assign(1.0)
        exact, data = int8.to_int8(model), normal(6, count=32)
        assert kinds(exact) == ["RESHAPE", "CONV_2D", "RESHAPE"]
        (last,) = exact.network.outputs
        assert exact.quantizations[last] == Quantization.of_range(0, 1.5)
        keras_codes = exact.quantizations[last].quantize(model.predict(data, verbose=0))
        golden = tflm_check.run(exact.content, exact.quantize_inputs([data]))[0]
        assert np.abs(golden.astype(int) - keras_codes).max() <= 1

    def test_concatenation_of_trained_ranges_requantizes(self):
        inputs = keras.Input((4, 4, 2))
        parts = []
        for n, high in enumerate((1.0, 5.0)):
            quantizer = ActivationQuantizer()
            parts.append(quantizer(kl.Conv2D(3, 1, name=f"conv{n}")(inputs)))
            quantizer.set_range(-high, high)
            quantizer.enabled.assign(1.0)
        exact = check(keras.Model(inputs, kl.Concatenate()(parts)), normal(4, 4, 2))
        assert kinds(exact) == ["CONV_2D", "CONV_2D", "QUANTIZE", "CONCATENATION"]

    @pytest.mark.parametrize(
        "data,message",
        [
            (normal(6, 6, 4), r"\(batch, 6, 6, 3\). Received: \(8, 6, 6, 4\)"),
            (np.full((1, 6, 6, 3), np.nan), "Received: 108 NaN or infinite"),
            (np.zeros((0, 6, 6, 3)), "at least one sample"),
            ([normal(6, 6, 3)] * 3 and 5, "Received: 5"),
        ],
    )
    def test_unsuitable_data(self, data, message):
        inputs = keras.Input((6, 6, 3))
        with pytest.raises(errors.CalibrationError, match=message):
            int8.to_int8(keras.Model(inputs, kl.Conv2D(3, 1)(inputs)), data)

    def test_a_network_that_diverged(self):
        inputs = keras.Input((6, 6, 3))
        model = keras.Model(inputs, kl.Conv2D(3, 1, name="conv")(inputs))
        model.get_layer("conv").bias.assign([0.0, np.nan, 0.0])
        with pytest.raises(errors.ConversionError, match="`conv/bias` has values that are not"):
            int8.to_int8(model, normal(6, 6, 3))

    def test_data_of_all_forms_give_the_same(self):
        inputs = keras.Input((6, 6, 3))
        model = keras.Model(inputs, kl.Conv2D(3, 1)(inputs))
        x, y = normal(6, 6, 3), np.zeros(8)
        forms = [
            x,
            [x],
            (x, y),
            tf.data.Dataset.from_tensor_slices((x, y)).batch(3),
            tf.data.Dataset.from_tensor_slices(x).batch(8),
            iter([x[:5], x[5:]]),
        ]
        assert len({int8.to_int8(model, form).content for form in forms}) == 1


class TestQuantization:
    @pytest.mark.parametrize("low,high", [(0, 6), (-1, 1), (-0.3, 5.7), (2, 3), (0, 0), (-3, -1)])
    def test_rounds_as_fake_quant_does(self, low, high):
        quantization = Quantization.of_range(low, high)
        assert -128 <= quantization.zero_point <= 127
        assert quantization.dequantize(np.int8(quantization.zero_point)) == 0
        if min(low, 0) < max(high, 0):
            values = np.linspace(-7, 7, 1001, dtype="float32")
            theirs = tf.quantization.fake_quant_with_min_max_vars(
                values, float(min(low, 0)), float(max(high, 0))
            ).numpy()
            ours = quantization.dequantize(quantization.quantize(values))
            assert np.mean(np.abs(ours - theirs) < 1e-5) > 0.99
