import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from udc_tf.training import batch_norm


def _step(layer, x, upstream, training=True):
    """Outputs, gradients and moving statistics of one training step, in a graph of its own."""

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=training)
            loss = tf.reduce_sum(y * upstream)
        variables = [v.value for v in layer.trainable_variables]
        return y, *tape.gradient(loss, [x, *variables])

    results = [t.numpy() for t in step()]
    return [*results, *(v.numpy() for v in layer.non_trainable_variables)]


def _layer(**config):
    layer = keras.layers.BatchNormalization(name="bn", momentum=0.9, **config)
    layer.build((None, 5, 4, 3))
    rng = np.random.default_rng(1)
    for variable in layer.weights:
        variable.assign(rng.uniform(0.5, 1.5, variable.shape))
    return layer


@pytest.mark.parametrize("config", [{}, {"scale": False}, {"center": False, "axis": 3}])
def test_the_fused_operation_computes_what_keras_does(config):
    rng = np.random.default_rng(0)
    x, upstream = (tf.constant(rng.normal(size=(6, 5, 4, 3)).astype("float32")) for _ in range(2))
    wanted, layer = _step(_layer(**config), x, upstream), _layer(**config)
    inputs = keras.Input((5, 4, 3))
    with batch_norm.fused(keras.Model(inputs, layer(inputs))):
        assert "FusedBatchNormV3" in _operations(layer, x)
        layer.set_weights(_layer(**config).get_weights())
        found = _step(layer, x, upstream)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_statistics_of_one_pass_are_those_of_its_calls():
    inputs = keras.Input((5, 4, 3))
    shared, other = (keras.layers.BatchNormalization(momentum=m) for m in (0.9, 0.5))
    model = keras.Model(inputs, shared(other(shared(inputs))))
    start, found = model.get_weights(), []
    x = tf.constant(np.random.default_rng(0).normal(1.0, 2.0, (6, 5, 4, 3)).astype("float32"))
    with batch_norm.fused(model):
        for together in (contextlib.nullcontext, batch_norm.one_pass):
            model.set_weights(start)
            with together():
                model(x, training=True)
            found.append(model.get_weights())
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert np.all(np.abs(shared.moving_mean) > 0.05)


@pytest.mark.parametrize("twice", [False, True])
def test_passes_are_followed_in_turn(twice):
    inputs = keras.Input((5, 4, 3))
    shared, other = (keras.layers.BatchNormalization(momentum=m) for m in (0.9, 0.5))
    outputs = other(shared(inputs))
    model = keras.Model(inputs, shared(outputs) if twice else outputs)
    rng = np.random.default_rng(0)
    batches = [rng.normal(i, 2.0, (6, 5, 4, 3)).astype("float32") for i in range(3)]
    start, found = model.get_weights(), []
    with batch_norm.fused(model):
        for x in batches:
            with batch_norm.one_pass():
                model(x, training=True)
        wanted = model.get_weights()
        model.set_weights(start)
        for x in batches:
            with batch_norm.seeing() as seen:
                model(x, training=True)
            found.append(seen.found)
    assert all(map(np.array_equal, model.get_weights(), start))
    batch_norm.follow(seen.layers, found)
    for mine, theirs in zip(model.get_weights(), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def _operations(layer, x, training=True):
    function = tf.function(lambda: layer(x, training=training)).get_concrete_function()
    return {operation.type for operation in function.graph.get_operations()}


def test_other_calls_and_layers_are_left_to_keras():
    inputs, vectors = keras.Input((5, 4, 3)), keras.Input((3,))
    image, frozen, flat, strange = (keras.layers.BatchNormalization() for _ in range(4))
    strange.epsilon = 1e-6  # smaller than GPUs take
    frozen.trainable = False
    outputs = [strange(frozen(image(inputs))), flat(vectors)]
    x = tf.ones((2, 5, 4, 3))
    with batch_norm.fused(keras.Model([inputs, vectors], outputs)):
        assert "FusedBatchNormV3" in _operations(image, x)
        assert "FusedBatchNormV3" not in _operations(image, x, training=False)
        assert "FusedBatchNormV3" not in _operations(frozen, x)
        assert "FusedBatchNormV3" not in _operations(strange, x)
        assert "FusedBatchNormV3" not in _operations(flat, tf.ones((2, 3)))
    assert "FusedBatchNormV3" not in _operations(image, x)
