"""Samples of the decisions: Gumbel-softmax, top-kappa, rejection.

Functions are pure; noise is passed in or drawn from an explicit seed, so that a resumed run draws
what the interrupted one would have. Shapes are those of `udc_tf.search.decisions`.
"""

import tensorflow as tf

from udc_tf.quantize.noise import stateless_uniform
from udc_tf.quantize.quantizers import straight_through
from udc_tf.search.decisions import log_probabilities

_TINY = 1e-20


def gumbel(uniform: tf.Tensor) -> tf.Tensor:
    """Gumbel(0, 1) noise from uniform noise."""
    return -tf.math.log(-tf.math.log(tf.maximum(uniform, _TINY)))


def gumbel_softmax(log_pi: tf.Tensor, noise: tf.Tensor, tau: tf.Tensor) -> tf.Tensor:
    """z-hat = softmax((log pi + g) / tau)."""
    return tf.nn.softmax((log_pi + noise) / tau, axis=-1)


def gumbel_given_argmax(log_pi: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Noise for which argmax(log pi + noise) is argmax(log pi).

    Distributed as Gumbel noise that passed the rejection test of the paper's Algorithm 1, but every
    draw passes: the largest of log pi + g is Gumbel(0) whatever its place, and the others are
    Gumbels truncated below it. No gradient goes through the noise.
    """
    log_pi = tf.stop_gradient(log_pi)
    best = tf.one_hot(tf.argmax(log_pi, axis=-1), log_pi.shape[-1], on_value=True, off_value=False)
    best = tf.broadcast_to(best, tf.shape(noise))
    top = tf.reduce_sum(tf.where(best, noise, 0.0), axis=-1, keepdims=True)
    # -log(exp(-top) + exp(-(log pi + g))) is a Gumbel with location log pi, given that it is < top.
    truncated = -tf.reduce_logsumexp(
        tf.stack([tf.broadcast_to(-top, tf.shape(noise)), -(log_pi + noise)]), axis=0
    )
    return tf.stop_gradient(tf.where(best, top, truncated) - log_pi)


def accepted_sample(log_pi: tf.Tensor, noise: tf.Tensor, tau: tf.Tensor, draws: int) -> tf.Tensor:
    """z-tilde: the mean of `draws` Gumbel-softmax samples whose argmax is pi's own.

    `noise` is [draws, samples, decisions, options].
    """
    conditional = tf.stack([gumbel_given_argmax(log_pi, n) for n in tf.unstack(noise, draws)])
    return tf.reduce_mean(gumbel_softmax(log_pi, conditional, tau), axis=0)


def keep_largest(z: tf.Tensor, kappa: tf.Tensor) -> tf.Tensor:
    """Forward: the kappa largest entries of each decision, renormalised. Backward: z itself.

    >>> keep_largest(tf.constant([[0.2, 0.5, 0.3]]), tf.constant([1])).numpy().tolist()
    [[0.0, 1.0, 0.0]]
    """
    ordered = tf.sort(z, axis=-1, direction="DESCENDING")
    place = tf.one_hot(kappa - 1, z.shape[-1])
    threshold = tf.reduce_sum(ordered * place, axis=-1, keepdims=True)
    largest = tf.where(z >= threshold, z, 0.0)
    forward = largest / tf.reduce_sum(largest, axis=-1, keepdims=True)
    return straight_through(forward, z)


def uniforms(samples: int, size: int, seed: tf.Tensor, first: int | tf.Tensor = 0) -> tf.Tensor:
    """Uniform noise of the samples `first`, `first + 1`, ..., [samples, size].

    A sample's noise depends on the seed and on its number alone, not on who draws how many.

    >>> seed = tf.constant([1, 2])
    >>> bool(tf.reduce_all(uniforms(4, 3, seed)[2:] == uniforms(2, 3, seed, first=2)))
    True
    """
    fold = tf.random.experimental.stateless_fold_in
    seeds = [fold(seed, tf.cast(first, tf.int64) + i) for i in range(samples)]
    return tf.stack([stateless_uniform([size], s) for s in seeds])


def draw(
    logits: tf.Tensor,
    valid: tf.Tensor,
    kappa: tf.Tensor,
    *,
    samples: int,
    tau: tf.Tensor,
    vartheta: tf.Tensor,
    seed: tf.Tensor,
    first: int | tf.Tensor = 0,
    rejection_draws: int = 4,
    use_straight_through: bool = True,
) -> tf.Tensor:
    """Monte-Carlo samples of all decisions, [samples, decisions, options].

    Each decision of each sample is z-tilde with probability `vartheta`, else z-hat. With
    `rejection_draws=0` it is always z-hat. `first` is the number of the first sample: two draws of
    k samples, from 0 and from k, give what one draw of 2k samples does.
    """
    log_pi = log_probabilities(logits, valid)
    count, options = log_pi.shape
    pairs = count * options
    noise = uniforms(samples, (1 + rejection_draws) * pairs + count, seed, first)
    noise, coin = noise[:, :-count], noise[:, -count:, None]
    noise = gumbel(tf.reshape(noise, [samples, 1 + rejection_draws, count, options]))
    z = gumbel_softmax(log_pi, noise[:, 0], tau)
    if rejection_draws:
        accepted = tf.transpose(noise[:, 1:], [1, 0, 2, 3])
        z = tf.where(coin < vartheta, accepted_sample(log_pi, accepted, tau, rejection_draws), z)
    z = tf.where(valid, z, 0.0)
    return keep_largest(z, kappa) if use_straight_through else z
