"""`udc_tf.compact`: one setting for all layers, and what is said otherwise."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from tests.support import networks


def _kernels(tiny):
    return {layer.name: layer for layer in tiny.layers if hasattr(layer, "integer_kernel")}


def _residual():
    """Two tied convolutions, a depthwise one behind them, and a head that cannot be cut."""
    x = keras.Input((6, 6, 2))
    a = kl.BatchNormalization()(kl.Conv2D(8, 3, padding="same", name="a")(x))
    y = kl.Add()([a, kl.Conv2D(8, 3, padding="same", name="b")(a)])
    y = kl.DepthwiseConv2D(3, name="c")(y)
    return keras.Model(x, kl.Dense(3, name="head")(kl.Flatten()(y)))


class TestCompact:
    def test_is_the_model_itself_where_nothing_is_taken_away(self):
        model = networks.randomized(networks.separable())
        x = networks.images(model)
        tiny = udc_tf.compact(model, bits=32)
        np.testing.assert_allclose(tiny(x), model(x), atol=1e-5)

    def test_one_setting_for_all(self):
        model = _residual()
        tiny = udc_tf.compact(model, width=0.5, bits=4, nonzeros=0.25)
        found = _kernels(tiny)
        shapes = {name: tuple(layer.kernel.shape) for name, layer in found.items()}
        assert shapes == {
            "a": (3, 3, 2, 4),
            "b": (3, 3, 4, 4),
            "c": (3, 3, 4, 1),
            "head": (4 * 4 * 4, 3),
        }
        assert {layer.bits for layer in found.values()} == {4}
        for layer in found.values():
            assert layer.integer_kernel().nonzeros <= layer.target_nonzeros
            assert layer.target_nonzeros == round(0.25 * layer.kernel.numpy().size)
            assert layer.mask.numpy().sum() == layer.target_nonzeros
        # The first channels stay, with their weights, and the model is as it was.
        original = model.get_layer("a").kernel.numpy()
        np.testing.assert_array_equal(found["a"].kernel.numpy(), original[..., :4])
        assert found["a"].kernel is found["a"].theta

    def test_layers_of_their_own(self):
        overrides = {"*": {"bits": 2}, "head": {"bits": 8, "nonzeros": 1.0}}
        found = _kernels(udc_tf.compact(_residual(), nonzeros=0.5, layers=overrides))
        assert [layer.bits for layer in found.values()] == [2, 2, 2, 8]
        assert [layer.nonzeros for layer in found.values()] == [0.5, 0.5, 0.5, 1.0]

    @pytest.mark.parametrize(("width", "rates"), [(1.0, [0.6, 0.2]), (0.5, [0.2, 0.0])])
    def test_narrow_layers_lose_as_many_channels_less_to_dropout(self, width, rates):
        x = keras.Input((6, 6, 2))
        y = kl.SpatialDropout2D(0.6, name="first")(kl.Conv2D(8, 3, name="conv")(x))
        y = kl.Dropout(0.2, name="second")(kl.GlobalAveragePooling2D()(y))
        tiny = udc_tf.compact(keras.Model(x, kl.Dense(3)(y)), width=width)
        found = [tiny.get_layer(name).rate for name in ("first", "second")]
        np.testing.assert_allclose(found, rates)

    def test_saves_and_loads(self, tmp_path):
        tiny = udc_tf.compact(_residual(), width=0.5, bits=4)
        tiny.save(tmp_path / "tiny.keras")
        x = networks.images(tiny)
        np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "tiny.keras")(x), tiny(x))

    @pytest.mark.parametrize(
        "settings,message",
        [
            ({"bits": 9}, "`bits` must be 1 to 8, or 32. Received: 9"),
            ({"nonzeros": 0.0}, r"`nonzeros` must be a fraction in \(0, 1\]. Received: 0.0"),
            ({"width": 1.5}, "`width` must be .* Received: 1.5"),
            ({"layers": {"stem": {"bits": 4}}}, "are a, b, c, head. Received: 'stem'"),
            ({"layers": {"a": {"sparsity": 4}}}, "Received for 'a': sparsity"),
            ({"layers": {"a": {"bits": 0}}}, "Received: 0"),
            ({"layers": {"head": {"width": 0.5}}}, "output of the model. Received: 'head'"),
            ({"layers": {"c": {"width": 0.5}}}, "those of its input. Received: 'c'"),
            ({"layers": {"b": {"width": 0.5}}}, r"tied must have the same width. Received: {'a'"),
        ],
    )
    def test_what_cannot_be_is_refused(self, settings, message):
        with pytest.raises(ValueError, match=message):
            udc_tf.compact(_residual(), **settings)

    def test_nothing_to_make_compact(self):
        model = keras.Sequential([keras.Input((4,)), kl.ReLU(name="relu")])
        with pytest.raises(ValueError, match=r"no convolution.*Received: .*relu"):
            udc_tf.compact(model)


def test_a_layer_has_no_kernel_before_it_is_built():
    layer = udc_tf.UDCDense(3, name="head")
    with pytest.raises(AttributeError, match="`head` has no kernel before it is built"):
        _ = layer.kernel
    layer.build((None, 4))
    assert layer.kernel is layer.theta and layer.kernel.name == "kernel"
