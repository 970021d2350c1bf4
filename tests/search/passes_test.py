"""Samples in passes give what all of them together do."""

import keras
import numpy as np
import pytest

import udc_tf
from tests.support import networks

_X, _Y = networks.blobs(20)


def _searched(samples_per_pass, loss=None, **compile_arguments):
    keras.utils.clear_session()  # the names of layers, too, seed what is drawn
    keras.utils.set_random_seed(0)
    settings = udc_tf.SearchSettings(
        samples=4, samples_per_pass=samples_per_pass, warmup=0.0, certainty=0.0, evidence=0.0
    )
    model, target = networks.small_cnn(), udc_tf.Flash(2900)
    search = udc_tf.make_searchable(model, "ethos_u55", target, settings)
    search.compile(loss=loss or networks.cross_entropy(), metrics=["accuracy"], **compile_arguments)
    # The last batch has fewer examples than the step has samples, but none is left without.
    history = search.fit(_X, _Y, batch_size=16, epochs=1, verbose=0).history
    return search, history


def test_passes_train_as_one():
    # Adam would make whole steps of what is noise in a gradient of zero.
    (one, whole), (other, passes) = (
        _searched(n, decision_optimizer=keras.optimizers.SGD(0.1)) for n in (None, 2)
    )
    for mine, theirs in zip(other.variables, one.variables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    for name in ("loss", "accuracy", "size_loss"):
        np.testing.assert_allclose(passes[name], whole[name], rtol=1e-4)


def test_losses_must_be_averages():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    with pytest.raises(ValueError, match=r"must be averaged.*Received: .* reduction='sum'"):
        _searched(2, loss)


@pytest.mark.parametrize("wrong", [3, 0, 1.5])
def test_passes_must_be_of_one_length(wrong):
    with pytest.raises(ValueError, match=r"`samples_per_pass` must be a divisor of `samples`, 4"):
        udc_tf.SearchSettings(samples=4, samples_per_pass=wrong)
