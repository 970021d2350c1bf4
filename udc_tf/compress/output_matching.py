"""The whole network's outputs, brought nearer to the original's.

Layers are fitted one after the other, so what is left is the error that they make together. Some
thousand steps of gradient descent lower it: on the examples and on mixtures of two of them, which
need no labels, since the original says what the outputs should be. Weights move from level to level
by the straight-through gradient, and as many as before are zero, but not always the same ones;
batch norms and biases move freely. Levels and activation ranges stay.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from udc_tf.compress.norm_statistics import measure_norms
from udc_tf.compress.output_divergence import Divergence
from udc_tf.layers.activation_quantizer import settled
from udc_tf.layers.compact_kernels import CompactKernel
from udc_tf.layers.inventory import activation_quantizers, kernel_layers
from udc_tf.quantize import masks, number_format
from udc_tf.quantize.quantizers import integer_levels

_RATE = 0.02  # of a weight's step; a step is what Adam moves a variable by, at most
_WARM_UP = 0.1  # of the steps, in which the rate rises: from zero, since all moves at once
_UNIT = 0.5  # of a channel's deviation: what counts for a bias as a step does for a weight
_BATCH = 32
_NEAR = 1e-4  # a divergence that nobody would notice
_NEARER = 0.999  # of what the distance was: more than the order of sums makes
_JUDGES = 8  # one example of so many is not learned from: it says whether the result is better
# Of a kept weight's rate, for those that are zero: Adam's steps know no size, so noise alone would
# soon make any of them as large as those that matter.
_GROWTH = 0.1
_CHOOSE_EVERY = 16  # steps, anew which weights are zero
_CHOOSE_UNTIL = 0.9  # of the steps
_WORK = 12e9  # multiplications of inferences: one for each step
_FEWEST, _MOST = 500, 3000


def give_back(network: keras.Model, before: Sequence[np.ndarray], share: float) -> None:
    """Gives a share of the weights whose codes have changed the codes that they had.

    Those come first that are nearest to what they were. Weights that were or are zero by the mask
    stay.

    Args:
        before: theta of each kernel, as `kernel_layers` orders them.
        share: of the changed weights of each kernel.
    """
    for kernel, old in zip(kernel_layers(network), before, strict=True):
        theta, codes = kernel.theta.numpy(), kernel.integer_kernel().codes
        kernel.theta.assign(old)
        changed = (kernel.integer_kernel().codes != codes) & (codes != 0) & (old != 0)
        distance = np.where(changed, np.abs(theta - old), np.inf)
        nearest = np.argsort(distance, axis=None)[: round(share * int(changed.sum()))]
        np.put(theta, nearest, old.ravel()[nearest])
        kernel.theta.assign(theta)


def steps_for(network: keras.Model) -> int:
    """Steps that take about as long for one network as for another: more for a small one."""
    multiplications = 0
    for kernel in kernel_layers(network):
        for node in kernel._inbound_nodes:
            small = min(node.input_tensors[0], node.outputs[0], key=_positions)
            multiplications += _positions(small) * int(np.prod(kernel.theta.shape))
    return int(np.clip(_WORK / max(multiplications, 1), _FEWEST, _MOST))


def _positions(tensor: keras.KerasTensor) -> int:
    return int(np.prod([n or 1 for n in tensor.shape[1:-1]]))


def match_outputs(
    network: keras.Model,
    original: keras.Model,
    inputs: Sequence[np.ndarray],
    divergence: Divergence,
    *,
    steps: int,
    codes: bool = True,
    seed: int = 0,
    until: float | None = None,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> bool:
    """Moves a fitted network towards its original; one that does not get nearer is left as it was.

    Args:
        network: changed in place.
        original: the same structure in float.
        inputs: one array per input.
        divergence: of the outputs.
        steps: of gradient descent.
        codes: whether the integers of the weights may change; else batch norms and biases alone.
        seed: of the order of the examples.
        until: no further step begins after that (`time.monotonic`).

    Returns:
        Whether the network has changed.
    """
    count = len(inputs[0])
    learned = np.arange(count) % _JUDGES != _JUDGES - 1
    judges = [tf.constant(x[~learned]) for x in inputs]
    inputs = [x[learned] for x in inputs]
    before = network.get_weights()
    distance = _distance(network, original, judges, divergence)
    if distance < _NEAR:
        return False
    measure_norms(network, inputs)
    moved = _all_moved(network, codes, [x[:_BATCH] for x in inputs])
    if not moved:
        return False
    step = _Step(network, original, divergence, steps, moved)
    rng = np.random.default_rng(seed)
    quantizers = [q for m in (network, original) for q in activation_quantizers(m)]
    pruned = [k for k in kernel_layers(network) if codes and not k.mask.numpy().all()]
    with settled(quantizers), _growing_back(pruned):
        for number in range(steps):
            if until is not None and time.monotonic() > until:
                break
            step(_mixed(inputs, rng))
            if number % _CHOOSE_EVERY == 0 and number < _CHOOSE_UNTIL * steps:
                for kernel in pruned:
                    _choose_zeros(kernel)
            progress("outputs of the whole network", (number + 1) / steps)
    if _distance(network, original, judges, divergence) < _NEARER * distance:
        return True
    network.set_weights(before)
    return False


@contextlib.contextmanager
def _growing_back(pruned: Sequence[CompactKernel]) -> Iterator[None]:
    """Steps that are traced inside also move the weights that are zero."""
    before = [kernel.weight_training for kernel in pruned]
    for kernel in pruned:
        kernel.weight_training = dataclasses.replace(kernel.weight_training, pruned_gradient=1.0)
    try:
        yield
    finally:
        for kernel, how in zip(pruned, before, strict=True):
            kernel.weight_training = how


def _choose_zeros(kernel: CompactKernel) -> None:
    """The smallest weights are zero, as many as before."""
    magnitude = np.abs(keras.ops.convert_to_numpy(kernel.theta))
    kernel.mask.assign(masks.largest(magnitude, int(kernel.mask.numpy().sum())))


def _mixed(inputs: Sequence[np.ndarray], rng: np.random.Generator) -> list[tf.Tensor]:
    """Examples: half as they are, the others with less than half of another one mixed in."""
    first, second = rng.integers(0, len(inputs[0]), (2, _BATCH))
    share = rng.uniform(0.5, 1.0, _BATCH).astype(np.float32)
    share[::2] = 1.0
    found = []
    for x in inputs:
        main = share.reshape(-1, *[1] * (x.ndim - 1))
        found.append(tf.constant(main * x[first] + (1 - main) * x[second]))
    return found


def _outputs(network: keras.Model, batch: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    structured = keras.tree.pack_sequence_as(network.input, list(batch))
    return keras.tree.flatten(network(structured, training=False))


def _distance(
    network: keras.Model, original: keras.Model, batch: list[tf.Tensor], divergence: Divergence
) -> float:
    wanted, given = ([y.numpy() for y in _outputs(m, batch)] for m in (original, network))
    return divergence.between(wanted, given)


class _Moved:
    """A variable, in a unit of its own, so that one rate serves all of them.

    Args:
        variable: what is moved.
        unit: what counts as one for it.
        most: of units, beyond which it does not move; None: as far as it likes.
        mask: 0 for weights that are zero, which move slowly; None: there are none.
    """

    def __init__(
        self,
        variable: keras.Variable,
        unit: float,
        most: float | None = None,
        mask: keras.Variable | None = None,
    ):
        self.variable, self._unit, self._most, self._mask = variable, unit, most, mask
        self.units = keras.Variable(keras.ops.convert_to_numpy(variable) / unit)

    def finish(self, before: tf.Tensor) -> None:
        """Limits what the optimizer has made of `units`, and hands it to the variable."""
        value = tf.convert_to_tensor(self.units)
        if self._mask is not None:
            mask = tf.convert_to_tensor(self._mask)
            value = before + (value - before) * (mask + _GROWTH * (1.0 - mask))
        if self._most is not None:
            # What lies beyond the largest level has no gradient and would never come back.
            value = tf.clip_by_value(value, -self._most, self._most)
        self.units.assign(value)
        self.variable.assign(value * self._unit)


class _Step:
    """One step of Adam."""

    def __init__(
        self,
        network: keras.Model,
        original: keras.Model,
        divergence: Divergence,
        steps: int,
        moved: Sequence[_Moved],
    ):
        self._moved = moved
        warm_up = round(_WARM_UP * steps)
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, max(steps - warm_up, 1), warmup_target=_RATE, warmup_steps=warm_up
        )
        self._optimizer = keras.optimizers.Adam(rate)
        self._optimizer.build([m.units for m in moved])
        self._network, self._original, self._divergence = network, original, divergence
        self._compute = tf.function(self._apply, autograph=False, reduce_retracing=True)

    def __call__(self, batch: list[tf.Tensor]) -> None:
        self._compute(batch)

    def _apply(self, batch: list[tf.Tensor]) -> None:
        wanted = _outputs(self._original, batch)
        with tf.GradientTape() as tape:
            loss = self._divergence.loss(wanted, _outputs(self._network, batch))
        gradients = tape.gradient(
            loss, [m.variable.value for m in self._moved], unconnected_gradients="zero"
        )
        before = [tf.identity(m.units.value) for m in self._moved]
        # Adam's steps do not depend on the gradients' scale, so these need no change of units.
        self._optimizer.apply(gradients, [m.units for m in self._moved])
        for moved, value in zip(self._moved, before, strict=True):
            moved.finish(value)


def _all_moved(network: keras.Model, codes: bool, batch: Sequence[np.ndarray]) -> list[_Moved]:
    """The variables that are moved."""
    kernels = kernel_layers(network)
    left = {id(k.log_range) for k in kernels} | {id(k.theta) for k in kernels}
    found = [_moved_kernel(k) for k in kernels] if codes else []
    owners = [
        layer
        for layer in network.layers
        if len(layer._inbound_nodes) == 1
        and any(id(v) not in left for v in layer.trainable_weights)
    ]
    if not owners:
        return found
    taps = keras.Model(network.inputs, [layer.output for layer in owners])
    spreads = [float(np.std(y)) for y in _outputs(taps, [tf.constant(x) for x in batch])]
    for layer, spread in zip(owners, spreads, strict=True):
        for variable in layer.trainable_weights:
            if id(variable) in left:
                continue
            is_gain = not isinstance(layer, CompactKernel) and variable.name in ("gamma", "alpha")
            size = float(np.sqrt(np.mean(np.square(variable.numpy())))) if is_gain else spread
            found.append(_Moved(variable, _UNIT * size if size > 0 else _UNIT))
    return found


def _moved_kernel(kernel: CompactKernel) -> _Moved:
    bits = kernel.deployed_bits
    step = number_format.step_of(tf.exp(tf.convert_to_tensor(kernel.log_range)), bits)
    shift = number_format.shift_of(tf.convert_to_tensor(kernel.beta), step, bits)
    most = min(float(shift) + integer_levels(bits), float(number_format.LARGEST_CODE))
    return _Moved(kernel.theta, float(step), most, kernel.mask)
