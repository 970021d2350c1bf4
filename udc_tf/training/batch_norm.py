"""Batch norm in trainings of ours: fast steps, and statistics of one configuration.

The samples of a search leave a mixture of statistics behind; before a single configuration is
judged they are measured again.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf


def batch_norm_layers(model: keras.Model) -> list[keras.layers.BatchNormalization]:
    found = []
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            found.append(layer)
        elif isinstance(layer, keras.Model):
            found.extend(batch_norm_layers(layer))
    return found


def measure_statistics(
    layers: list[keras.layers.BatchNormalization],
    run: Callable[[object], object],
    batches: Iterable[object],
) -> int:
    """Sets the moving statistics to their mean over `batches`; `run` must call with training=True.

    Returns how many batches there were.
    """
    momenta = [layer.momentum for layer in layers]
    # A moving average with the momentum i/(i+1) is the plain mean of what was seen. In a variable,
    # so that `run` may be a graph.
    momentum = tf.Variable(0.0, trainable=False, name="share_of_the_past")
    count = 0
    try:
        for layer in layers:
            layer.momentum = momentum
        for batch in batches if layers else ():
            momentum.assign(count / (count + 1))
            run(batch)
            count += 1
    finally:
        for layer, value in zip(layers, momenta, strict=True):
            layer.momentum = value
    return count


@contextlib.contextmanager
def unchanged(model: keras.Model) -> Iterator[None]:
    """Puts back, at the end, all that calls in training mode change: statistics and random states.

    Replicas of a distributed model have values of their own, and get them back.
    """
    variables = model.non_trainable_variables
    strategy = model.distribute_strategy

    def put_back(values: list[np.ndarray]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    kept = strategy.run(lambda: [tf.identity(v.value) for v in variables])
    try:
        yield
    finally:
        strategy.run(put_back, args=(kept,))


@contextlib.contextmanager
def fused(model: keras.Model) -> Iterator[None]:
    """Steps that are traced inside normalize images by TensorFlow's fused operation.

    Keras takes some fifty small operations for it, forward and back, which need two to three times
    as long. What is computed is the same, but for the order of sums.
    """
    layers: list[Any] = [bn for bn in batch_norm_layers(model) if _can_be_fused(bn)]
    for layer in layers:
        layer.call = functools.partial(_fused_call, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call


_SMALLEST_EPSILON = 1.001e-5  # that GPUs take


def _can_be_fused(layer: Any) -> bool:
    kind = type(layer) is keras.layers.BatchNormalization and "call" not in vars(layer)
    special = getattr(layer, "renorm", False) or layer.synchronized
    return kind and not special and layer.epsilon >= _SMALLEST_EPSILON


def _fused_call(
    layer: Any, inputs: tf.Tensor, training: bool | None = None, mask: Any = None
) -> tf.Tensor:
    is_image = len(inputs.shape) == 4 and layer.axis in (-1, 3) and inputs.dtype.size <= 4
    if not (training and layer.trainable and is_image) or mask is not None:
        return type(layer).call(layer, inputs, training=training, mask=mask)
    values, channels = tf.cast(inputs, tf.float32), inputs.shape[-1]
    gamma, beta = (
        tf.fill([channels], default) if variable is None else tf.convert_to_tensor(variable)
        for variable, default in ((layer.gamma, 1.0), (layer.beta, 0.0))
    )
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=values,
        scale=gamma,
        offset=beta,
        mean=tf.zeros([0]),
        variance=tf.zeros([0]),
        epsilon=layer.epsilon,
        is_training=True,
    )
    seen = _Seen(layer, mean, variance, tf.size(values))
    passes = _passes()
    if passes:
        passes[-1].add(seen)
    else:
        _follow([layer], [_statistics([seen])])
    return tf.cast(outputs, layer.compute_dtype)


class _Seen(NamedTuple):
    """What one call of a layer saw; the variance is the population's."""

    layer: keras.layers.BatchNormalization
    mean: tf.Tensor
    variance: tf.Tensor
    size: tf.Tensor  # numbers that were normalized


class Pass:
    """What the layers saw in a forward pass, which moving statistics have yet to follow.

    Attributes:
        found: means, then variances as the moving ones take them; one tensor for all layers, and a
            further one from each layer on that is called again.
    """

    def __init__(self) -> None:
        self._seen: list[list[_Seen]] = []
        self.found: list[tf.Tensor] = []

    def add(self, seen: _Seen) -> None:
        if not self._seen or any(other.layer is seen.layer for other in self._seen[-1]):
            self._seen.append([])
        self._seen[-1].append(seen)

    def end(self) -> None:
        self.found = [_statistics(seen) for seen in self._seen]

    @property
    def layers(self) -> list[list[keras.layers.BatchNormalization]]:
        """Those of each of `found`."""
        return [[s.layer for s in seen] for seen in self._seen]


_active = threading.local()  # a replica has a thread of its own


def _passes() -> list[Pass]:
    return _active.__dict__.setdefault("passes", [])


@contextlib.contextmanager
def seeing() -> Iterator[Pass]:
    """Moving statistics of layers called inside stay; what they are to `follow` is collected.

    Some ten operations on long vectors do what else are that many for each layer.
    """
    _passes().append(Pass())
    try:
        yield _passes()[-1]
        _passes()[-1].end()
    finally:
        _passes().pop()


@contextlib.contextmanager
def one_pass() -> Iterator[None]:
    """Moving statistics of all layers called inside follow together, at the end."""
    with seeing() as seen:
        yield
    follow(seen.layers, [seen.found])


def follow(
    layers: Sequence[Sequence[keras.layers.BatchNormalization]],
    passes: Sequence[Sequence[tf.Tensor]],
) -> None:
    """Moving statistics take their share of what each pass in turn has found, as Keras does it.

    Args:
        layers: as `Pass.layers`, the same in all passes.
        passes: what each has `found`.
    """
    if len(layers) == 1:
        _follow(layers[0], [found for (found,) in passes])
        return
    for found in passes:
        for together, part in zip(layers, found, strict=True):
            _follow(together, [part])


def _statistics(seen: Sequence[_Seen]) -> tf.Tensor:
    channels = [s.mean.shape[0] for s in seen]
    # The variance of the population is told, that of the batch is what Keras keeps.
    counts = tf.cast(tf.stack([s.size for s in seen]), tf.float32) / np.asarray(
        channels, np.float32
    )
    variances = tf.concat([s.variance for s in seen], axis=0)
    variances *= tf.gather((counts - 1.0) / counts, np.repeat(np.arange(len(seen)), channels))
    return tf.concat([*(s.mean for s in seen), variances], axis=0)


def _follow(layers: Sequence[keras.layers.BatchNormalization], found: Sequence[tf.Tensor]) -> None:
    """One after the other, of which only the end is kept."""
    kept: list[Any] = [
        *(layer.moving_mean for layer in layers),
        *(layer.moving_variance for layer in layers),
    ]
    channels = [variable.shape[0] for variable in kept]
    layer_of = np.repeat(np.tile(np.arange(len(layers)), 2), channels)
    momentum = tf.gather(tf.stack([layer.momentum for layer in layers]), layer_of)
    values = tf.concat([tf.convert_to_tensor(v) for v in kept], axis=0)
    for one in found:
        values = values * momentum + one * (1.0 - momentum)
    for variable, value in zip(kept, tf.split(values, channels), strict=True):
        variable.assign(value)
