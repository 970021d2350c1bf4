"""8-bit activations as TFLite computes them."""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from udc_tf.layers.kernels import Shape
from udc_tf.quantize.any_shape import traced_for_any_shape
from udc_tf.quantize.rounding import round_half_up, round_twice


@contextlib.contextmanager
def settled(quantizers: Iterable["ActivationQuantizer"]) -> Iterator[None]:
    """Quantizers that stay on or off as they are: graphs that are made in it are smaller and fast.

    They round in single precision, once, so a value next to a tie may become the next code. For
    gradients that is as good; exact outputs are those outside.
    """
    chosen = list(quantizers)
    for quantizer in chosen:
        quantizer.settled = quantizer.is_rounding
    try:
        yield
    finally:
        for quantizer in chosen:
            quantizer.settled = None


@contextlib.contextmanager
def held(quantizers: Iterable["ActivationQuantizer"]) -> Iterator[None]:
    """Training steps that are traced inside take for granted which quantizers are on.

    It is for those that track nothing: their graphs have neither a branch nor a running range.
    """
    chosen = [q for q in quantizers if not float(q.tracking.numpy())]
    for quantizer in chosen:
        quantizer.held = quantizer.is_rounding
    try:
        yield
    finally:
        for quantizer in chosen:
            quantizer.held = None


def _trained(inputs: tf.Tensor, low: tf.Tensor, high: tf.Tensor, limited: bool) -> tf.Tensor:
    values = tf.cast(inputs, tf.float32)
    codes = tf.quantization.fake_quant_with_min_max_vars(values, low, high)
    if limited:
        # What lies beyond must find its way back: a wrong probability near 0 has to learn.
        codes = values + tf.stop_gradient(codes - values)
    return tf.cast(codes, inputs.dtype)


@functools.cache
def _trained_if_usable(dtype: tf.DType, limited: bool) -> Callable[..., tf.Tensor]:
    def call(inputs: tf.Tensor, low: tf.Tensor, high: tf.Tensor, usable: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            usable, lambda: _trained(inputs, low, high, limited), lambda: tf.identity(inputs)
        )

    return traced_for_any_shape(call, [dtype, tf.float32, tf.float32, tf.bool])


@functools.cache
def _followed(
    dtype: tf.DType, limit: float | None, momentum: float, hold_peaks: bool
) -> Callable[..., list[tf.Tensor]]:
    """(inputs, minimum, maximum, seen, tracking) -> the first three states as they are next."""

    def call(
        inputs: tf.Tensor,
        old_low: tf.Tensor,
        old_high: tf.Tensor,
        seen: tf.Tensor,
        tracking: tf.Tensor,
    ) -> list[tf.Tensor]:
        # No tf.cond: its graph takes longer to make than smallest and largest values to find.
        values = tf.cast(tf.reshape(tf.stop_gradient(inputs), [-1]), tf.float32)
        low = tf.minimum(tf.reduce_min(values, axis=0), 0.0)
        high = tf.maximum(tf.reduce_max(values, axis=0), 0.0)
        if limit is not None:
            low, high = tf.maximum(low, -limit), tf.minimum(high, limit)
        # All of what the first batch has; nothing while it does not track.
        share = tracking * (1.0 - momentum * seen)
        kept = 1.0 - share
        new_low, new_high = kept * old_low + share * low, kept * old_high + share * high
        if hold_peaks:
            tracks = tracking > 0.5
            new_low = tf.where(tracks, tf.minimum(new_low, low), old_low)
            new_high = tf.where(tracks, tf.maximum(new_high, high), old_high)
        return [new_low, new_high, tf.maximum(seen, tracking)]

    return traced_for_any_shape(call, [dtype, *[tf.float32] * 4])


