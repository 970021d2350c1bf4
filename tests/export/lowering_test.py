"""What layers become: operators that compute what Keras does, or an error that names the layer."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from tests.support.int8_checks import as_trained, check, conv_bn_relu, kinds
from tests.support.networks import normal
from udc_tf.export import errors, folding, tflite_file, vela
from udc_tf.export.integer_network import Kernel
from udc_tf.export.lowering import lower
from udc_tf.graph.affine import Affine


class TestFolding:
    def test_batch_norm_and_relu_disappear(self):
        inputs = keras.Input((8, 8, 3))
        model = keras.Model(inputs, conv_bn_relu(conv_bn_relu(inputs, 8), 8))
        data = normal(8, 8, 3)
        exact = check(as_trained(model, data), data)
        assert kinds(exact) == ["CONV_2D", "CONV_2D"]

    def test_batch_norm_on_its_own(self, tmp_path):
        # As in DenseNet: in front of the convolution, on concatenated tensors.
        inputs = keras.Input((8, 8, 4))
        x = inputs
        for _ in range(2):
            y = kl.ReLU()(kl.BatchNormalization()(x))
            x = kl.Concatenate()([x, kl.Conv2D(4, 3, padding="same", use_bias=False)(y)])
        data = normal(8, 8, 4)
        exact = check(as_trained(keras.Model(inputs, x), data), data)
        assert kinds(exact).count("DEPTHWISE_CONV_2D") == 2
        assert "QUANTIZE" not in kinds(exact)

    def test_batch_norm_after_dense_keeps_one_step_for_the_layer(self):
        inputs = keras.Input((16,))
        x = kl.ReLU()(kl.BatchNormalization()(kl.Dense(8, name="hidden")(inputs)))
        data = normal(16, count=32)
        model = udc_tf.compact(keras.Model(inputs, kl.Dense(4)(x)), bits=4, nonzeros=0.5)
        as_trained(model, data)
        exact = check(model, data)
        assert kinds(exact) == ["RESHAPE", "CONV_2D", "RESHAPE", "FULLY_CONNECTED"]
        codes = exact.network.steps[1].kernel.codes.reshape(8, 16)
        expected = model.get_layer("hidden").integer_kernel().codes.T
        np.testing.assert_array_equal(np.abs(codes), np.abs(expected))

    def test_output_read_twice_is_not_folded(self):
        inputs = keras.Input((8, 8, 3))
        x = kl.Conv2D(4, 3)(inputs)
        model = keras.Model(inputs, kl.Add()([x, kl.BatchNormalization()(x)]))
        data = normal(8, 8, 3)
        assert kinds(check(as_trained(model, data), data)) == [
            "CONV_2D",
            "DEPTHWISE_CONV_2D",
            "ADD",
        ]

    def test_channel_that_batch_norm_switched_off(self, tmp_path):
        inputs = keras.Input((8, 8, 3))
        model = keras.Model(inputs, conv_bn_relu(inputs, 4))
        data = normal(8, 8, 3)
        as_trained(model, data)
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

    def test_small_number_added_to_a_single_channel_of_next_to_nothing(self):
        """As LayerNormalization adds its epsilon to the variance of what is all alike."""
        affine = Affine(np.array([1.0]), np.array([0.001]))
        kernel = folding.affine_kernel("epsilon", affine)
        written = folding.within_int32(kernel, input_scale=1e-12, output_scale=4e-6)
        assert written.bias[0] / (1e-12 * written.scales[0]) <= 2**30


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
        exact = check(model, normal(*shape))
        assert kinds(exact)[1:] == expected
        path = tmp_path / "model.tflite"
        path.write_bytes(exact.content)
        assert vela.compile_with_vela(path, tmp_path).cpu_operators == ()

    @pytest.mark.parametrize("combine", ["Add", "Subtract", "Multiply", "Concatenate"])
    def test_two_inputs_of_different_ranges(self, combine, tmp_path):
        one, other = keras.Input((4, 4, 3)), keras.Input((4, 4, 3))
        joined = getattr(kl, combine)()([kl.Conv2D(5, 1)(one), kl.Conv2D(5, 1)(other)])
        data = [normal(4, 4, 3), 7 * normal(4, 4, 3)]
        exact = check(keras.Model([one, other], [kl.ReLU()(joined), joined]), data)
        path = tmp_path / "model.tflite"
        path.write_bytes(exact.content)
        assert vela.compile_with_vela(path, tmp_path).cpu_operators == ()

    def test_python_operators_and_three_summands(self):
        inputs = keras.Input((4, 4, 3))
        a, b, c = (kl.Conv2D(5, 1)(inputs) for _ in range(3))
        check(keras.Model(inputs, kl.Add()([a, b, c]) + a * b), normal(4, 4, 3))

    def test_squeeze_and_excite(self):
        inputs = keras.Input((6, 6, 8))
        x = conv_bn_relu(inputs, 8)
        gate = kl.GlobalAveragePooling2D(keepdims=True)(x)
        gate = kl.Conv2D(8, 1, activation="sigmoid")(kl.Conv2D(2, 1, activation="relu")(gate))
        data = normal(6, 6, 8)
        check(as_trained(keras.Model(inputs, kl.Multiply()([x, gate])), data), data)

    def test_layer_that_is_called_twice_has_its_weights_once(self):
        inputs = keras.Input((6, 6, 4))
        shared = kl.Conv2D(4, 3, padding="same")
        exact = check(keras.Model(inputs, shared(kl.ReLU()(shared(inputs)))), normal(6, 6, 4))
        one, two = tflite_file.read(exact.content).operators
        assert one.inputs[1] == two.inputs[1]

    def test_unsupported_layer_is_named(self):
        inputs = keras.Input((6, 6, 4))
        model = keras.Model(inputs, kl.LayerNormalization(1, name="norm")(inputs))
        with pytest.raises(errors.ConversionError, match=r"`norm`.*Received: LayerNormalization"):
            lower(model)

    def test_unsupported_activation_is_named(self):
        inputs = keras.Input((6, 6, 4))
        model = keras.Model(inputs, kl.Conv2D(3, 1, activation="sparsemax", name="conv")(inputs))
        with pytest.raises(errors.ConversionError, match=r"`conv`.* the activation 'sparsemax'"):
            lower(model)

    def test_open_size_is_an_error(self):
        inputs = keras.Input((None, 6, 4))
        with pytest.raises(errors.ConversionError, match=r"Received: \(None, None, 6, 4\)"):
            lower(keras.Model(inputs, kl.Conv2D(3, 1)(inputs)))
