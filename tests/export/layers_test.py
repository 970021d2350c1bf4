"""One tiny network per kind of layer, to int8 and through Vela.

Each must pass export's own gate, correlate with Keras, stay on the NPU, and be the same in TFLM and
on the NPU, bit for bit.
"""

import keras
import numpy as np
import pytest
from keras import layers as kl
from keras import ops

import udc_tf
from tests.support import npu_networks as nets
from udc_tf.compact.build import Compactor, Configuration, LayerChoice, carry_weights
from udc_tf.export import agreement, tflm_check
from udc_tf.export.errors import ConversionError
from udc_tf.export.int8 import to_int8
from udc_tf.export.npu import NpuNetwork
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.trace import trace

SEQUENCE, IMAGE, VECTOR = (16, 3), (8, 8, 3), (6,)


def conv(x, activation="relu"):
    make = kl.Conv1D if len(x.shape) == 3 else kl.Conv2D
    return make(6, 3, padding="same", activation=activation)(x)


def head(x):
    if len(x.shape) == 3:
        x = kl.GlobalAveragePooling1D()(x)
    if len(x.shape) == 4:
        x = kl.GlobalAveragePooling2D()(x)
    return kl.Dense(4)(x)


def built(shape, layers) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input(shape)
    return keras.Model(inputs, layers(inputs))


def noise(shape, count=16) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, *shape)).astype("float32")


def check_arrives(tiny: keras.Model, data: list[np.ndarray]) -> list[str]:
    """Asserts all that a layer must do; returns the operators."""
    one = len(data) == 1
    exact = to_int8(tiny, data[0] if one else data)
    agreement.check(tiny, exact, data)
    codes = exact.quantize_inputs(data)
    golden = tflm_check.run(exact.content, codes)
    npu = NpuNetwork(nets.compile_in_process(exact.content)).run(codes)
    expected = keras.tree.flatten(tiny(data[0] if one else data, training=False))
    for index, got, want, real in zip(exact.network.outputs, npu, golden, expected, strict=True):
        np.testing.assert_array_equal(got.reshape(want.shape), want)
        ours = exact.quantizations[index].dequantize(want)
        assert np.corrcoef(np.ravel(ours), np.ravel(real))[0, 1] > 0.99
    return [step.kind for step in exact.network.steps]


def arrives(shape, layers, width=1.0) -> list[str]:
    return check_arrives(udc_tf.compact(built(shape, layers), width=width), [noise(shape)])


SEQUENCES = {
    "Conv1D": lambda x: kl.Conv1D(6, 3)(x),
    "Conv1D strides": lambda x: head(kl.Conv1D(6, 5, strides=4)(x)),
    "Conv1D same and batch norm": lambda x: head(
        kl.ReLU()(kl.BatchNormalization()(kl.Conv1D(6, 3, strides=2, padding="same")(x)))
    ),
    "Conv1D causal and dilated": lambda x: head(
        kl.Conv1D(6, 3, dilation_rate=2, padding="causal", activation="relu")(conv(x))
    ),
    "Conv1D grouped": lambda x: head(kl.Conv1D(8, 3, groups=2)(conv(x))),
    "DepthwiseConv1D": lambda x: head(kl.DepthwiseConv1D(3, strides=2, padding="same")(conv(x))),
    "DepthwiseConv1D multiplied": lambda x: head(
        kl.DepthwiseConv1D(3, depth_multiplier=2, dilation_rate=2)(conv(x))
    ),
    "SeparableConv1D": lambda x: head(kl.SeparableConv1D(8, 3, activation="relu")(conv(x))),
    "Conv1DTranspose": lambda x: head(
        kl.ReLU()(kl.BatchNormalization()(kl.Conv1DTranspose(6, 3, strides=2)(conv(x))))
    ),
    "Conv1DTranspose same": lambda x: head(
        kl.Conv1DTranspose(5, 4, strides=2, padding="same", activation="relu")(conv(x))
    ),
    "pooling": lambda x: head(
        kl.AveragePooling1D(3, 2, padding="same")(kl.MaxPooling1D(3, 2, padding="same")(conv(x)))
    ),
    "GlobalMaxPooling1D": lambda x: kl.Dense(4)(kl.GlobalMaxPooling1D()(conv(x))),
    "keepdims": lambda x: kl.Multiply()(
        [conv(x), kl.Dense(6, activation="sigmoid")(kl.GlobalAveragePooling1D(keepdims=True)(x))]
    ),
    "padding, cropping, upsampling": lambda x: head(
        conv(kl.UpSampling1D(2)(kl.Cropping1D((1, 2))(kl.ZeroPadding1D((2, 1))(conv(x)))))
    ),
    "dropout and softmax": lambda x: kl.Dense(4, activation="softmax")(
        kl.Flatten()(kl.SpatialDropout1D(0.1)(conv(x)))
    ),
    "stacked": lambda x: head(
        conv(ops.stack([conv(x), conv(x)], axis=1)) + conv(ops.stack([conv(x)] * 2, 1))
    ),
    "matrix product": lambda x: ops.matmul(ops.swapaxes(conv(x), 1, 2), conv(x, None)),
    "joined in time": lambda x: head(
        kl.Concatenate(axis=1)([conv(x), kl.Add()([conv(x), conv(x)])])
    ),
}


