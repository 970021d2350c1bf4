"""Channels that others can make up for: what of the first guess the network's own values correct.

A loss that is measured with shared weights cannot tell that a channel is one too many: its readers
have learned to use it, and miss it, although they could use the others as well. How far they could
is a question of linear regression: which share of the channels that would go do those that stay not
explain? Between ordinary channels that is a good part. Of a layer wider than what it is made from,
next to nothing is left, and there few channels do no harm.

    share[k] = sum_j>k weight_j * residual_j / sum_j>k weight_j * variance_j

for the first k channels; the weight of a channel is the squares of what reads it. Regression is on
half of the batches, judged on the other half, so that few images do not explain too much.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from udc_tf.graph.channel_groups import ChannelMap
from udc_tf.layers.current_sample import following
from udc_tf.layers.searchable_kernels import SearchableKernel
from udc_tf.search.evidence import listened_to
from udc_tf.search.samples import Samples
from udc_tf.training import batch_norm

if TYPE_CHECKING:
    from udc_tf.search.model import SearchModel

_RIDGE = 1e-4  # of the mean variance; sums in single precision are not exact
_LEAST = 1e-3
_MOST_CHANNELS = 1_024  # the time of a regression goes with the third power


def unexplained(fit: np.ndarray, check: np.ndarray, weights: np.ndarray, kept: int) -> float:
    """Which share of the channels beyond the first `kept` these do not explain.

    Args:
        fit, check: covariances of all channels on the two halves of the data.
        weights: what a channel's variance counts.

    >>> mixed = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    >>> covariance, alike = mixed @ mixed.T, np.ones(3)
    >>> [round(unexplained(covariance, covariance, alike, n), 3) for n in (1, 2)]
    [0.82, 0.0]
    """
    ridge = _RIDGE * np.trace(fit) / len(fit) * np.eye(kept)
    by = np.linalg.lstsq(fit[:kept, :kept] + ridge, fit[:kept, kept:], rcond=None)[0]
    variances = np.diag(check)[kept:]
    residuals = variances - 2 * np.sum(by * check[:kept, kept:], axis=0)
    residuals = residuals + np.sum(by * (check[:kept, :kept] @ by), axis=0)
    total = float(weights[kept:] @ variances)
    return float(np.clip(weights[kept:] @ residuals / total, 0.0, 1.0)) if total > 0 else 1.0


def factors(search: "SearchModel", likely: np.ndarray, batches: Sequence[Any]) -> np.ndarray:
    """By what the harm of each width is multiplied, [decisions, options]; 1 where nothing is known.

    Args:
        likely: the configuration in which channels are looked at.
        batches: inputs, an even number of them.
    """
    plan = search.problem.plan
    found = np.ones((len(plan.decisions), search.state.options))
    if not batches:
        return found
    shares = {}
    for group, (fit, check, weights) in _covariances(search, likely, batches).items():
        row = plan.decision_index("width", plan.groups[group].name)
        counts = plan.widths[group]
        if row is not None and len(weights) <= _MOST_CHANNELS:
            shares[row] = [unexplained(fit, check, weights, n) for n in counts if n < len(weights)]
    if not shares:
        return found
    usual = float(np.median([np.mean(s) for s in shares.values() if s]))
    for row, of_options in shares.items():
        for option, share in enumerate(of_options):
            x = np.log(max(share, _LEAST) / max(usual, _LEAST))
            found[row, option] = np.exp(min(listened_to(x, 0.0), 0.0))
    return found


def _covariances(
    search: "SearchModel", likely: np.ndarray, batches: Sequence[Any]
) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """By group of channels: the covariances on two halves of the batches, and weights."""
    if search.problem.source is None:
        return {}  # of a subclassed model nothing can be seen on the way
    plan = search.problem.plan
    read: dict[int, tuple[SearchableKernel, ChannelMap]] = {}
    weights: dict[int, np.ndarray] = {}
    for priced, layer in zip(plan.layers, search.kernel_layers, strict=True):
        if priced.inputs is None or layer.in_axis is None or not _is_called_once(search, layer):
            continue
        axes = tuple(a for a in range(len(layer.theta.shape)) if a != layer.in_axis)
        squares = np.square(keras.ops.convert_to_numpy(layer.theta)).sum(axis=axes)
        for group in plan.group_of(priced.inputs):
            here = np.flatnonzero(priced.inputs.group == group)
            if len(here) != plan.groups[group].channels or group not in plan.widths:
                continue  # read twice over, as behind a flattened image
            read.setdefault(group, (layer, priced.inputs))
            of_group = np.zeros(len(here))
            of_group[priced.inputs.index[here]] = squares[here]
            weights[group] = weights.get(group, 0.0) + of_group
    if not read:
        return {}
    layers = list({id(layer): layer for layer, _ in read.values()}.values())
    values = keras.Model(search.network.inputs, [layer.input for layer in layers])
    z = tf.one_hot(likely, search.state.options)[None]

    @tf.function(reduce_retracing=True, autograph=False)
    def moments(x: Any) -> list[tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
        with following(Samples(z, search.rows).view(0)):
            outputs = values(x, training=True)
        found = []
        for output in outputs if isinstance(outputs, list) else [outputs]:
            flat = tf.reshape(tf.cast(output, tf.float32), [-1, output.shape[-1]])
            count = tf.cast(tf.shape(flat)[0], tf.float32)
            found.append((tf.matmul(flat, flat, transpose_a=True), tf.reduce_sum(flat, 0), count))
        return found

    halves: tuple[list[list[list[np.ndarray]]], ...] = ([], [])  # batches, layers, moments
    with batch_norm.unchanged(search.network):
        for number, x in enumerate(batches):
            seen = [[np.asarray(t, np.float64) for t in of_layer] for of_layer in moments(x)]
            halves[number % 2].append(seen)
    result = {}
    for group, (layer, inputs) in read.items():
        place = next(i for i, other in enumerate(layers) if other is layer)
        here = np.flatnonzero(inputs.group == group)
        here = here[np.argsort(inputs.index[here])]
        both = []
        for half in halves:
            products, sums, count = (sum(batch[place][i] for batch in half) for i in range(3))
            mean = sums / count
            both.append((products / count - np.outer(mean, mean))[np.ix_(here, here)])
        result[group] = (both[0], both[1], weights[group])
    return result


def _is_called_once(search: "SearchModel", layer: SearchableKernel) -> bool:
    """In the network itself, where what it reads can be seen; not inside a choice or twice."""
    return any(layer is other for other in search.network.layers) and len(layer._inbound_nodes) == 1
