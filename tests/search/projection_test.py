"""The projection: it caps the likeliest option, keeps the order, and does no more than that."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support.decision_logits import VALID, cap_of, logits_of
from udc_tf.search.decisions import log_probabilities
from udc_tf.search.projection import project


class TestProjection:
    @pytest.mark.parametrize("xi", [0.01, 0.1, 0.5, 1.0])
    def test_caps_the_largest_and_keeps_the_order(self, xi):
        logits = logits_of(scale=10.0)
        projected = project(logits, tf.constant(VALID), cap_of(xi))
        pi = np.exp(log_probabilities(projected, tf.constant(VALID)))
        cap = 1 / VALID.sum(axis=1) + xi
        assert (pi.max(axis=1) <= cap + 1e-5).all()
        for before, after, valid in zip(logits.numpy(), pi, VALID, strict=True):
            np.testing.assert_array_equal(before[valid].argsort(), after[valid].argsort())

    def test_no_more_than_needed(self):
        logits = logits_of(scale=10.0)
        projected = project(logits, tf.constant(VALID), cap_of(0.3))
        pi = np.exp(log_probabilities(projected, tf.constant(VALID)))
        np.testing.assert_allclose(pi.max(axis=1), 1 / VALID.sum(axis=1) + 0.3, atol=0.01)

    def test_leaves_what_fits(self):
        logits = logits_of(scale=0.1)
        projected = project(logits, tf.constant(VALID), cap_of(0.5))
        before = log_probabilities(logits, tf.constant(VALID))
        after = log_probabilities(projected, tf.constant(VALID))
        np.testing.assert_allclose(before, after, atol=1e-5)
