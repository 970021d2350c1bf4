"""Outputs of the whole network: nearer to the original's, or the network as it was."""

import time

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from tests.support import networks
from udc_tf.compress.compiled_trials import Trials
from udc_tf.compress.compress_settings import CompressSettings
from udc_tf.compress.compressor import Compressor, _Fitted
from udc_tf.compress.integer_program import Choice
from udc_tf.compress.output_divergence import Divergence
from udc_tf.compress.output_matching import _mixed, _Moved, give_back, match_outputs, steps_for
from udc_tf.export.trial_compile import CompiledSizes
from udc_tf.layers.inventory import kernel_layers
from udc_tf.search.make import problem_of


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 2), name="image")
    x = kl.Conv2D(12, 3, use_bias=False, name="conv")(inputs)
    x = kl.ReLU()(kl.BatchNormalization()(x))
    x = kl.DepthwiseConv2D(3, activation="relu", name="depthwise")(x)
    x = kl.Dense(4, activation="softmax", name="head")(kl.GlobalAveragePooling2D()(x))
    return networks.randomized(keras.Model(inputs, x))


@pytest.fixture(scope="module")
def original(model):
    return udc_tf.compact(model, bits=32)


def _smooth(count, seed=1):
    """Images whose channels differ from each other and from image to image."""
    x = networks.normal(8, 8, 2, count=count, seed=seed)
    return (x + 2 * x.mean(axis=(1, 2), keepdims=True) * 8).astype("float32")


@pytest.fixture(scope="module")
def examples():
    return _smooth(256)


def _codes(network):
    return [layer.integer_kernel().codes for layer in kernel_layers(network)]


def _outputs(network, x):
    return [network(x, training=False).numpy()]


@pytest.mark.parametrize("codes", [True, False])
def test_unseen_examples_come_nearer(model, original, examples, codes):
    tiny, divergence = udc_tf.compact(model, bits=2), Divergence(model)
    unseen = _smooth(64, seed=7)
    wanted = _outputs(original, unseen)
    before, integers = divergence.between(wanted, _outputs(tiny, unseen)), _codes(tiny)
    masks = [layer.mask.numpy() for layer in kernel_layers(tiny)]
    assert match_outputs(tiny, original, [examples], divergence, steps=80, codes=codes)
    assert divergence.between(wanted, _outputs(tiny, unseen)) < 0.7 * before
    same = [np.array_equal(*pair) for pair in zip(integers, _codes(tiny), strict=True)]
    assert all(same) != codes
    for layer, mask in zip(kernel_layers(tiny), masks, strict=True):
        np.testing.assert_array_equal(layer.mask, mask)


def test_no_weight_is_lost_beyond_the_largest_level(model, original, examples):
    """It would have no gradient there, so it could not come back."""
    tiny = udc_tf.compact(model, bits=2)
    assert match_outputs(tiny, original, [examples], Divergence(model), steps=40)
    for kernel in kernel_layers(tiny):
        step = kernel.integer_kernel().step
        assert np.abs(kernel.theta.numpy()).max() <= step
        assert np.abs(kernel.integer_kernel().codes).max() == 1


def test_weights_that_are_zero_grow_slowly():
    weights = keras.Variable(np.array([1.0, 1.0, 1.0, 0.0], np.float32))
    mask = keras.Variable(np.array([1.0, 1.0, 1.0, 0.0], np.float32))
    moved = _Moved(weights, 0.5, most=3.0, mask=mask)
    before = keras.ops.copy(moved.units)
    moved.units.assign_add([0.4, -0.4, 4.0, 0.4])
    moved.finish(before)
    np.testing.assert_allclose(weights, [1.2, 0.8, 1.5, 0.02], rtol=1e-6)


def test_half_of_what_is_learned_from_is_no_mixture(examples):
    (batch,) = _mixed([examples], np.random.default_rng(0))
    known = {image.tobytes() for image in examples}
    as_they_are = [image.tobytes() in known for image in batch.numpy()]
    assert all(as_they_are[::2])
    assert not all(as_they_are)