class TestSequences:
    @pytest.mark.parametrize("kind", SEQUENCES)
    def test_arrives(self, kind):
        operators = arrives(SEQUENCE, SEQUENCES[kind], width=0.5)
        assert "RESHAPE" not in operators[1:-3]  # nothing is laid out anew on the way

    def test_two_inputs_share_a_layer(self):
        keras.utils.set_random_seed(0)
        inputs = [keras.Input(SEQUENCE) for _ in range(2)]
        shared = kl.Conv1D(6, 3, activation="relu")
        pooled = [kl.GlobalAveragePooling1D()(shared(x)) for x in inputs]
        tiny = udc_tf.compact(keras.Model(inputs, [kl.Dense(3)(kl.Concatenate()(pooled)), *pooled]))
        data = noise(SEQUENCE, 32)
        assert check_arrives(tiny, [data[:16], data[16:]]).count("CONV_2D") == 2


# Steps are operators: few of them show it all.
OVER_TIME = {
    "LSTM": lambda x: kl.Dense(4)(kl.LSTM(6)(kl.Cropping1D((0, 12))(conv(x)))),
    "GRU": lambda x: kl.Dense(4)(kl.GRU(6)(kl.Cropping1D((0, 12))(conv(x)))),
    "one after the other": lambda x: kl.Bidirectional(kl.SimpleRNN(6), merge_mode="ave")(
        kl.GRU(6, reset_after=False, return_sequences=True, go_backwards=True)(
            kl.Cropping1D((0, 13))(x)
        )
    ),
    "TimeDistributed": lambda x: kl.TimeDistributed(kl.Dense(4, activation="tanh"))(
        kl.TimeDistributed(kl.Flatten())(
            kl.TimeDistributed(kl.MaxPooling2D(2))(
                kl.TimeDistributed(kl.Conv2D(6, 2, padding="same", activation="relu"))(
                    kl.Reshape((3, 4, 4, 1))(x)
                )
            )
        )
    ),
}


class TestOverTime:
    @pytest.mark.parametrize("kind", OVER_TIME)
    def test_arrives(self, kind):
        arrives(SEQUENCE, OVER_TIME[kind], width=0.5)

    def test_a_kernel_of_several_steps_has_one_bias(self):
        # Vela takes the weights that it has coded before, biases and all.
        keras.utils.set_random_seed(0)
        x = keras.Input((4, 3))
        y = kl.GRU(8, bias_initializer="random_normal")(x)
        exact = to_int8(udc_tf.compact(keras.Model(x, y), bits=2), noise((4, 3)))
        steps = [s for s in exact.network.kernels if s.name.endswith("candidate_recurrent")]
        assert len(steps) == 4
        for step in steps:
            np.testing.assert_array_equal(step.weights.written_bias, steps[0].weights.written_bias)
            assert step.weights.scales == steps[0].weights.scales


