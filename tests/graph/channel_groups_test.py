"""Channel groups of real networks, and what freezes them."""

import keras
import pytest
from keras import layers as kl

from tests.support import networks
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.trace import trace


def _free(model):
    return [g for g in ChannelGroups(trace(model)).groups if g.frozen is None]


class TestChannelGroups:
    @pytest.mark.parametrize(
        "make, groups",
        [
            (lambda: networks.resnet(32, (16, 16, 32, 64)), 6),
            (lambda: keras.applications.MobileNetV2((32, 32, 3), weights=None), 25),
            (lambda: keras.applications.DenseNet121(input_shape=(32, 32, 3), weights=None), 120),
        ],
        ids=["resnet8", "mobilenet_v2", "densenet121"],
    )
    def test_free_groups(self, make, groups):
        assert len(_free(make())) == groups

    def _reason(self, build):
        inputs = keras.Input((8, 8, 3))
        outputs = build(kl.Conv2D(4, 3, padding="same", name="a")(inputs))
        groups = ChannelGroups(trace(keras.Model(inputs, outputs))).groups
        return next(g.frozen for g in groups if g.name == "a")

    def test_a_layer_called_twice_reads_channels_that_are_cut_alike(self):
        inputs = keras.Input((8, 8, 4))
        shared = kl.Conv2D(4, 3, padding="same", name="shared")
        on_its_own = keras.Model(inputs, kl.Conv2D(2, 1)(shared(shared(inputs))))
        assert not _free(on_its_own)  # the model's inputs are as wide as they are

        left, right = (kl.Conv2D(6, 1, name=name)(inputs) for name in ("left", "right"))
        norm, relu = kl.BatchNormalization(), kl.ReLU()
        joined = kl.Concatenate()([relu(norm(left)), relu(norm(right))])
        assert len(_free(keras.Model(inputs, kl.Conv2D(2, 1)(joined)))) == 1
        apart = kl.Concatenate()([relu(left), relu(right)])  # nothing of a ReLU is cut
        assert len(_free(keras.Model(inputs, kl.Conv2D(2, 1)(apart)))) == 2

    def test_what_freezes(self):
        def head(x):
            return kl.Conv2D(2, 1)(x)

        assert self._reason(head) is None
        assert "output of the model" in self._reason(lambda x: x)
        assert "LayerNormalization" in self._reason(lambda x: head(kl.LayerNormalization(1)(x)))
        assert "as a whole" in self._reason(lambda x: head(kl.LayerNormalization()(x)))
        assert "Softmax" in self._reason(lambda x: head(kl.Softmax()(x)))
        assert "as a whole" in self._reason(lambda x: head(kl.Activation("softmax")(x)))
        assert "as a whole" in self._reason(lambda x: head(kl.Conv2D(4, 3, groups=2)(x)))
        assert "as a whole" in self._reason(lambda x: kl.Dense(2)(kl.Reshape((64, 2, 2))(x)))

    def test_joined_with_the_input(self):
        inputs = keras.Input((8, 8, 4))
        x = kl.Add()([kl.Conv2D(4, 3, padding="same", name="a")(inputs), inputs])
        groups = ChannelGroups(trace(keras.Model(inputs, kl.Conv2D(2, 1)(x)))).groups
        assert "cannot be cut alike" in groups[0].frozen

    def test_concatenation_added_to_one_convolution(self):
        inputs = keras.Input((8, 8, 3))
        parts = kl.Concatenate()([kl.Conv2D(2, 1)(inputs), kl.Conv2D(2, 1)(inputs)])
        x = kl.Add()([parts, kl.Conv2D(4, 1)(inputs)])
        groups = ChannelGroups(trace(keras.Model(inputs, kl.Conv2D(2, 1)(x)))).groups
        assert all(g.frozen for g in groups)
