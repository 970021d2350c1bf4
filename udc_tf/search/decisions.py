"""What decisions are: probabilities, the most likely options, how undecided they are.

All decisions live in one padded matrix of logits, [decisions, options]; `valid` says which entries
are options. Samples add a leading axis.
"""

import tensorflow as tf

_IMPOSSIBLE = -1e9


def log_probabilities(logits: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """log pi, with padding at a large negative number."""
    return tf.nn.log_softmax(tf.where(valid, logits, _IMPOSSIBLE), axis=-1)


def entropy(log_pi: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Mean entropy of the decisions, as a fraction of that of uniform ones: 1 undecided, 0 done."""
    options = tf.reduce_sum(tf.cast(valid, log_pi.dtype), axis=-1)
    nats = -tf.reduce_sum(tf.where(valid, tf.exp(log_pi) * log_pi, 0.0), axis=-1)
    return tf.reduce_mean(nats / tf.math.log(options))


def most_likely(log_pi: tf.Tensor) -> tf.Tensor:
    """One-hot of each decision's most likely option; undecided, of the largest."""
    options = log_pi.shape[-1]
    last = options - 1 - tf.argmax(log_pi[..., ::-1], axis=-1)
    return tf.one_hot(last, options)
