"""Probabilities of decisions, how undecided they are, and what they tend to."""

import numpy as np
import tensorflow as tf

from tests.support.decision_logits import VALID, logits_of
from udc_tf.search import decisions


def test_what_is_no_option_has_no_probability():
    pi = np.exp(decisions.log_probabilities(logits_of(), tf.constant(VALID)))
    assert (pi[~VALID] == 0).all() and (pi[VALID] > 0).all()
    np.testing.assert_allclose(pi.sum(axis=1), 1, rtol=1e-6)


def test_entropy_is_one_undecided_and_zero_decided():
    def entropy(logits):
        log_pi = decisions.log_probabilities(tf.constant(logits, tf.float32), tf.constant(VALID))
        return float(decisions.entropy(log_pi, tf.constant(VALID)))

    undecided, decided = np.zeros(VALID.shape), 100 * np.eye(*VALID.shape)
    assert abs(entropy(undecided) - 1) < 1e-6 and abs(entropy(decided)) < 1e-6
    half = np.stack([undecided[0], decided[1]])
    assert abs(entropy(half) - 0.5) < 1e-6


def test_undecided_the_largest_option_is_the_most_likely():
    logits = tf.constant([[1.0, 0.0, 1.0, 0.0], [2.0, 1.0, 9.0, 9.0]])
    likely = decisions.most_likely(decisions.log_probabilities(logits, tf.constant(VALID)))
    np.testing.assert_array_equal(likely, [[0, 0, 1, 0], [1, 0, 0, 0]])
