"""Logits of a few decisions, for tests of their maths."""

import numpy as np
import tensorflow as tf

VALID = np.array([[True] * 4, [True, True, False, False]])


def logits_of(seed: int = 0, scale: float = 2.0, valid: np.ndarray = VALID) -> tf.Tensor:
    logits = np.random.default_rng(seed).normal(scale=scale, size=valid.shape)
    return tf.constant(logits.astype("float32"))


def cap_of(xi: float, valid: np.ndarray = VALID) -> tf.Tensor:
    """xi above uniform."""
    return tf.constant(1 / valid.sum(axis=1, keepdims=True) + xi, tf.float32)