@keras.saving.register_keras_serializable("udc_tf")
class ActivationQuantizer(keras.layers.Layer):
    """Rounds a tensor to the 256 values that an int8 tensor of a range can hold.

    scale = (maximum - minimum) / 255, and the zero point is nudged to an integer, so that zero is
    one of the values. The range always includes zero. A new layer passes its inputs on unchanged;
    once `enabled` is 1 it quantizes. While `tracking` is 1, training steps move the range towards
    each batch's smallest and largest value. After `round_as_integers`, inference computes what an
    integer network does with the accumulators that its inputs stand for; see
    `udc_tf.finetune.double_rounding`.

    Args:
        momentum: how slowly the range follows the batches. The first batch sets it.
        hold_peaks: for a range that several tensors share (those that a concatenation joins): it
            grows at once and shrinks slowly, so that it covers the widest of them.
        fixed_range: `(minimum, maximum)` for operators whose output scale TFLite prescribes; never
            tracked.
        limit: the range never goes beyond it on either side of zero. For what only goes into a
            function that saturates there: its steps would be coarser than they need be.
        inference_only: do not quantize in training. For a probability that goes into the loss:
            rounded to 0 it would have no gradient.

    Example:

    >>> quantizer = ActivationQuantizer(fixed_range=(0.0, 2.55))
    >>> x = tf.constant([0.006, 1.0, 9.0])
    >>> [round(float(v), 3) for v in quantizer(x)]
    [0.006, 1.0, 9.0]
    >>> _ = quantizer.enabled.assign(1)
    >>> [round(float(v), 3) for v in quantizer(x)]
    [0.01, 1.0, 2.55]
    """

    def __init__(
        self,
        momentum: float = 0.95,
        hold_peaks: bool = False,
        fixed_range: tuple[float, float] | None = None,
        limit: float | None = None,
        inference_only: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if not 0 <= momentum < 1:
            raise ValueError(f"`momentum` must be in [0, 1). Received: {momentum}")
        if fixed_range is not None and not (fixed_range[0] <= 0 < fixed_range[1]):
            raise ValueError(f"`fixed_range` must include zero. Received: {fixed_range}")
        if limit is not None and not limit > 0:
            raise ValueError(f"`limit` must be above zero. Received: {limit}")
        self.momentum = momentum
        self.hold_peaks = hold_peaks
        self.fixed_range = None if fixed_range is None else tuple(fixed_range)
        self.limit = limit
        self.inference_only = inference_only
        self.settled: bool | None = None  # whether it rounds, where that is settled
        self.held: bool | None = None  # whether it rounds in training, where that is known

    def build(self, input_shape: Shape) -> None:
        low, high = self.fixed_range or (0.0, 0.0)

        def scalar(name: str, value: float) -> keras.Variable:
            # Replicas see different batches: their ranges are averaged.
            return self.add_weight(
                name=name,
                shape=(),
                initializer=keras.initializers.Constant(value),
                trainable=False,
                dtype="float32",
                autocast=False,
                aggregation="mean",
            )

        self.minimum = scalar("minimum", low)
        self.maximum = scalar("maximum", high)
        self.enabled = scalar("enabled", 0.0)
        self.tracking = scalar("tracking", 0.0)
        self.seen = scalar("seen", 0.0)
        self.fractions = self.units = None
        # Tensors that share a range have channels of their own.
        if not self.hold_peaks and len(input_shape) and input_shape[-1]:
            self.fractions, self.units = (
                self.add_weight(
                    name=name,
                    shape=(input_shape[-1],),
                    initializer="zeros",
                    trainable=False,
                    dtype="float64",
                    autocast=False,
                    aggregation="only_first_replica",
                )
                for name in ("fractions", "units")
            )

    @property
    def scale(self) -> float:
        """The step between two neighbouring values, as a file has it: a float of 32 bits."""
        return float((self.maximum.numpy() - self.minimum.numpy()) / np.float32(255))

    @property
    def zero_point(self) -> int:
        """The int8 code of zero, -128 to 127."""
        if self.scale == 0:
            return -128
        return round(-float(self.minimum.numpy()) / self.scale) - 128

    @property
    def is_rounding(self) -> bool:
        """Whether it has a range and is switched on."""
        return self.scale > 0 and float(self.enabled.numpy()) > 0.5

    @property
    def rounds_twice(self) -> bool:
        """Whether inference rounds to fractions of a step first."""
        return self.fractions is not None and float(tf.reduce_min(self.fractions)) > 0

    def set_range(self, minimum: float, maximum: float) -> None:
        """Sets the range, widened to include zero, and within `limit`."""
        limit = math.inf if self.limit is None else self.limit
        self.minimum.assign(max(min(float(minimum), 0.0), -limit))
        self.maximum.assign(min(max(float(maximum), 0.0), limit))
        self.seen.assign(1.0)

    def round_as_integers(self, units: float | np.ndarray, fractions: float | np.ndarray) -> None:
        """Lets inference scale accumulators in two roundings.

        Args:
            units: of an accumulator, in steps of the outputs; one per channel, or one for all.
            fractions: into how many parts of a step the first rounding goes.
        """
        if self.units is None or self.fractions is None:
            raise ValueError(f"`{self.name}` has no channels of its own to scale.")
        for variable, value in ((self.units, units), (self.fractions, fractions)):
            variable.assign(np.broadcast_to(value, tuple(variable.shape)))

    def round_once(self) -> None:
        """Forgets units and fractions."""
        if self.fractions is not None:
            self.round_as_integers(0.0, 0.0)

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        if self.settled is not None:
            return self._settled(inputs)
        if training and self.fixed_range is None and self.held is None:
            self._track(inputs)
        if training and self.inference_only:
            return inputs
        low, high = tf.convert_to_tensor(self.minimum), tf.convert_to_tensor(self.maximum)
        limited = self.limit is not None
        if training and self.held is not None:
            return _trained(inputs, low, high, limited) if self.held else tf.identity(inputs)
        usable = (tf.convert_to_tensor(self.enabled) > 0.5) & (high > low)
        if training:
            return _trained_if_usable(inputs.dtype, limited)(inputs, low, high, usable)

        def quantized() -> tf.Tensor:
            values = tf.cast(inputs, tf.float32)
            # Graphs divide by constants by way of their reciprocals: in floats another scale.
            scale = tf.cast(tf.cast(high - low, tf.float64) / 255, tf.float32)
            rounded = self._rounded(values, high, scale)
            values += tf.stop_gradient(rounded - values)
            codes = tf.quantization.fake_quant_with_min_max_vars(values, low, high)
            return tf.cast(codes, inputs.dtype)

        return tf.cond(usable, quantized, lambda: tf.identity(inputs))

    def _settled(self, inputs: tf.Tensor) -> tf.Tensor:
        """Without branches, and without doubles: next to a tie it may round to either side."""
        if not self.settled:
            return tf.identity(inputs)
        low, high = tf.convert_to_tensor(self.minimum), tf.convert_to_tensor(self.maximum)
        values = tf.cast(inputs, tf.float32)
        return tf.cast(
            tf.quantization.fake_quant_with_min_max_vars(values, low, high), inputs.dtype
        )

    def _rounded(self, values: tf.Tensor, high: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """At whole steps, in doubles: fake-quant goes either way near a tie, codes must not."""
        steps = tf.cast(values, tf.float64) / tf.cast(scale, tf.float64)

        def once() -> tf.Tensor:
            return round_half_up(steps)

        if self.fractions is None:
            return tf.cast(once(), tf.float32) * scale
        fractions, units = (tf.convert_to_tensor(v) for v in (self.fractions, self.units))

        def twice() -> tf.Tensor:
            # Floats stand for whole accumulators, a little off; a tie is a tie only without that.
            exact = tf.round(steps / units) * units
            # At the range's end is also what a ReLU6 cut off, which is no whole accumulator. The
            # end is a mean over batches, a float's width beside 6: hence half a step, of one code.
            exact = tf.where(values < high - scale / 2, exact, steps)
            return round_twice(exact, fractions)

        rounded = tf.cond(tf.reduce_min(fractions) > 0, twice, once)
        return tf.cast(rounded, tf.float32) * scale

    def _track(self, inputs: tf.Tensor) -> None:
        followed = _followed(inputs.dtype, self.limit, self.momentum, self.hold_peaks)
        variables = (self.minimum, self.maximum, self.seen)
        states = map(tf.convert_to_tensor, (*variables, self.tracking))
        for variable, value in zip(variables, followed(inputs, *states), strict=True):
            variable.assign(value)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "hold_peaks": self.hold_peaks,
            "fixed_range": self.fixed_range,
            "limit": self.limit,
            "inference_only": self.inference_only,
        }
