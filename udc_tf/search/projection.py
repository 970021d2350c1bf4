"""The projection after each step: no option is more likely than the schedule allows."""

import tensorflow as tf

from udc_tf.search.decisions import log_probabilities


def project(logits: tf.Tensor, valid: tf.Tensor, cap: tf.Tensor, bisections: int = 14) -> tf.Tensor:
    """Centred logits / T, with the smallest T >= 1 for which max pi <= cap.

    Dividing keeps the order of the options. `cap`, one a decision, must be above 1/K: there only
    the uniform distribution is left and the order is lost.
    """
    options = tf.reduce_sum(tf.cast(valid, logits.dtype), axis=-1, keepdims=True)
    mean = tf.reduce_sum(tf.where(valid, logits, 0.0), axis=-1, keepdims=True) / options
    centred = tf.where(valid, logits - mean, 0.0)
    spread = tf.reduce_max(centred, -1, keepdims=True) - tf.reduce_min(centred, -1, keepdims=True)

    def satisfied(temperature: tf.Tensor) -> tf.Tensor:
        log_pi = log_probabilities(centred / temperature, valid)
        return tf.exp(tf.reduce_max(log_pi, axis=-1, keepdims=True)) <= cap

    # At `high` the largest probability is at most exp(R/T)/K = cap.
    low = tf.ones_like(cap)
    high = tf.maximum(1.0, spread / tf.math.log(options * cap))
    for _ in range(bisections):
        middle = 0.5 * (low + high)
        fits = satisfied(middle)
        low, high = tf.where(fits, low, middle), tf.where(fits, middle, high)
    temperature = tf.where(satisfied(tf.ones_like(cap)), 1.0, high)
    return centred / temperature