def test_what_does_not_come_nearer_is_left_as_it_was(model, original, examples):
    tiny = udc_tf.compact(model, bits=32)  # there is nothing to gain
    before = tiny.get_weights()
    assert not match_outputs(tiny, original, [examples], Divergence(model), steps=3)
    for old, new in zip(before, tiny.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_no_step_begins_when_the_time_is_over(model, original, examples):
    tiny = udc_tf.compact(model, bits=2)
    assert not match_outputs(
        tiny, original, [examples], Divergence(model), steps=1000, until=time.monotonic() - 1
    )


def test_codes_that_would_break_the_budget_are_not_taken(model, examples, monkeypatch):
    targets, space = (udc_tf.Flash(6_000),), udc_tf.SearchSpace(bits=(2, 3))
    problem, settings = problem_of(model, space, targets), CompressSettings(steps=120)
    compressor = Compressor(
        model, problem, [examples], None, settings, 0, lambda line: None, None, None, 0.0
    )
    tiny = udc_tf.compact(model, bits=2)
    before, integers, sizes = tiny.get_weights(), _codes(tiny), []

    def compiled(self, problem, network):
        """Vela's part: any other codes take more than there is."""
        same = all(np.array_equal(*pair) for pair in zip(integers, _codes(network), strict=True))
        sizes.append(5_000 if same else 6_001)
        return CompiledSizes(sizes[-1], 0, 0, {})

    monkeypatch.setattr(Trials, "_sizes", compiled)
    found = compressor._matched(problem, _Fitted(tiny, Choice((), 0.0, 0.0), None))
    assert sizes == [6_001] * 3 + [5_000]
    assert found.trial.flash_bytes == 5_000
    assert any(not np.array_equal(*pair) for pair in zip(before, tiny.get_weights(), strict=True))


def test_a_network_without_biases_has_nothing_but_codes_to_move():
    inputs = keras.Input((6,))
    model = networks.randomized(keras.Model(inputs, kl.Dense(3, use_bias=False)(inputs)))
    tiny, original = (udc_tf.compact(model, bits=bits) for bits in (2, 32))
    x, divergence = networks.normal(6, count=64), Divergence(model)
    assert not match_outputs(tiny, original, [x], divergence, steps=10, codes=False)
    match_outputs(tiny, original, [x], divergence, steps=2)


def test_a_network_of_fewer_multiplications_gets_more_steps(original):
    x = keras.Input((32, 32, 3))
    y = kl.Conv2D(64, 3)(kl.Conv2D(64, 3, padding="same")(x))
    large = keras.Model(x, kl.Dense(4)(kl.GlobalAveragePooling2D()(y)))
    assert 500 <= steps_for(udc_tf.compact(large, bits=32)) < steps_for(original) <= 3000


@pytest.mark.parametrize("nonzeros", [1.0, 0.5])
def test_some_codes_become_what_they_were(model, nonzeros):
    tiny = udc_tf.compact(model, bits=3, nonzeros=nonzeros)
    kernels = kernel_layers(tiny)
    old = [layer.theta.numpy() for layer in kernels]
    was, zeros = _codes(tiny), [layer.mask.numpy() == 0 for layer in kernels]
    for layer, theta in zip(kernels, old, strict=True):
        layer.theta.assign(theta + layer.range * networks.normal(*theta.shape, count=1)[0] / 2)
    moved = [a != b for a, b in zip(_codes(tiny), was, strict=True)]
    give_back(tiny, old, 0.5)
    for before, after, codes, zero in zip(was, _codes(tiny), moved, zeros, strict=True):
        left = (after != before) & codes
        assert not (after != before)[~codes].any()
        assert 0 < left.sum() < codes.sum()
        if nonzeros < 1:
            assert not after[zero].any()
