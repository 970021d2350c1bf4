"""Where decisions start after the warm-up: near the budget, with what harms the weights least.

From uniform probabilities a short search under a tight budget spends its steps on shrinking
everything alike, and what is cheap to keep goes with the rest. The first guess is, of all
distributions over configurations with the budget as their expected cost, the one that trades harm
against freedom:

    pi[o] ~ exp(-certainty * harm[o] - pressure * cost[o])

for each decision, cost[o] with all others at their pi, and one pressure for all that meets the
budget. Harm is minus the logarithm of what an option leaves: of taps, how many; of weights, the
share of their squares that pruning or rounding does not lose, and a little of how many there are
and of how many bits: what is small now could have been learned, and in layers that cost next to
nothing, as the first and the last, it should be. Of channels harm goes with 1/width: the
bytes of a kernel are the product of two widths, and a logarithm would be as content with one of
them next to nothing as with both in balance.
"""

import collections
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from udc_tf import decisions, quantizers, sparsity
from udc_tf.plan import Decision, Plan

_PRESSURES, _ROUNDS, _LARGEST_PRESSURE = 18, 8, 1e4
# Rounding is felt more than pruning that loses as much: at equal size, uniform networks of 2 bits
# were a point behind those of 4 (Fashion-MNIST at 14x14, 9,000 bytes, one seed).
_ROUNDING = 4.0
# Of numbers beside squares. By squares alone the first and last layers of small networks lost half
# their weights (Fashion-MNIST, 7,000 bytes, one seed: 0.818; so 0.840); with 0.4 instead of squares
# small layers kept all and large ones too little (CIFAR-10, 12,000 bytes: 0.511; so 0.525).
_PER_LOG_WEIGHTS, _PER_HALVED_BITS = 0.15, 0.03
_WIDTH = 0.5  # about the logarithm where widths of small networks are, 0.3 to 0.5
_NOTHING = 1e-6


def harm(decision: Decision, theta: np.ndarray | None) -> np.ndarray:
    """Of each option. `theta`: of the layer that bits and sparsity are about.

    >>> harm(Decision("width", "conv", (0.25, 1.0)), None).round(2).tolist()
    [1.5, 0.0]
    >>> harm(Decision("sparsity", "conv", (0.5, 1.0)), np.array([3.0, 4.0])).round(2).tolist()
    [0.55, 0.0]
    """
    options = np.asarray(decision.options, float)
    if decision.kind == "choice":
        return np.zeros(len(options))  # operators cannot be judged by their weights
    if decision.kind == "width":
        return _WIDTH * (options.max() / options - 1)
    if decision.kind == "kernel":
        return 2 * np.log(options.max() / options)
    squares = np.square(np.asarray(theta, np.float64)).ravel()
    total = max(float(squares.sum()), _NOTHING)
    if decision.kind == "sparsity":
        kept = np.cumsum(np.sort(squares)[::-1])
        left = np.array([kept[sparsity.kept(s, squares.size) - 1] for s in options]) / total
        of_number = _PER_LOG_WEIGHTS * np.log(options.max() / options)
        return np.log(1 / np.clip(left, _NOTHING, 1.0)) + of_number
    lost = np.array([_rounding_error(theta, int(b)) for b in options]) / total
    of_bits = _PER_HALVED_BITS * np.log2(options.max() / options)
    return _ROUNDING * np.log(1 / np.clip(1 - lost, _NOTHING, 1.0)) + of_bits


def _rounding_error(theta: np.ndarray, bits: int) -> float:
    if bits == quantizers.FLOAT_BITS:
        return 0.0
    r = tf.constant(quantizers.initial_range(theta, bits), tf.float32)
    rounded = quantizers.quantize(tf.constant(theta, tf.float32), bits, r).numpy()
    return float(np.square(rounded - theta).sum())


def first_guess(
    harms: np.ndarray,
    valid: np.ndarray,
    cost_ratios: Callable[[tf.Tensor], tf.Tensor],
    certainty: float,
) -> np.ndarray:
    """Logits, [decisions, options].

    Args:
        harms: of every option.
        valid: which entries are options.
        cost_ratios: from samples, [samples, decisions, options], to cost / budget.
    """
    valid_options = tf.constant(valid)

    @tf.function  # it is called a hundred times and more
    def differentiated(logits):
        pi = tf.exp(decisions.log_probabilities(logits, valid_options))
        with tf.GradientTape() as tape:
            tape.watch(pi)
            ratio = cost_ratios(pi[None])[0]
        return ratio, tape.gradient(ratio, pi)

    def ratio_and_slope(logits):
        ratio, slope = differentiated(tf.constant(logits, tf.float32))
        return float(ratio), slope.numpy()

    base = np.where(valid, -certainty * harms, 0.0)

    def under(pressure: float):
        logits = base
        for _ in range(_ROUNDS):
            ratio, slope = ratio_and_slope(logits)
            # Half the way: each decision's cost depends on what the others do.
            logits = 0.5 * logits + 0.5 * (base - pressure * np.where(valid, slope, 0.0))
        return logits, ratio

    logits, ratio = under(0.0)
    low, high = 0.0, _LARGEST_PRESSURE
    for _ in range(_PRESSURES if ratio > 1 else 0):
        # Over magnitudes: nothing is known of the scale of the costs.
        middle = np.sqrt(max(low, 1e-2) * high)
        found, ratio = under(middle)
        if ratio > 1:
            low = middle
        else:
            high, logits = middle, found
    return np.where(valid, logits - logits.mean(axis=-1, keepdims=True, where=valid), 0.0)


def harms_of(plan: Plan, thetas: dict[str, keras.Variable], options: int) -> np.ndarray:
    """Of all decisions, padded to `options`; `thetas` by the names of their layers.

    A width counts once for every layer that writes its channels: those of a residual network's
    trunk are missed in all of its blocks.
    """
    writers = collections.Counter(
        plan.groups[g].name
        for layer in plan.layers
        if layer.inputs is not None  # a depthwise layer has the channels it is given
        for g in plan.group_of(layer.outputs)
    )
    rows = np.zeros((len(plan.decisions), options))
    for row, decision in zip(rows, plan.decisions, strict=True):
        theta = thetas.get(decision.subject)
        theta = None if theta is None else keras.ops.convert_to_numpy(theta)
        times = writers[decision.subject] if decision.kind == "width" else 1
        row[: len(decision.options)] = times * harm(decision, theta)
    return rows
