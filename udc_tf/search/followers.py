"""What follows the weights of a search, every few steps: masks and quantization ranges."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from udc_tf.layers.links import Sampled
from udc_tf.layers.searchable_kernels import SearchableKernel
from udc_tf.quantize import ranking


def followers_of(
    layers: Sequence[SearchableKernel],
    probabilities: Callable[[], tf.Tensor],
    range_follow: float,
    *,
    sorting: bool,
) -> tuple[list[keras.Variable], Callable[[], list[tf.Tensor]]]:
    """The variables that follow the weights, and a function that computes them afresh.

    Args:
        layers: with theta and what follows it.
        probabilities: of all decisions, by which weights count when they are ranked.
        range_follow: how far ranges move towards what fits best; at 0 they are left out.
        sorting: how weights are ranked, see `udc_tf.quantize.ranking`.
    """
    ranked = [layer for layer in layers if layer.buckets is not None]
    ranged = [layer for layer in layers if layer.log_ranges is not None and range_follow]
    followers = [*(la.buckets for la in ranked), *(la.log_ranges for la in ranged)]
    variables = [v for v in followers if v is not None]

    def fresh() -> list[tf.Tensor]:
        pi = Sampled(probabilities()[None])
        buckets = [layer.ranked_buckets(pi, sorting) for layer in ranked]
        return [*buckets, *(layer.followed_ranges(range_follow) for layer in ranged)]

    return variables, fresh


def rank_anew(layers: Sequence[SearchableKernel], pi: tf.Tensor) -> None:
    """Sets the masks to what the weights are now, under the probabilities of all decisions."""
    followers, fresh = followers_of(layers, lambda: pi, 0.0, sorting=ranking.sorts_here())
    for variable, value in zip(followers, fresh(), strict=True):
        variable.assign(value)
