"""What `make_searchable` promises: the same function, whole and slimmed."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers as kl

import udc_tf
from tests.support import networks
from udc_tf.search.extract import architecture_of

_TENTHS = tuple(n / 10 for n in range(1, 11))
_UNQUANTIZED = udc_tf.SearchSpace(widths=_TENTHS, sparsities=(0.01, *_TENTHS))
_ROOMY = udc_tf.Flash("64MiB")
_NO_DEVICE = udc_tf.PaperSize("64MiB")


def _mobilenet_v2():
    return keras.applications.MobileNetV2((32, 32, 3), weights=None, classes=10)


def _densenet121():
    """Its first two blocks with what joins them; the other two are of the same kind, and larger."""
    whole = keras.applications.DenseNet121(input_shape=(32, 32, 3), weights=None, classes=10)
    x = kl.GlobalAveragePooling2D()(whole.get_layer("pool3_pool").output)
    return keras.Model(whole.input, kl.Dense(10)(x))


def _resnet8():
    return networks.resnet(32, (16, 16, 32, 64))


_NETWORKS = {
    "resnet8": _resnet8,
    "mobilenet_v2": _mobilenet_v2,
    "densenet121": _densenet121,
    "separable": networks.separable,
    "u_net": networks.u_net,
    "autoencoder": networks.autoencoder,
}


def _close(actual, expected, tolerance=1e-4):
    actual, expected = np.asarray(actual), np.asarray(expected)
    scale = max(np.abs(expected).max(), 1e-6)
    np.testing.assert_allclose(actual / scale, expected / scale, atol=tolerance)


def _set_choice(search, chosen):
    """Makes the given options the most likely by far and ranks the weights for them."""
    one_hot = np.eye(search.state.options, dtype="float32")[chosen]
    search.state.logits.assign(40.0 * one_hot)
    search.refresh_masks()


def _random_choice(search, rng):
    return np.asarray([rng.integers(len(d.options)) for d in search.problem.plan.decisions])


class TestLargestOptions:
    @pytest.mark.parametrize("name", _NETWORKS)
    def test_equals_the_original(self, name):
        model = networks.randomized(_NETWORKS[name]())
        search = udc_tf.make_searchable(model, _UNQUANTIZED, _ROOMY)
        x = networks.images(model)
        _close(search(x), model(x))

    def test_leaves_the_original_alone(self):
        model = networks.small_cnn()
        before = [w.copy() for w in model.get_weights()]
        udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
        for old, new in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)
        assert model.layers[1].output is not None  # one call only, so still defined


class TestSlimming:
    @pytest.mark.parametrize("name", _NETWORKS)
    def test_masked_equals_small(self, name):
        model = networks.randomized(_NETWORKS[name]())
        search = udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
        rng = np.random.default_rng(len(name))
        x = networks.images(model)
        for _ in range(1 if len(model.layers) > 100 else 3):
            chosen = _random_choice(search, rng)
            _set_choice(search, chosen)
            small = architecture_of(search, chosen).build()
            _close(small(x), search(x))

    @settings(max_examples=6, deadline=None)
    @given(seed=st.integers(0, 2**31))
    def test_masked_equals_small_for_any_choice(self, seed):
        search, x = self._case()
        chosen = _random_choice(search, np.random.default_rng(seed))
        _set_choice(search, chosen)
        _close(architecture_of(search, chosen).build()(x), search(x))

    _cached = None

    @classmethod
    def _case(cls):
        if cls._cached is None:
            model = networks.randomized(networks.u_net())
            search = udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
            cls._cached = search, networks.images(model)
        return cls._cached

    def test_predicted_weights_are_the_built_ones(self):
        model = networks.resnet()
        search = udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
        arch = architecture_of(search, _random_choice(search, np.random.default_rng(3)))
        small = arch.build()
        for row in arch.layers:
            assert small.get_layer(row.name).theta.shape.num_elements() == row.weights


class TestGraphs:
    def test_nested_models_and_shared_layers(self):
        block = keras.Sequential([keras.Input((8, 8, 4)), kl.Conv2D(4, 3, padding="same")])
        shared = kl.Conv2D(4, 1, name="shared")
        inputs = keras.Input((8, 8, 4))
        x = shared(block(shared(inputs)))
        model = keras.Model(inputs, kl.Conv2D(2, 1)(x + inputs * 0.5))
        search = udc_tf.make_searchable(model, _UNQUANTIZED, _NO_DEVICE)
        x = networks.images(model)
        _close(search(x), model(x))
        chosen = _random_choice(search, np.random.default_rng(0))
        _set_choice(search, chosen)
        _close(architecture_of(search, chosen).build()(x), search(x))

    def test_sequential_and_pretrained_weights(self):
        model = keras.Sequential([keras.Input((6,)), kl.Dense(5, "relu"), kl.Dense(3)])
        search = udc_tf.make_searchable(model, _UNQUANTIZED, _ROOMY)
        x = networks.images(model)
        _close(search(x), model(x))

    def test_squeeze_and_excite(self):
        inputs = keras.Input((8, 8, 3))
        x = kl.Conv2D(8, 3, padding="same")(inputs)
        gate = kl.GlobalAveragePooling2D(keepdims=True)(x)
        gate = kl.Conv2D(8, 1, activation="sigmoid")(kl.Conv2D(2, 1, activation="relu")(gate))
        x = kl.Multiply()([x, gate])
        model = keras.Model(inputs, kl.Dense(2)(kl.Reshape((512,))(x)))
        search = udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
        x = networks.images(model)
        for seed in range(3):
            chosen = _random_choice(search, np.random.default_rng(seed))
            _set_choice(search, chosen)
            _close(architecture_of(search, chosen).build()(x), search(x))

    def test_several_inputs_and_outputs(self):
        a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
        x = kl.Concatenate()([kl.Dense(6, "relu")(a), kl.Dense(6, "tanh")(b)])
        model = keras.Model({"a": a, "b": b}, {"p": kl.Dense(2)(x), "q": kl.Dense(3)(x)})
        search = udc_tf.make_searchable(model, _UNQUANTIZED, _ROOMY)
        rng = np.random.default_rng(0)
        x = {k: rng.normal(size=(3, 4)).astype("float32") for k in "ab"}
        expected, actual = model(x), search(x)
        for key in expected:
            _close(actual[key], expected[key])


class TestChoice:
    def _model(self):
        inputs = keras.Input((8, 8, 4))
        wide = keras.Sequential([kl.Conv2D(6, 5, padding="same"), kl.Conv2D(4, 1)])
        branches = [kl.Conv2D(4, 3, padding="same"), wide, kl.Identity()]
        x = udc_tf.Choice(branches, name="block")(kl.Conv2D(4, 1)(inputs))
        return keras.Model(inputs, kl.Conv2D(2, 1)(kl.ReLU()(x)))

    def test_every_branch_can_be_built(self):
        model = self._model()
        search = udc_tf.make_searchable(model, "ethos_u55", _ROOMY)
        names = [d.name for d in search.problem.plan.decisions]
        x = networks.images(model)
        sizes = []
        for branch in range(3):
            chosen = _random_choice(search, np.random.default_rng(branch))
            chosen[names.index("choice/block")] = branch
            _set_choice(search, chosen)
            arch = architecture_of(search, chosen)
            _close(arch.build()(x), search(x))
            sizes.append(sum(row.name.startswith("block/") for row in arch.layers))
        assert sizes == [1, 2, 0]

    def test_plain_model_is_the_first_branch(self):
        model = self._model()
        search = udc_tf.make_searchable(
            model,
            udc_tf.SearchSpace(widths=(1.0,), bits=None, kernels=(1, 3, 5), operators=False),
            _ROOMY,
        )
        x = networks.images(model)
        _close(search(x), model(x))


class TestKernelSizes:
    def test_smaller_kernels_are_cut_from_the_middle(self):
        inputs = keras.Input((9, 8, 3))
        x = kl.Conv2D(4, 5, strides=2, padding="same", activation="relu")(inputs)
        x = kl.DepthwiseConv2D(5, padding="same", activation="relu")(x)
        model = keras.Model(inputs, kl.Conv2D(2, 3, padding="same", dilation_rate=2)(x))
        space = udc_tf.SearchSpace(kernels=(1, 3, 5), widths=(0.5, 1.0))
        search = udc_tf.make_searchable(model, space, _ROOMY)
        x = networks.images(model)
        for seed in range(4):
            chosen = _random_choice(search, np.random.default_rng(seed))
            _set_choice(search, chosen)
            _close(architecture_of(search, chosen).build()(x), search(x))

    def test_what_would_shift_is_left_out(self):
        inputs = keras.Input((8, 8, 3))
        x = kl.Conv2D(4, 3, strides=2, padding="same", name="even")(inputs)
        model = keras.Model(inputs, kl.Conv2D(2, 3, padding="same")(x))
        search = udc_tf.make_searchable(model, udc_tf.SearchSpace(kernels=(1, 3)), _ROOMY)
        assert "kernel of even" in search.problem.plan.left_out
        assert [d.subject for d in search.problem.plan.decisions] == [model.layers[-1].name]


class TestSubclassedModels:
    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            options = {"bits": (2, 8), "sparsities": (0.2, 1.0)}
            self.a = udc_tf.UDCConv2D(
                8, 3, activation="relu", widths=(0.5, 1.0), width_group="a", name="a", **options
            )
            self.b = udc_tf.UDCDepthwiseConv2D(3, input_group="a", name="b", **options)
            self.flatten = kl.Flatten()
            self.head = udc_tf.UDCDense(4, input_group="a", name="head", **options)

        def call(self, x):
            return self.head(self.flatten(self.b(self.a(x))))

    def test_search_with_named_groups(self):
        network = self.Network()
        x, y = networks.blobs(64)
        network(x[:1])
        search = udc_tf.make_searchable(network, target=udc_tf.Flash("3KiB"))
        search.compile(loss=networks.cross_entropy())
        search.fit(x, y, epochs=1, verbose=0)
        arch = search.architecture()
        assert arch.flash_bytes <= 3 * 1024
        assert set(arch.choices) >= {"width/a", "bits/b", "sparsity/head"}

    def test_unknown_group(self):
        class Wrong(keras.Model):
            def __init__(self):
                super().__init__()
                self.a = udc_tf.UDCDense(4, bits=(1, 8), input_group="nowhere")

            def call(self, x):
                return self.a(x)

        network = Wrong()
        network(np.zeros((1, 3), "float32"))
        with pytest.raises(ValueError, match="nowhere"):
            udc_tf.make_searchable(network, target=_ROOMY)

    def test_a_depthwise_layer_that_reads_two_groups(self):
        class Wrong(keras.Model):
            def __init__(self):
                super().__init__()
                self.a = udc_tf.UDCDepthwiseConv2D(3, bits=(1, 8), input_group=["one", "two"])

            def call(self, x):
                return self.a(x)

        network = Wrong()
        network(np.zeros((1, 4, 4, 3), "float32"))
        with pytest.raises(ValueError, match=r"reads one group. Received: \['one', 'two'\]"):
            udc_tf.make_searchable(network, target=_ROOMY)


class TestBadInput:
    def test_budget_below_the_smallest(self):
        with pytest.raises(ValueError, match=r"reach from [\d,]+ bytes .* to [\d,]+ bytes"):
            udc_tf.make_searchable(networks.small_cnn(), "ethos_u55", udc_tf.Flash("1KiB"))

    def test_targets_that_exclude_each_other_or_are_missing(self):
        with pytest.raises(ValueError, match="target"):
            udc_tf.make_searchable(networks.small_cnn(), "ethos_u55")

    def test_nothing_to_search(self):
        inputs = keras.Input((8, 8, 3))
        model = keras.Model(inputs, kl.GlobalAveragePooling2D()(inputs))
        with pytest.raises(ValueError, match="Nothing can be searched"):
            udc_tf.make_searchable(model, "ethos_u55", _ROOMY)

    def test_float_weights_on_the_npu(self):
        with pytest.raises(ValueError, match="32-bit"):
            udc_tf.make_searchable(networks.small_cnn(), "paper", _ROOMY)

    def test_pattern_that_matches_nothing(self):
        space = udc_tf.SearchSpace(bits=(4, 8), frozen=("convv*",))
        with pytest.raises(ValueError, match="convv"):
            udc_tf.make_searchable(networks.small_cnn(), space, _ROOMY)

    def test_subclassed_model_of_plain_layers(self):
        class Plain(keras.Model):
            def call(self, x):
                return x

        with pytest.raises(ValueError, match="UDC layers"):
            udc_tf.make_searchable(Plain(), "ethos_u55", _ROOMY)

    def test_unknown_layer_is_frozen_reported_and_priced(self):
        inputs = keras.Input((8, 8, 3))
        x = kl.Conv2D(8, 3, name="before")(inputs)
        x = kl.LayerNormalization(1, name="odd")(x)
        model = keras.Model(inputs, kl.Conv2D(4, 1, name="after")(x))
        search = udc_tf.make_searchable(model, "ethos_u55", _NO_DEVICE)
        left_out = search.problem.plan.left_out
        assert "LayerNormalization" in left_out["odd"] and "12 weights" in left_out["odd"]
        assert "width of before" in left_out
        assert sum(part.constants for part in search.problem.plan.fixed) == 12
