"""Networks are traced once for all samples, and compute what they do sample by sample."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import tree

import udc_tf
from tests.support import networks
from udc_tf.search import passes, samples


def _searchable(**of_relu):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((6, 6, 2))
    x = keras.layers.Conv2D(4, 3, name="conv")(x)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Flatten()(keras.layers.ReLU(**of_relu)(x))
    outputs = keras.layers.Dense(3, name="head")(x)
    settings = udc_tf.SearchSettings(samples=3, evidence=0.0)
    model = keras.Model(inputs, outputs)
    search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Macs(500), settings)
    search.compile("sgd", networks.cross_entropy())
    return search


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    return rng.normal(size=(7, 6, 6, 2)).astype("float32"), np.arange(7) % 3


def _counting(search, monkeypatch):
    """Calls of the convolution; each is a trace of the network."""
    calls, (layer, _) = [], search.kernel_layers
    apply = layer.apply_kernel
    monkeypatch.setattr(layer, "apply_kernel", lambda *a: (calls.append(1), apply(*a))[1])
    return calls


def _gradients(batch, monkeypatch, once):
    """How often the network is traced for a step, and what the step's task says."""
    search = _searchable()
    if not once:
        monkeypatch.setattr(samples, "traced_once", lambda function, network: function)
    calls = _counting(search, monkeypatch)
    search.refresh_masks()
    z = tf.nn.softmax(tf.random.stateless_normal([3, *search.state.logits.shape], [1, 2]))
    z = tf.where(search.state.valid, z, 0.0)
    examples = tuple(tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in batch)
    step = tf.function(
        functools.partial(passes.task_in_passes, search),
        input_signature=(tf.TensorSpec(z.shape), examples),
        autograph=False,
    )
    found = tree.flatten(step(z, tuple(map(tf.constant, batch))))
    return len(calls), found, search.network.variables


def test_once_for_all_samples(batch, monkeypatch):
    calls, *together = _gradients(batch, monkeypatch, once=True)
    assert calls == 1
    calls, *apart = _gradients(batch, monkeypatch, once=False)
    assert calls == 3
    for mine, theirs in zip(tree.flatten(together), tree.flatten(apart), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_losses_that_layers_leave_behind_count(batch, monkeypatch):
    search = _searchable(activity_regularizer=keras.regularizers.L2(1.0))
    calls = _counting(search, monkeypatch)
    loss = search.fit(*batch, batch_size=7, epochs=1, verbose=0).history["loss"][0]
    plain = _searchable().fit(*batch, batch_size=7, epochs=1, verbose=0).history["loss"][0]
    assert len(calls) == 3 and loss > plain


def test_outside_of_graphs_it_is_the_function_itself():
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    function = samples.traced_once(network, network)
    assert function is network
    with tf.Graph().as_default():
        assert samples.traced_once(network, network) is not network
