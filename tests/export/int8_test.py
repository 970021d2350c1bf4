"""The exact int8 .tflite: against Keras, the fake-quant reference and TFLM."""

import copy
import dataclasses

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from udc_tf.export import (
    bias_rounding,
    errors,
    folding,
    int8,
    simulation,
    tflite_file,
    tflite_writer,
    tflm_check,
    vela,
)
from udc_tf.export.integer_network import Kernel, Quantization
from udc_tf.export.lowering import lower
from udc_tf.layers.activation_quantizer import ActivationQuantizer


def randomized(model: keras.Model, data: np.ndarray, seed: int = 0) -> keras.Model:
    """Weights as training leaves them: statistics that fit the data, some gammas negative."""
    rng = np.random.default_rng(seed)
    for layer in model.layers:
        if isinstance(layer, kl.BatchNormalization):
            signs = rng.choice([1, 1, -1], layer.gamma.shape)
            layer.gamma.assign(rng.uniform(0.5, 1.5, layer.gamma.shape) * signs)
            layer.beta.assign(rng.normal(0, 0.3, layer.beta.shape))
            layer.momentum = 0.0
        elif getattr(layer, "bias", None) is not None:
            layer.bias.assign(rng.normal(0, 0.1, layer.bias.shape))
    model(data, training=True)
    return model


def compacted(model: keras.Model, bits: int, nonzeros: float = 0.5) -> keras.Model:
    return udc_tf.compact(model, bits=bits, nonzeros=nonzeros)


def images(*shape: int, count: int = 8) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, *shape)).astype("float32")


def check(model: keras.Model, data) -> int8.Int8Model:
    """Float equals Keras, and in TFLM every operator is within 1 of the fake-quant network's."""
    arrays = data if isinstance(data, list) else [data]
    exact = int8.to_int8(model, data)
    expected = model.predict(data, verbose=0)
    expected = expected if isinstance(expected, list) else [expected]
    plain = any(type(layer) in (kl.Conv2D, kl.Dense) for layer in model.layers)
    quantizers = [q for q in model.layers if isinstance(q, ActivationQuantizer)]
    rounded = any(float(q.enabled.numpy()) > 0.5 for q in quantizers)
    floating = simulation.run(exact.network, arrays, exact.quantizations if rounded else None)
    for ours, theirs in zip(floating, expected, strict=True):
        # A plain layer's weights are rounded to 8 bits here. A compact one's are what they are, but
        # for the scale of a dense layer, which may move by 1/2048 (`export/dense_scale.py`).
        tolerance = (0.04 if plain else 6e-4) * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, atol=tolerance)
    tflm_check.run(exact.content, exact.quantize_inputs(arrays))
    held = {}
    simulation.run(exact.network, arrays, exact.quantizations, observe=held.__setitem__)
    codes = {i: exact.quantizations[i].quantize(array) for i, array in held.items()}
    unrepaired = dataclasses.replace(exact.network, steps=[*map(copy.copy, exact.network.steps)])
    bias_rounding.round_biases(unrepaired, exact.quantizations, None)
    for step in unrepaired.steps:
        alone = dataclasses.replace(
            unrepaired, steps=[step], inputs=step.inputs, outputs=(step.output,)
        )
        content = tflite_writer.write(alone, exact.quantizations)
        (golden,) = tflm_check.run(content, [codes[i] for i in step.inputs])
        difference = np.abs(golden.astype(int) - codes[step.output])
        assert difference.max() <= 1, (step.kind, np.bincount(difference.ravel()))
    return exact


def kinds(exact: int8.Int8Model) -> list[str]:
    return [step.kind for step in exact.network.steps]


def conv_bn_relu(x, filters, **kwargs):
    x = kl.Conv2D(filters, 3, use_bias=False, **kwargs)(x)
    return kl.ReLU()(kl.BatchNormalization()(x))


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
        data = images(8, 8, 4)
        model = randomized(compacted(keras.Model(inputs, outputs), bits), data)
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
        exact = int8.to_int8(model, images(4))
        codes = exact.network.steps[0].kernel.codes.tobytes()
        at = exact.content.index(codes)
        content = bytearray(exact.content)
        content[at] ^= 1
        with pytest.raises(errors.ConversionError, match=r"`head` differ.*1 codes"):
            int8.verify(int8.Int8Model(bytes(content), exact.network, exact.quantizations))

    def test_twice_gives_the_same_bytes(self):
        model = keras.Sequential([keras.Input((6, 6, 2)), kl.Conv2D(3, 3), kl.ReLU()])
        data = images(6, 6, 2)
        assert int8.to_int8(model, data).content == int8.to_int8(model, data).content

    def test_constants_are_aligned(self):
        model = keras.Sequential([keras.Input((7, 7, 3)), kl.Conv2D(5, 3), kl.Conv2D(3, 3)])
        exact = int8.to_int8(model, images(7, 7, 3))
        for step in exact.network.kernels:
            assert exact.content.index(step.kernel.codes.tobytes()) % 16 == 0