ELEMENTWISE = {
    "x * 0.5 + 1": lambda x: head(conv(conv(x) * 0.5 + 1.0)),
    "1 - x / 3": lambda x: head(conv(1.0 - conv(x) / 3.0)),
    "-x": lambda x: head(conv(-conv(x))),
    "one number per channel": lambda x: head(conv(conv(x) * np.arange(1.0, 7.0, dtype="float32"))),
    "hard sigmoid by hand": lambda x: head(kl.ReLU(6.0)(conv(x, None) + 3.0) * (1 / 6)),
    "Maximum": lambda x: head(kl.Maximum()([conv(x, None), conv(x, None)])),
    "Maximum with a prescribed range": lambda x: head(
        kl.Maximum()([conv(x, "sigmoid"), conv(x, None)])
    ),
    "minimum": lambda x: head(ops.minimum(conv(x, None), conv(x, None))),
    "Average": lambda x: head(kl.Average()([conv(x, None), conv(x, None), conv(x, None)])),
    "square and abs": lambda x: head(ops.square(conv(x, None)) + ops.abs(conv(x, None))),
    "squeeze and excitation": lambda x: head(_excited(conv(x))),
    "Add of an image and a vector": lambda x: head(
        kl.Add()([conv(x), kl.Dense(6)(kl.GlobalAveragePooling2D()(conv(x)))])
    ),
}


def _excited(x):
    gate = kl.Conv2D(4, 1, activation="relu")(kl.GlobalAveragePooling2D(keepdims=True)(x))
    return kl.Multiply()([x, kl.Conv2D(x.shape[-1], 1, activation="hard_sigmoid")(gate)])


class TestElementwise:
    @pytest.mark.parametrize("kind", ELEMENTWISE)
    def test_arrives(self, kind):
        arrives(IMAGE, ELEMENTWISE[kind], width=0.5)

    def test_equal_kernels_keep_their_biases(self):
        # Vela takes weights that it has coded before, biases and all, if only the scales are equal.
        arrives(VECTOR, lambda x: kl.Dense(4)(kl.Dense(8)(x) * 2.0 + 1.0))


ACTIVATIONS = (
    *("elu", "celu", "selu", "gelu", "silu", "hard_silu", "leaky_relu", "relu6", "tanh"),
    *("sigmoid", "hard_sigmoid", "sparse_sigmoid", "hard_tanh", "tanh_shrink", "softplus", "mish"),
    *("log_sigmoid", "softsign", "squareplus", "sparse_plus", "soft_shrink"),
)
_SLOPES = keras.initializers.RandomUniform(-0.5, 0.5)
ACTIVATION_LAYERS = {
    "ReLU(max_value=1)": lambda x: head(kl.ReLU(max_value=1.0)(conv(x, None))),
    "ReLU(max_value=1) alone": lambda x: head(
        kl.ReLU(max_value=1.0)(kl.MaxPooling2D()(conv(x, None)))
    ),
    "ELU(alpha=0.5)": lambda x: head(kl.ELU(alpha=0.5)(conv(x, None))),
    "PReLU": lambda x: head(kl.PReLU(_SLOPES, shared_axes=[1, 2])(conv(x, None))),
    "clip": lambda x: head(ops.clip(conv(x, None), -0.5, 0.7)),
    "celu": lambda x: head(ops.celu(conv(x, None), 0.5)),
    "maximum and minimum with numbers": lambda x: head(
        ops.minimum(0.5, ops.maximum(conv(x, None), -0.3)) + ops.maximum(conv(x, None), 0.0)
    ),
}


class TestActivations:
    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_arrives(self, name):
        arrives(IMAGE, lambda x: head(conv(x, name)))

    @pytest.mark.parametrize("kind", ACTIVATION_LAYERS)
    def test_layer_arrives(self, kind):
        arrives(IMAGE, ACTIVATION_LAYERS[kind], width=0.5)

    def test_a_prelu_for_each_position(self):
        arrives(IMAGE, lambda x: head(kl.PReLU(_SLOPES)(conv(x, None))))

    @pytest.mark.parametrize("name", ["exponential", "log_softmax"])
    def test_what_has_no_operator_is_refused(self, name):
        model = built(IMAGE, lambda x: head(kl.Activation(name, name="odd")(conv(x, None))))
        with pytest.raises(ConversionError, match=f"`odd` .*{name}.* take soft"):
            to_int8(model)


