"""Which channels others can make up for."""

import keras
import numpy as np
from keras import layers as kl

import udc_tf
from udc_tf.search import spare_channels


def _factors(images, batches=8):
    """Of the widths of a layer made from two channels, and of one made from images."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 6, 1))
    narrow = kl.Conv2D(2, 3, padding="same", name="narrow")(inputs)
    wide = kl.Conv2D(16, 1, name="wide")(narrow)
    image = kl.Conv2D(16, 3, activation="relu", padding="same", name="image")(inputs)
    both = kl.Concatenate()([wide, image])
    read = kl.Conv2D(8, 3, name="reader")(both)
    outputs = kl.Dense(4, name="classes")(kl.GlobalAveragePooling2D()(read))
    space = udc_tf.SearchSpace(widths=(0.25, 0.5, 1.0))
    search = udc_tf.make_searchable(keras.Model(inputs, outputs), space, udc_tf.Flash(5_000))
    rows = search.rows
    likely = np.array([len(d.options) - 1 for d in search.problem.plan.decisions])
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(images, 6, 6, 1)).astype("float32") for _ in range(batches)]
    found = spare_channels.factors(search, likely, x)
    return {name: found[row] for name, row in rows.items()}


def test_few_channels_of_a_layer_that_is_made_from_less_do_no_harm():
    found = _factors(images=8)
    assert (found["width/wide"][:2] < 0.02).all() and found["width/wide"][2] == 1.0
    for name in ("width/image", "width/reader", "width/narrow"):
        assert (found[name] == 1.0).all()


def test_without_data_nothing_is_known():
    assert all((of == 1.0).all() for of in _factors(images=8, batches=0).values())


def test_few_images_do_not_explain_what_they_happen_to_share():
    rng = np.random.default_rng(0)
    fit, check = (np.cov(rng.normal(size=(12, 20)), rowvar=False) for _ in range(2))
    assert spare_channels.unexplained(fit, check, np.ones(20), 12) > 0.9