class TestFolding:
    def test_batch_norm_and_relu_disappear(self):
        inputs = keras.Input((8, 8, 3))
        model = keras.Model(inputs, conv_bn_relu(conv_bn_relu(inputs, 8), 8))
        data = images(8, 8, 3)
        exact = check(randomized(model, data), data)
        assert kinds(exact) == ["CONV_2D", "CONV_2D"]

    def test_batch_norm_on_its_own(self, tmp_path):
        # As in DenseNet: in front of the convolution, on concatenated tensors.
        inputs = keras.Input((8, 8, 4))
        x = inputs
        for _ in range(2):
            y = kl.ReLU()(kl.BatchNormalization()(x))
            x = kl.Concatenate()([x, kl.Conv2D(4, 3, padding="same", use_bias=False)(y)])
        data = images(8, 8, 4)
        exact = check(randomized(keras.Model(inputs, x), data), data)
        assert kinds(exact).count("DEPTHWISE_CONV_2D") == 2
        assert "QUANTIZE" not in kinds(exact)

    def test_batch_norm_after_dense_keeps_one_step_for_the_layer(self):
        inputs = keras.Input((16,))
        x = kl.ReLU()(kl.BatchNormalization()(kl.Dense(8, name="hidden")(inputs)))
        data = images(16, count=32)
        model = randomized(compacted(keras.Model(inputs, kl.Dense(4)(x)), 4), data)
        exact = check(model, data)
        assert kinds(exact) == ["RESHAPE", "CONV_2D", "RESHAPE", "FULLY_CONNECTED"]
        codes = exact.network.steps[1].kernel.codes.reshape(8, 16)
        expected = model.get_layer("hidden").integer_kernel().codes.T
        np.testing.assert_array_equal(np.abs(codes), np.abs(expected))

    def test_output_read_twice_is_not_folded(self):
        inputs = keras.Input((8, 8, 3))
        x = kl.Conv2D(4, 3)(inputs)
        model = keras.Model(inputs, kl.Add()([x, kl.BatchNormalization()(x)]))
        data = images(8, 8, 3)
        assert kinds(check(randomized(model, data), data)) == [
            "CONV_2D",
            "DEPTHWISE_CONV_2D",
            "ADD",
        ]

    def test_channel_that_batch_norm_switched_off(self, tmp_path):
        inputs = keras.Input((8, 8, 3))
        model = keras.Model(inputs, conv_bn_relu(inputs, 4))
        data = images(8, 8, 3)
        randomized(model, data)
        norm = model.layers[2]
        norm.gamma.assign([0.0, 1e-12, 1.0, -1.0])
        norm.beta.assign([1.0, 0.0, 0.5, 0.5])
        exact = check(model, data)
        kernel = exact.network.steps[0].kernel
        assert kernel.collapsed == () and kernel.codes[:2].any()
        path = tmp_path / "model.tflite"
        path.write_bytes(exact.content)
        assert vela.compile_with_vela(path, tmp_path).cpu_operators == ()

    def test_switched_off_channel_that_would_still_move_the_output(self):
        codes = np.full((2, 3, 3, 64), 127, np.int8)
        kernel = Kernel("conv", codes, 0, np.array([1.0, 1e-30]), np.array([0.0, 100.0]))
        written = folding.within_int32(kernel, input_scale=0.1, output_scale=0.1)
        assert written.collapsed == (1,)
        assert written.codes[0].all() and not written.codes[1].any()
        assert abs(written.bias[1] / (0.1 * written.scales[1])) <= 2**30


