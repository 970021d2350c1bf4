"""Sampling, rejection, projection: the paper's statements about them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from tests.support import networks
from udc_tf.search import decisions

_VALID = np.array([[True] * 4, [True, True, False, False]])


def _logits(seed=0, scale=2.0, valid=_VALID):
    logits = np.random.default_rng(seed).normal(scale=scale, size=valid.shape)
    return tf.constant(logits.astype("float32"))


def _draw(logits, samples=64, tau=0.66, vartheta=0.0, kappa=None, seed=0, valid=_VALID, **kwargs):
    kappa = tf.constant(valid.sum(axis=1) if kappa is None else kappa, tf.int32)
    return decisions.draw(
        logits, tf.constant(valid), kappa, samples=samples, tau=tf.constant(tau),
        vartheta=tf.constant(vartheta), seed=tf.stack([tf.cast(seed, tf.int64), 1]), **kwargs,
    )  # fmt: skip


class TestDraw:
    def test_samples_are_distributions_over_valid_options(self):
        z = _draw(_logits()).numpy()
        np.testing.assert_allclose(z.sum(axis=-1), 1.0, rtol=1e-5)
        assert (z[:, ~_VALID] == 0).all() and (z >= 0).all()

    def test_argmax_is_categorical(self):
        logits = _logits()
        pi = np.exp(decisions.log_probabilities(logits, tf.constant(_VALID)))
        drawn = _draw(logits, samples=4000).numpy().argmax(axis=-1)
        for d in range(len(pi)):
            frequency = np.bincount(drawn[:, d], minlength=4) / len(drawn)
            np.testing.assert_allclose(frequency, pi[d], atol=0.03)

    def test_same_seed_same_samples(self):
        np.testing.assert_array_equal(_draw(_logits(), seed=3), _draw(_logits(), seed=3))
        assert not np.allclose(_draw(_logits(), seed=3), _draw(_logits(), seed=4))

    def test_forward_keeps_kappa_largest_backward_is_soft(self):
        logits = _logits()
        with tf.GradientTape() as tape:
            tape.watch(logits)
            z = _draw(logits, kappa=[2, 1])
            value = tf.reduce_sum(z * tf.range(4.0))
        assert (np.count_nonzero(z, axis=-1) == [2, 1]).all()
        with tf.GradientTape() as soft:
            soft.watch(logits)
            all_options = _draw(logits, use_straight_through=False)
            expected = tf.reduce_sum(all_options * tf.range(4.0))
        np.testing.assert_allclose(
            tape.gradient(value, logits), soft.gradient(expected, logits), rtol=1e-4, atol=1e-5
        )


class TestRejection:
    def test_every_conditional_draw_has_the_argmax_of_pi(self):
        log_pi = decisions.log_probabilities(_logits(scale=0.3), tf.constant(_VALID))
        noise = decisions.gumbel(
            tf.random.stateless_uniform([500, 2, 4], tf.constant([1, 2], tf.int64))
        )
        perturbed = log_pi + decisions.gumbel_given_argmax(log_pi, noise)
        drawn = tf.argmax(perturbed, axis=-1).numpy()
        assert (drawn == tf.argmax(log_pi, axis=-1).numpy()).all()

    def test_conditional_draws_are_distributed_as_accepted_ones(self):
        log_pi = decisions.log_probabilities(_logits(scale=0.5), tf.constant(_VALID))[:1]
        noise = decisions.gumbel(
            tf.random.stateless_uniform([40_000, 1, 4], tf.constant([1, 2], tf.int64))
        )
        tau = tf.constant(0.66)
        plain = decisions.gumbel_softmax(log_pi, noise, tau).numpy()
        best = int(tf.argmax(log_pi, axis=-1)[0])
        accepted = plain[plain[:, 0].argmax(axis=-1) == best].mean(axis=0)
        other = decisions.gumbel(
            tf.random.stateless_uniform([40_000, 1, 4], tf.constant([3, 4], tf.int64))
        )
        conditional = decisions.gumbel_softmax(
            log_pi, decisions.gumbel_given_argmax(log_pi, other), tau
        )
        np.testing.assert_allclose(conditional.numpy().mean(axis=0), accepted, atol=0.01)

    def test_gradient_reaches_pi(self):
        logits = _logits()
        with tf.GradientTape() as tape:
            tape.watch(logits)
            z = _draw(logits, vartheta=1.0)
            value = tf.reduce_sum(z * tf.range(4.0))
        gradient = tape.gradient(value, logits).numpy()
        assert np.isfinite(gradient).all() and np.abs(gradient[_VALID]).max() > 0


def _cap(xi, valid=_VALID):
    """xi above uniform."""
    return tf.constant(1 / valid.sum(axis=1, keepdims=True) + xi, tf.float32)


class TestProjection:
    @pytest.mark.parametrize("xi", [0.01, 0.1, 0.5, 1.0])
    def test_caps_the_largest_and_keeps_the_order(self, xi):
        logits = _logits(scale=10.0)
        projected = decisions.project(logits, tf.constant(_VALID), _cap(xi))
        pi = np.exp(decisions.log_probabilities(projected, tf.constant(_VALID)))
        cap = 1 / _VALID.sum(axis=1) + xi
        assert (pi.max(axis=1) <= cap + 1e-5).all()
        for before, after, valid in zip(logits.numpy(), pi, _VALID, strict=True):
            np.testing.assert_array_equal(before[valid].argsort(), after[valid].argsort())

    def test_no_more_than_needed(self):
        logits = _logits(scale=10.0)
        projected = decisions.project(logits, tf.constant(_VALID), _cap(0.3))
        pi = np.exp(decisions.log_probabilities(projected, tf.constant(_VALID)))
        np.testing.assert_allclose(pi.max(axis=1), 1 / _VALID.sum(axis=1) + 0.3, atol=0.01)

    def test_leaves_what_fits(self):
        logits = _logits(scale=0.1)
        projected = decisions.project(logits, tf.constant(_VALID), _cap(0.5))
        before = decisions.log_probabilities(logits, tf.constant(_VALID))
        after = decisions.log_probabilities(projected, tf.constant(_VALID))
        np.testing.assert_allclose(before, after, atol=1e-5)


class TestOverRegularisation:
    """The paper's table: |E - e*| / e* of samples, where the argmax has exactly e*."""

    @pytest.fixture(scope="class")
    def measured(self):
        model = keras.applications.MobileNetV2((32, 32, 3), weights=None, classes=10)
        search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("1MiB"))
        valid = search.state.valid
        logits = _logits(seed=1, scale=6.0, valid=valid.numpy())
        flattened = decisions.project(logits, valid, _cap(0.5, valid.numpy()))
        likely = decisions.most_likely(decisions.log_probabilities(logits, valid))
        exact = search.cost_ratios(likely[None])

        def error(values, tau, vartheta):
            z = _draw(values, 64, tau, vartheta, valid=valid.numpy(), use_straight_through=False)
            return float(tf.reduce_mean(tf.abs(search.cost_ratios(z) / exact - 1)))

        return {
            tau: [
                error(logits, tau, 0.0),
                *(error(flattened, tau, vartheta) for vartheta in (0.0, 0.5, 0.99)),
            ]
            for tau in (0.66, 10.0)
        }

    def test_rises_with_tau(self, measured):
        assert all(low < high for low, high in zip(measured[0.66], measured[10.0], strict=True))

    @pytest.mark.parametrize("tau", [0.66, 10.0])
    def test_rises_with_projection_and_falls_with_rejection(self, measured, tau):
        vanilla, projection, half, most = measured[tau]
        assert vanilla < projection
        assert projection > half > most


class TestGradientVariance:
    """Of d loss / d pi, on a real network: the paper's figure."""

    @pytest.fixture(scope="class")
    def variance(self):
        keras.utils.set_random_seed(0)  # of the network's weights
        search = udc_tf.make_searchable(networks.small_cnn(), "ethos_u55", udc_tf.Flash("3.5KiB"))
        search.compile(loss=networks.cross_entropy())
        x, y = networks.blobs(64)
        valid = search.state.valid.numpy()

        def of(samples, tau, draws=48):
            @tf.function
            def gradient(seed):
                logits = tf.convert_to_tensor(search.state.logits)
                with tf.GradientTape() as tape:
                    tape.watch(logits)
                    z = _draw(logits, samples, tau, seed=seed, valid=valid)
                    loss = search.compute_loss(x, y, search.predict_by_samples(x, z))
                return tape.gradient(loss, logits)

            seeds = tf.range(draws, dtype=tf.int64)
            return np.var([gradient(s).numpy() for s in seeds], axis=0).mean()

        return of

    def test_falls_with_samples_and_rises_as_tau_falls(self, variance):
        base = variance(2, 0.66)
        assert variance(8, 0.66) < base
        assert variance(2, 0.1) > base
