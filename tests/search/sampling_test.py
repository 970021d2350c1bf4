"""Sampling, rejection, and what projection adds: the paper's statements about them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from tests.support import networks
from tests.support.decision_logits import VALID, cap_of, logits_of
from udc_tf.search import sampling
from udc_tf.search.decisions import log_probabilities, most_likely
from udc_tf.search.projection import project


def _draw(logits, samples=64, tau=0.66, vartheta=0.0, kappa=None, seed=0, valid=VALID, **kwargs):
    kappa = tf.constant(valid.sum(axis=1) if kappa is None else kappa, tf.int32)
    return sampling.draw(
        logits, tf.constant(valid), kappa, samples=samples, tau=tf.constant(tau),
        vartheta=tf.constant(vartheta), seed=tf.stack([tf.cast(seed, tf.int64), 1]), **kwargs,
    )  # fmt: skip


class TestDraw:
    def test_samples_are_distributions_over_valid_options(self):
        z = _draw(logits_of()).numpy()
        np.testing.assert_allclose(z.sum(axis=-1), 1.0, rtol=1e-5)
        assert (z[:, ~VALID] == 0).all() and (z >= 0).all()

    def test_argmax_is_categorical(self):
        logits = logits_of()
        pi = np.exp(log_probabilities(logits, tf.constant(VALID)))
        drawn = _draw(logits, samples=4000).numpy().argmax(axis=-1)
        for d in range(len(pi)):
            frequency = np.bincount(drawn[:, d], minlength=4) / len(drawn)
            np.testing.assert_allclose(frequency, pi[d], atol=0.03)

    def test_same_seed_same_samples(self):
        np.testing.assert_array_equal(_draw(logits_of(), seed=3), _draw(logits_of(), seed=3))
        assert not np.allclose(_draw(logits_of(), seed=3), _draw(logits_of(), seed=4))

    def test_forward_keeps_kappa_largest_backward_is_soft(self):
        logits = logits_of()
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
        log_pi = log_probabilities(logits_of(scale=0.3), tf.constant(VALID))
        noise = sampling.gumbel(
            tf.random.stateless_uniform([500, 2, 4], tf.constant([1, 2], tf.int64))
        )
        perturbed = log_pi + sampling.gumbel_given_argmax(log_pi, noise)
        drawn = tf.argmax(perturbed, axis=-1).numpy()
        assert (drawn == tf.argmax(log_pi, axis=-1).numpy()).all()

    def test_conditional_draws_are_distributed_as_accepted_ones(self):
        log_pi = log_probabilities(logits_of(scale=0.5), tf.constant(VALID))[:1]
        noise = sampling.gumbel(
            tf.random.stateless_uniform([40_000, 1, 4], tf.constant([1, 2], tf.int64))
        )
        tau = tf.constant(0.66)
        plain = sampling.gumbel_softmax(log_pi, noise, tau).numpy()
        best = int(tf.argmax(log_pi, axis=-1)[0])
        accepted = plain[plain[:, 0].argmax(axis=-1) == best].mean(axis=0)
        other = sampling.gumbel(
            tf.random.stateless_uniform([40_000, 1, 4], tf.constant([3, 4], tf.int64))
        )
        conditional = sampling.gumbel_softmax(
            log_pi, sampling.gumbel_given_argmax(log_pi, other), tau
        )
        np.testing.assert_allclose(conditional.numpy().mean(axis=0), accepted, atol=0.01)

    def test_gradient_reaches_pi(self):
        logits = logits_of()
        with tf.GradientTape() as tape:
            tape.watch(logits)
            z = _draw(logits, vartheta=1.0)
            value = tf.reduce_sum(z * tf.range(4.0))
        gradient = tape.gradient(value, logits).numpy()
        assert np.isfinite(gradient).all() and np.abs(gradient[VALID]).max() > 0


class TestOverRegularisation:
    """The paper's table: |E - e*| / e* of samples, where the argmax has exactly e*."""

    @pytest.fixture(scope="class")
    def measured(self):
        model = keras.applications.MobileNetV2((32, 32, 3), weights=None, classes=10)
        search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("1MiB"))
        valid = search.state.valid
        logits = logits_of(seed=1, scale=6.0, valid=valid.numpy())
        flattened = project(logits, valid, cap_of(0.5, valid.numpy()))
        likely = most_likely(log_probabilities(logits, valid))
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