MOVING = {
    "Normalization": lambda x: head(
        conv(kl.Normalization(mean=[1.0, 2.0, 3.0], variance=[1.0, 4.0, 9.0])(x))
    ),
    "Rescaling per channel": lambda x: head(
        conv(kl.Rescaling([0.5, 2.0, 1.0], [0.0, 1.0, -1.0])(x))
    ),
    "augmentation": lambda x: head(conv(kl.RandomRotation(0.1)(kl.RandomFlip()(x)))),
    "Permute": lambda x: head(conv(kl.Permute((3, 1, 2))(conv(x)))),
    "transpose": lambda x: head(conv(ops.transpose(conv(x), (0, 2, 1, 3)))),
    "mean over rows": lambda x: head(conv(ops.mean(conv(x), axis=2))),
    "mean and max": lambda x: kl.Dense(4)(
        kl.Concatenate()([ops.mean(conv(x), (1, 2)), ops.max(conv(x), (1, 2))])
    ),
    "max over rows": lambda x: head(conv(ops.max(conv(x), axis=2))),
    "cropped, then transposed": lambda x: head(
        kl.Conv2DTranspose(5, 3, strides=2, padding="same")(kl.Cropping2D(1)(conv(x)))
    ),
    "spatial attention": lambda x: head(_attended(conv(x))),
    "mean and max of all": lambda x: kl.Dense(3)(
        ops.mean(conv(x), (1, 2, 3), keepdims=True) + ops.max(conv(x), (1, 2, 3), keepdims=True)
    ),
    "swapped and moved": lambda x: head(ops.moveaxis(ops.swapaxes(conv(x), 1, 2), -1, 1)),
    "pooling of keras.ops": lambda x: head(
        ops.average_pool(ops.max_pool(conv(x), 2), (3, 3), 1, "same")
    ),
    "resized": lambda x: head(
        kl.Resizing(16, 16)(conv(x)) + ops.image.resize(conv(x), (16, 16), "nearest")
    ),
    "sum": lambda x: kl.Dense(4)(ops.sum(conv(x), axis=(1, 2))),
    "reshape": lambda x: head(conv(ops.reshape(conv(x), (-1, 16, 24)))),
    "split and concatenate": lambda x: head(
        conv(ops.concatenate(ops.split(conv(x), 3, axis=-1)[::-1], axis=-1))
    ),
    "slices": lambda x: head(conv(conv(x)[:, 1:7, 2:][..., 1:4])),
    "one row": lambda x: head(conv(conv(x)[:, 3])),
    "pad": lambda x: head(conv(ops.pad(conv(x), ((0, 0), (1, 2), (0, 1), (0, 0))))),
    "Conv2D grouped": lambda x: head(
        kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(8, 3, groups=2)(conv(x))))
    ),
}


def _attended(x):
    """As CBAM weighs positions, by the mean and the maximum of their channels."""
    seen = ops.concatenate([ops.mean(x, -1, keepdims=True), ops.max(x, -1, keepdims=True)], -1)
    return x * kl.Conv2D(1, 3, padding="same", activation="sigmoid")(seen)


class TestMoving:
    @pytest.mark.parametrize("kind", MOVING)
    def test_arrives(self, kind):
        arrives(IMAGE, MOVING[kind], width=0.5)

    def test_an_adapted_normalization(self):
        layer = kl.Normalization()
        layer.adapt(3 * noise(IMAGE) + 2)
        arrives(IMAGE, lambda x: head(conv(layer(x))))

    def test_a_table_behind_a_transposition_on_a_small_npu(self):
        model = built(IMAGE, lambda x: head(kl.ELU()(kl.Permute((2, 1, 3))(conv(x, None)))))
        exact = to_int8(udc_tf.compact(model), noise(IMAGE))
        NpuNetwork(nets.compile_in_process(exact.content, "ethos-u55-64"))

    def test_repeat_vector(self):
        arrives(VECTOR, lambda x: head(conv(kl.RepeatVector(7)(kl.Dense(6)(x)))), width=0.5)

    @pytest.mark.parametrize(
        ("layers", "why"),
        [
            (lambda x: 1.0 / conv(x), "a number divided by a tensor"),
            (lambda x: ops.rsqrt(conv(x)), "take LayerNormalization"),
            (lambda x: ops.mean(conv(x), axis=0), "over the batch"),
            (lambda x: ops.image.resize(conv(x), (12, 12), "nearest"), "take a multiple"),
            (lambda x: ops.matmul(conv(x), np.ones((6, 4))), "matrix product of the shapes"),
            (lambda x: kl.Add()([conv(x), np.ones((1, 8, 8, 6))]), "x . constant"),
            (lambda x: ops.maximum(conv(x), np.ones((8, 6))), "for each element"),
            (lambda x: conv(x)[:, ::2], "a slice with steps"),
            (lambda x: conv(x) * np.ones((8, 8, 6), "float32"), "one for each channel"),
            (lambda x: kl.LayerNormalization(1)(conv(x)), "take axis=-1"),
            (lambda x: kl.GroupNormalization(9)(kl.Conv2D(18, 1)(x)), "take up to 8 groups"),
            (
                lambda x: kl.EinsumDense("abcd,ce->abed", (8, 4, 3))(x),
                "take keras.ops.transpose and Dense",
            ),
        ],
    )
    def test_what_has_no_operator_is_refused(self, layers, why):
        with pytest.raises(ConversionError, match=why):
            to_int8(built(IMAGE, layers))


