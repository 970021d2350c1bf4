"""The zoo's networks: what they are, and that the search takes them."""

import keras
import numpy as np
import pytest

import udc_tf
from udc_tf import models
from udc_tf.models.blocks import whole_channels

_SMALL = {
    "autoencoder": {"input_shape": (32,), "hidden": 16, "layers_a_side": 2},
    "ds_cnn": {"input_shape": (24, 10, 1), "filters": 16},
    "fsrcnn": {"input_shape": (8, 8, 1), "features": 12, "mapping": 6},
    "mobilenet_v1": {"input_shape": (32, 32, 3)},
    "mobilenet_v2": {"input_shape": (32, 32, 3), "classes": 4, "alpha": 0.35},
    "mobilenet_v2_wide": {"input_shape": (32, 32, 3), "classes": 4},
    "resnet8": {"input_shape": (16, 16, 3), "filters": (4, 8, 8)},
    "small_cnn": {"filters": (4, 8)},
    "temporal_cnn": {"filters": (8, 8)},
    "temporal_lstm": {"filters": (8, 8, 8), "units": 4},
    "wide_resnet": {"input_shape": (16, 16, 3), "blocks": 1, "multiplier": 1},
}


class TestNetworks:
    def test_all_are_listed_here(self):
        assert sorted(_SMALL) == sorted(models.__all__)

    @pytest.mark.parametrize("name", sorted(_SMALL))
    def test_gives_finite_outputs_and_survives_serialization(self, name):
        model = getattr(models, name)(**_SMALL[name])
        x = np.random.default_rng(0).normal(size=(2, *model.input_shape[1:])).astype("float32")
        y = np.asarray(model(x))
        assert np.isfinite(y).all()
        again = model.from_config(model.get_config())
        again.set_weights(model.get_weights())
        np.testing.assert_allclose(again(x), y, atol=1e-5)

    @pytest.mark.parametrize("name", sorted(set(_SMALL) - {"mobilenet_v2_wide"}))
    def test_every_kernel_is_searched(self, name):
        model = getattr(models, name)(**_SMALL[name])
        search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("10MB"))
        plan = search.problem.plan
        searched = {d.subject for d in plan.decisions if d.kind == "bits"}
        assert searched == {layer.name for layer in plan.layers}
        # Only what an output fixes is left alone, and never a whole layer.
        assert all(k.startswith(("width of ", "kernel of ")) for k in plan.left_out)

    def test_weights_are_those_of_the_originals(self):
        def kernels(model):
            names = ("kernel", "depthwise_kernel")
            return sum(int(np.prod(w.shape)) for w in model.weights if w.name in names)

        # As counted from MLPerf Tiny's published int8 files.
        assert kernels(models.resnet8()) == 77_360
        assert kernels(models.ds_cnn()) == 22_016
        # As Keras counts its own.
        assert models.mobilenet_v2().count_params() == 3_538_984

    def test_softmax_on_request(self):
        y = models.small_cnn(softmax=True, filters=(4, 4))(np.ones((2, 8, 8, 1)))
        np.testing.assert_allclose(np.sum(y, -1), 1, atol=1e-5)

    def test_wide_mobilenet_is_wider_and_looks_farther(self):
        wide, plain = models.mobilenet_v2_wide(), models.mobilenet_v2()
        assert wide.get_layer("block2_depthwise").kernel_size == (5, 5)
        ratio = wide.get_layer("last").filters / plain.get_layer("last").filters
        assert ratio == 1.5

    def test_operators_are_choices(self):
        model = models.mobilenet_v2((32, 32, 3), 4, alpha=0.35, operators=True)
        choices = [layer for layer in model.layers if isinstance(layer, udc_tf.Choice)]
        assert len(choices) == 10
        plain = models.mobilenet_v2((32, 32, 3), 4, alpha=0.35)
        assert model.output_shape == plain.output_shape

    def test_super_resolution_begins_near_the_enlarged_input(self):
        model = models.fsrcnn((8, 8, 1))
        enlarged = model.get_layer("base2").output
        base = keras.Model(model.input, enlarged)(np.ones((1, 8, 8, 1)))
        assert base.shape == (1, 32, 32, 1)
        np.testing.assert_array_equal(base, 1)


class TestWholeChannels:
    @pytest.mark.parametrize("multiplier", [0.1, 0.25, 0.35, 0.5, 1.0, 1.5])
    @pytest.mark.parametrize("channels", [16, 24, 32, 96, 320, 1280])
    def test_multiples_of_eight_never_far_below(self, channels, multiplier):
        whole = whole_channels(channels, multiplier)
        assert whole % 8 == 0
        assert whole >= 0.9 * channels * multiplier