def _operators():
    image = (8, 8, 4)
    yield "max pooling", image, kl.MaxPooling2D(), ["MAX_POOL_2D"]
    yield "average pooling", image, kl.AveragePooling2D(3, 2, "same"), ["AVERAGE_POOL_2D"]
    yield "global average", image, kl.GlobalAveragePooling2D(), ["MEAN"]
    yield "global maximum", image, kl.GlobalMaxPooling2D(), ["MAX_POOL_2D", "RESHAPE"]
    yield "padding", image, kl.ZeroPadding2D(((1, 2), (0, 1))), ["PAD"]
    yield "cropping", image, kl.Cropping2D(((1, 2), (0, 1))), ["STRIDED_SLICE"]
    yield "nearest", image, kl.UpSampling2D(2), ["RESIZE_NEAREST_NEIGHBOR"]
    yield "bilinear", image, kl.UpSampling2D(2, interpolation="bilinear"), ["RESIZE_BILINEAR"]
    yield "flatten", image, kl.Flatten(), ["RESHAPE"]
    yield "reshape", image, kl.Reshape((4, 16, 4)), ["RESHAPE"]
    yield "dropout", image, kl.Dropout(0.5), []
    yield "relu6", image, kl.ReLU(6.0), []  # fused
    yield "leaky relu", image, kl.LeakyReLU(0.1), ["LEAKY_RELU"]
    yield "sigmoid", image, kl.Activation("sigmoid"), ["LOGISTIC"]
    yield "tanh", image, kl.Activation("tanh"), ["TANH"]
    yield "silu", image, kl.Activation("silu"), ["LOGISTIC", "MUL"]
    yield "hard swish", image, kl.Activation("hard_silu"), ["HARD_SWISH"]
    yield "softmax", (10,), kl.Softmax(), ["SOFTMAX"]
    yield "rescaling", image, kl.Rescaling(0.5, -0.3), ["DEPTHWISE_CONV_2D"]
    yield "dense on images", image, kl.Dense(6), ["CONV_2D"]
    yield "stride 2", image, kl.Conv2D(6, 3, 2, "same"), ["CONV_2D"]
    yield "dilated", image, kl.Conv2D(6, 3, dilation_rate=2), ["CONV_2D"]
    yield "depthwise stride 2", image, kl.DepthwiseConv2D(3, 2, "same"), ["DEPTHWISE_CONV_2D"]
    yield "transposed", image, kl.Conv2DTranspose(6, 3, 2, "same"), ["TRANSPOSE_CONV"]
    yield (
        "transposed with relu",
        image,
        kl.Conv2DTranspose(6, 3, 2, "valid", activation="relu"),
        ["TRANSPOSE_CONV"],
    )
    yield "activation inside", image, kl.Conv2D(6, 1, activation="tanh"), ["CONV_2D", "TANH"]


class TestOperators:
    @pytest.mark.parametrize(
        "shape,layer,expected", [c[1:] for c in _operators()], ids=[c[0] for c in _operators()]
    )
    def test_layer_after_a_kernel(self, shape, layer, expected, tmp_path):
        keras.utils.set_random_seed(0)
        inputs = keras.Input(shape)
        first = kl.Conv2D(4, 1) if len(shape) == 3 else kl.Dense(10)
        model = keras.Model(inputs, layer(first(inputs)))
        exact = check(model, images(*shape))
        assert kinds(exact)[1:] == expected
        path = tmp_path / "model.tflite"
        path.write_bytes(exact.content)
        assert vela.compile_with_vela(path, tmp_path).cpu_operators == ()

    @pytest.mark.parametrize("combine", ["Add", "Subtract", "Multiply", "Concatenate"])
    def test_two_inputs_of_different_ranges(self, combine, tmp_path):
        one, other = keras.Input((4, 4, 3)), keras.Input((4, 4, 3))
        joined = getattr(kl, combine)()([kl.Conv2D(5, 1)(one), kl.Conv2D(5, 1)(other)])
        data = [images(4, 4, 3), 7 * images(4, 4, 3)]
        exact = check(keras.Model([one, other], [kl.ReLU()(joined), joined]), data)
        path = tmp_path / "model.tflite"
        path.write_bytes(exact.content)
        assert vela.compile_with_vela(path, tmp_path).cpu_operators == ()

    def test_python_operators_and_three_summands(self):
        inputs = keras.Input((4, 4, 3))
        a, b, c = (kl.Conv2D(5, 1)(inputs) for _ in range(3))
        check(keras.Model(inputs, kl.Add()([a, b, c]) + a * b), images(4, 4, 3))

    def test_squeeze_and_excite(self):
        inputs = keras.Input((6, 6, 8))
        x = conv_bn_relu(inputs, 8)
        gate = kl.GlobalAveragePooling2D(keepdims=True)(x)
        gate = kl.Conv2D(8, 1, activation="sigmoid")(kl.Conv2D(2, 1, activation="relu")(gate))
        data = images(6, 6, 8)
        check(randomized(keras.Model(inputs, kl.Multiply()([x, gate])), data), data)

    def test_layer_that_is_called_twice_has_its_weights_once(self):
        inputs = keras.Input((6, 6, 4))
        shared = kl.Conv2D(4, 3, padding="same")
        exact = check(keras.Model(inputs, shared(kl.ReLU()(shared(inputs)))), images(6, 6, 4))
        one, two = tflite_file.read(exact.content).operators
        assert one.inputs[1] == two.inputs[1]

    def test_unsupported_layer_is_named(self):
        inputs = keras.Input((6, 6, 4))
        model = keras.Model(inputs, kl.LayerNormalization(name="norm")(inputs))
        with pytest.raises(errors.ConversionError, match=r"`norm`.*Received: LayerNormalization"):
            lower(model)

    def test_unsupported_activation_is_named(self):
        inputs = keras.Input((6, 6, 4))
        model = keras.Model(inputs, kl.Conv2D(3, 1, activation="softplus", name="conv")(inputs))
        with pytest.raises(errors.ConversionError, match=r"`conv` .*the activation 'softplus'"):
            lower(model)

    def test_open_size_is_an_error(self):
        inputs = keras.Input((None, 6, 4))
        with pytest.raises(errors.ConversionError, match=r"Received: \(None, None, 6, 4\)"):
            lower(keras.Model(inputs, kl.Conv2D(3, 1)(inputs)))