def keyword_network(inputs):
    x = kl.Conv1D(16, 5, padding="same", name="stem")(inputs)
    x = kl.ReLU()(kl.BatchNormalization()(x))
    x = kl.DepthwiseConv1D(5, padding="same", name="depthwise")(x)
    x = kl.Conv1D(12, 3, padding="causal", activation="gelu", name="causal")(x)
    x = kl.Conv1D(12, 3, groups=2, name="grouped")(x * 0.5)
    return kl.Dense(4, name="head")(kl.GlobalAveragePooling1D()(x))


class TestTraining:
    def test_sequences_are_searched_finetuned_and_arrive(self, tmp_path):
        space = udc_tf.SearchSpace(
            widths=(0.5, 1.0), bits=(2, 8), sparsities=(0.5, 1.0), kernels=(3, 5)
        )
        search = udc_tf.make_searchable(
            built((16, 3), keyword_network), space, udc_tf.Flash("6KiB")
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        search.compile(loss=loss)
        data, labels = noise(SEQUENCE, 64), np.arange(64) % 4
        search.fit(data, labels, batch_size=32, epochs=1, verbose=0)
        names = set(search.architecture().choices)
        assert {"width/stem", "kernel/stem", "kernel/depthwise", "bits/causal"} <= names
        assert "width/grouped" not in names
        found = search.architecture()
        found.save(tmp_path / "arch.json")
        tiny = udc_tf.Architecture.load(tmp_path / "arch.json").build()
        stages = udc_tf.Stages(epochs=1)
        udc_tf.finetune(tiny, (data, labels), stages=stages, loss=loss, batch_size=32, verbose=0)
        check_arrives(tiny, [data])
        # Ranges of the steps within an activation follow from those that training gave.
        exact, calibrated = to_int8(tiny), to_int8(tiny, data)
        codes = calibrated.quantize_inputs([data])
        ours, theirs = (tflm_check.run(model.content, codes)[0] for model in (exact, calibrated))
        assert np.corrcoef(np.ravel(ours), np.ravel(theirs))[0, 1] > 0.99

    def test_a_recurrent_layer_is_decided_about_finetuned_and_arrives(self):
        shape = (3, 4)
        model = built(shape, lambda x: kl.Dense(4, name="head")(kl.LSTM(6, name="memory")(x)))
        space = udc_tf.SearchSpace(widths=(0.5, 1.0), bits=(2, 8), sparsities=(0.5, 1.0))
        search = udc_tf.make_searchable(model, space, udc_tf.Flash("7KiB"))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        data, labels = noise(shape, 64), np.arange(64) % 4
        decided = set(search.architecture().choices)
        assert len([name for name in decided if name.startswith("width/memory")]) == 1
        for gate in ("input", "forget", "cell", "output"):
            kernels = f"memory_{gate}_kernel", f"memory_{gate}_recurrent"
            assert {f"{kind}/{k}" for kind in ("bits", "sparsity") for k in kernels} <= decided
        tiny = search.architecture().build()
        stages = udc_tf.Stages(epochs=(0, 0, 1))
        udc_tf.finetune(tiny, (data, labels), stages=stages, loss=loss, batch_size=64, verbose=0)
        operators = check_arrives(tiny, [data])
        assert operators.count("FULLY_CONNECTED") == 4 * 2 + 1

    def test_a_kernel_is_cut_from_the_middle(self):
        model = built(SEQUENCE, lambda x: kl.Conv1D(4, 5, padding="same", name="conv")(x))
        graph = trace(model)
        chosen = Configuration(layers={"conv": LayerChoice(bits=8, kernel_size=3)})
        compactor = Compactor(graph, ChannelGroups(graph), chosen)
        tiny = compactor.build()
        wide = model.get_layer("conv").kernel.numpy()
        carry_weights(compactor.layers, {"conv": {"kernel": wide, "bias": np.zeros(4)}})
        np.testing.assert_array_equal(tiny.get_layer("conv").kernel, wide[1:4])
