"""Where decisions start after the warm-up: near the budget, with what harms least.

From uniform probabilities a short search under a tight budget spends its steps on shrinking
everything alike, and what is cheap to keep goes with the rest. The first guess is, of all
distributions over configurations with the budget as their expected cost, the one that trades harm
against freedom:

    pi[o] ~ exp(-certainty * harm[o] - pressure * cost[o])

for each decision, cost[o] with all others at their pi, and one pressure for all that meets the
budget. The harm of few channels and of few weights is about what it is in some ninety trained
networks (`benchmarks/compare/landscape.py`): each layer counts alike however large it is, each
halving of its channels or of its weights costs about as much as the one before, and a halving of
channels as much as three or four of weights. So large layers are pruned hard, where that saves
most, and small ones are left alone. The harm of few bits is minus the logarithm of what rounding
leaves of the squares of the weights, and a little of how many bits there are; of taps, that of
their number. Leaving out a block harms about as much as a quarter of a layer's channels would; of
two operators, the one with fewer weights harms as pruning to as many would.

What the harm is in this network, as far as its loss tells, `evidence` adds.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from udc_tf.cost.priced_network import Decision, Plan
from udc_tf.quantize import quantizers
from udc_tf.search import decisions

_PRESSURES, _HALVINGS = (1e-2, 1e4, 1e8), 12  # the second range only if the first has none
_REFINEMENTS, _ROUNDS = 8, 8
_NEAR = 4.0  # a factor of the pressure within which the most likely configuration is at the budget
# Rounding is felt more than pruning that loses as much: at equal size, uniform networks of 2 bits
# were a point behind those of 4 (Fashion-MNIST at 14x14, 9,000 bytes, one seed).
_ROUNDING = 4.0
_PER_HALVED_BITS = 0.03
# Of each halving, and what later ones cost beyond it. For widths that goes with 1/width: a kernel's
# size is a product of two, and a logarithm would be as content with one of them next to nothing.
_WIDTH, _NARROWNESS = 0.4, 0.1
# Channels beyond what they are made from are mixtures of each other; a ReLU makes two of a value.
_PARTS_OF_A_VALUE, _OF_MIXTURES = 2, 0.5
_PRUNING, _PRUNING_MORE = 0.08, 0.018
# What a first convolution does not look at, no other layer sees, unless it may be left out as a
# whole. AlexNet's, VGG-16's and LeNet-5's keep 84, 58 and 66% of their weights where most other
# convolutions of theirs keep 12 to 38% (Han et al., 2015, "Learning both weights and connections"):
# by the harm above they mind two to seven times as much.
_FIRST = 3.0
_LEFT_OUT = 1.0
_NOTHING = 1e-6
_PER_STEP = 0.05  # from where a search is told to start: with the default certainty, three nats


def harm(decision: Decision, theta: np.ndarray | None) -> np.ndarray:
    """The harm of each option. `theta`: the weights of the layer whose bits are decided.

    >>> harm(Decision("width", "conv", (0.25, 1.0)), None).round(2).tolist()
    [1.1, 0.0]
    >>> harm(Decision("sparsity", "conv", (0.25, 0.5, 1.0)), None).round(2).tolist()
    [0.23, 0.1, 0.0]
    """
    options = np.asarray(decision.options, float)
    if decision.kind == "kernel":
        return 2 * np.log(options.max() / options)
    halvings = np.log2(options.max() / options)
    if decision.kind == "width":
        return _of_widths(options / options.max())
    if decision.kind == "sparsity":
        return _PRUNING * halvings + _PRUNING_MORE * halvings**2
    if theta is None:
        raise ValueError(f"The bits of `{decision.subject}` cannot be judged without its weights.")
    total = max(float(np.square(np.asarray(theta, np.float64)).sum()), _NOTHING)
    lost = np.array([_rounding_error(theta, int(b)) for b in options]) / total
    return _ROUNDING * np.log(1 / np.clip(1 - lost, _NOTHING, 1.0)) + _PER_HALVED_BITS * halvings


def _of_widths(fractions: np.ndarray) -> np.ndarray:
    return _WIDTH * np.log2(1 / fractions) + _NARROWNESS * (1 / fractions - 1)


def harm_of_widths(decision: Decision, channels: int, made_from: int) -> np.ndarray:
    """The harm of each width of `channels` that are computed from `made_from` values each.

    >>> harm_of_widths(Decision("width", "conv", (0.25, 0.5, 1.0)), 64, 2).round(2).tolist()
    [0.55, 0.25, 0.0]
    """
    found = harm(decision, None)
    own = min(1.0, _PARTS_OF_A_VALUE * made_from / channels)
    mixed = np.minimum(found, _of_widths(np.asarray(own)))
    return found - (1 - _OF_MIXTURES) * mixed


def harm_of_operators(weights: Sequence[int]) -> np.ndarray:
    """The harm of each branch of a choice, by the number of its weights.

    >>> harm_of_operators([4608, 576, 0]).round(2).tolist()
    [0.0, 0.4, 1.0]
    """
    counts = np.asarray(weights, float)
    if not counts.any():
        return np.zeros(len(counts))
    halvings = np.log2(counts.max() / np.maximum(counts, 1.0))
    fewer = _PRUNING * halvings + _PRUNING_MORE * halvings**2
    return np.where(counts > 0, np.minimum(fewer, _LEFT_OUT), _LEFT_OUT)


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
    decided: bool = True,
) -> tuple[np.ndarray, float]:
    """The logits of the first guess, [decisions, options], and its pressure.

    Args:
        harms: of every option.
        valid: which entries are options.
        cost_ratios: from samples, [samples, decisions, options], to cost / budget.
        decided: the most likely configuration is to be at the budget, and not the average.
    """
    valid_options = tf.constant(valid)

    @tf.function(autograph=False)  # it is called a hundred times and more
    def differentiated(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pi = tf.exp(decisions.log_probabilities(logits, valid_options))
        with tf.GradientTape() as tape:
            tape.watch(pi)
            ratio = cost_ratios(pi[None])[0]
        return ratio, tape.gradient(ratio, pi)

    def ratio_and_slope(logits: np.ndarray) -> tuple[float, np.ndarray]:
        ratio, slope = differentiated(tf.constant(logits, tf.float32))
        return float(ratio), slope.numpy()

    base = np.where(valid, -certainty * harms, 0.0)

    def under(pressure: float) -> tuple[np.ndarray, float]:
        logits = base
        for _ in range(_ROUNDS):
            ratio, slope = ratio_and_slope(logits)
            # Half the way: each decision's cost depends on what the others do.
            logits = 0.5 * logits + 0.5 * (base - pressure * np.where(valid, slope, 0.0))
        return logits, ratio

    def likely_ratio(logits: np.ndarray) -> float:
        likely = np.where(valid, logits, -np.inf).argmax(axis=1)
        one_hot = tf.one_hot(likely, valid.shape[1])
        return float(cost_ratios(one_hot[None])[0])

    logits, ratio = under(0.0)
    pressure = 0.0
    for lowest, largest in itertools.pairwise(_PRESSURES):
        if ratio <= 1:
            break
        # Over magnitudes: nothing is known of the scale of the costs, or of measured harms.
        low, high = lowest, largest
        for _ in range(_HALVINGS):
            middle = np.sqrt(low * high)
            found, reached = under(middle)
            if reached > 1:
                low = middle
            else:
                high, logits, pressure, ratio = middle, found, middle, reached
    if decided and pressure:
        # What will be built is the most likely configuration; it is at most at the budget.
        low, high, best = pressure / _NEAR, pressure * _NEAR, 0.0
        for _ in range(_REFINEMENTS):
            middle = np.sqrt(low * high)
            found, _ = under(middle)
            ratio = likely_ratio(found)
            low, high = (middle, high) if ratio > 1 else (low, middle)
            if best < ratio <= 1:
                logits, pressure, best = found, middle, ratio
    centred = logits - logits.mean(axis=-1, keepdims=True, where=valid)
    return np.where(valid, centred, 0.0), float(pressure)


def harms_of(
    plan: Plan,
    thetas: dict[str, keras.Variable],
    options: int,
    near: Mapping[str, float] | None = None,
) -> np.ndarray:
    """The harms of all decisions, padded to `options`; `thetas` by the names of their layers.

    With `near`, decision -> value, it is the distance from there that harms.

    A width counts once for every layer that writes its channels: those of a residual network's
    trunk are missed in all of its blocks.
    """
    first = {q.name for q in plan.layers if q.is_first and q.taps > 1 and not q.gates}
    writers: dict[str, list[int]] = {}
    for layer in plan.layers:
        if layer.inputs is not None:  # a depthwise layer has the channels it is given
            for g in plan.group_of(layer.outputs):
                values = layer.taps * len(layer.inputs)
                writers.setdefault(plan.groups[g].name, []).append(values)
    channels = {group.name: group.channels for group in plan.groups}
    rows = np.zeros((len(plan.decisions), options))
    for row, decision in zip(rows, plan.decisions, strict=True):
        if near is not None:
            row[: len(decision.options)] = _distance(decision, near)
            continue
        if decision.kind == "choice":
            row[: len(decision.options)] = harm_of_operators(_branch_weights(plan, decision))
            continue
        if decision.kind == "width" and (made_from := writers.get(decision.subject)):
            of_one = harm_of_widths(decision, channels[decision.subject], max(made_from))
            row[: len(decision.options)] = len(made_from) * of_one
            continue
        theta = thetas.get(decision.subject)
        theta = None if theta is None else keras.ops.convert_to_numpy(theta)
        row[: len(decision.options)] = harm(decision, theta)
        if decision.kind == "sparsity" and decision.subject in first:
            row *= _FIRST
    return rows


def _distance(decision: Decision, near: Mapping[str, float]) -> np.ndarray:
    """How many options lie between each and the one that is nearest to where a search starts.

    What is not said stays whole: all channels, bits, weights and taps; the first branch.

    >>> _distance(Decision("bits", "conv", (2, 4, 8)), {"bits/conv": 5}).tolist()
    [0.05, 0.0, 0.05]
    """
    values = np.asarray(decision.options, float)
    whole = values[0] if decision.kind == "choice" else values[-1]
    wanted = near.get(decision.name, whole)
    numbers = np.arange(len(values))
    return _PER_STEP * np.abs(numbers - np.abs(values - wanted).argmin())


def _branch_weights(plan: Plan, choice: Decision) -> list[int]:
    """The weights of each branch at full width."""
    counts = [0] * len(choice.options)
    for layer in plan.layers:
        for gate in layer.gates:
            if gate.choice == choice.subject:
                inputs = 1 if layer.inputs is None else len(layer.inputs)
                counts[gate.branch] += layer.taps * inputs * len(layer.outputs)
    return counts