class TestRanges:
    def _model(self, low=-1.0, high=3.0):
        inputs = keras.Input((6, 6, 3))
        quantizers = [ActivationQuantizer(name=f"q{i}") for i in range(3)]
        x = kl.ReLU()(kl.Conv2D(4, 3)(quantizers[0](inputs)))
        x = kl.MaxPooling2D()(quantizers[1](x))
        model = keras.Model(inputs, quantizers[2](kl.Dense(2)(kl.Flatten()(x))))
        model = compacted(model, 8)
        quantizers = [model.get_layer(quantizer.name) for quantizer in quantizers]
        for quantizer, bounds in zip(quantizers, [(-4, 4), (0, 2.5), (low, high)], strict=True):
            quantizer.set_range(*bounds)
            quantizer.enabled.assign(1.0)
        return model

    def test_trained_ranges_need_no_data_and_equal_keras(self):
        model, data = self._model(), images(6, 6, 3, count=32)
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
        int8.to_int8(model, images(6, 6, 3))

    def test_range_of_a_dense_layer_with_batch_norm_is_its_own(self):
        # It becomes a convolution and a reshape; the range must not come as an operator after them.
        inputs = keras.Input((6,))
        quantizers = [ActivationQuantizer(name=f"q{i}") for i in range(2)]
        x = kl.BatchNormalization()(kl.Dense(4, name="dense")(quantizers[0](inputs)))
        model = compacted(keras.Model(inputs, quantizers[1](kl.ReLU()(x))), 8)
        for quantizer, bounds in zip(quantizers, [(-3, 3), (0, 1.5)], strict=True):
            model.get_layer(quantizer.name).set_range(*bounds)
            model.get_layer(quantizer.name).enabled.assign(1.0)
        exact, data = int8.to_int8(model), images(6, count=32)
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
        exact = check(keras.Model(inputs, kl.Concatenate()(parts)), images(4, 4, 2))
        assert kinds(exact) == ["CONV_2D", "CONV_2D", "QUANTIZE", "CONCATENATION"]

    @pytest.mark.parametrize(
        "data,message",
        [
            (images(6, 6, 4), r"\(batch, 6, 6, 3\). Received: \(8, 6, 6, 4\)"),
            (np.full((1, 6, 6, 3), np.nan), "Received: 108 NaN or infinite"),
            (np.zeros((0, 6, 6, 3)), "empty"),
            ([images(6, 6, 3)] * 3 and 5, "Received: 5"),
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
            int8.to_int8(model, images(6, 6, 3))

    def test_data_of_all_forms_give_the_same(self):
        import tensorflow as tf

        inputs = keras.Input((6, 6, 3))
        model = keras.Model(inputs, kl.Conv2D(3, 1)(inputs))
        x, y = images(6, 6, 3), np.zeros(8)
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
        import tensorflow as tf

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
