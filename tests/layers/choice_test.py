"""`Choice` as a Keras layer; what the search makes of it is in tests/search/make_test.py."""

import keras
import pytest
from keras import layers as kl

import udc_tf
from tests.support.layers import run_layer_test


def test_as_keras_layer(tmp_path):
    keras.utils.set_random_seed(0)
    wide = keras.Sequential([keras.Input((8, 8, 4)), kl.Conv2D(6, 5, padding="same"), kl.Dense(4)])
    layer = udc_tf.Choice([wide, kl.Identity(), kl.MaxPooling2D(1)], name="block")
    run_layer_test(layer, (8, 8, 4), (8, 8, 4), tmp_path, trainable=4)


def test_a_branch_may_have_options_of_its_own():
    branches = [udc_tf.UDCConv2D(4, 3, padding="same", bits=(2, 4)), kl.Identity()]
    inputs = keras.Input((8, 8, 4))
    model = keras.Model(inputs, udc_tf.Choice(branches, name="block")(inputs))
    search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("64KiB"))
    decided = {d.name: d.options for d in search.problem.plan.decisions}
    assert "choice/block" in decided and (2, 4) in decided.values()


def test_one_branch_is_no_choice():
    with pytest.raises(ValueError, match=r"at least two branches. Received: \["):
        udc_tf.Choice([kl.Identity()])


def test_branches_must_agree():
    with pytest.raises(ValueError, match=r"same output shape.*Received: \[\(None, 6, 6, 4\), "):
        udc_tf.Choice([kl.Conv2D(4, 3), kl.Identity()])(keras.Input((8, 8, 4)))
