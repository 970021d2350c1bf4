"""The compressed network's weights, batch norms and ranges, layer after layer.

Each layer is fitted to the inputs that it gets from the layers before it, which are compressed
already, and to the outputs that the original has.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from udc_tf.compress.compress_settings import CompressSettings
from udc_tf.compress.kernel_matrix import from_matrix, to_matrix
from udc_tf.compress.matrix_rounding import Rounded
from udc_tf.compress.sensitivity import Progress, Sensitivities, matrix_of
from udc_tf.compress.storage_options import Option
from udc_tf.compress.walk import Call, Walk
from udc_tf.finetune.double_rounding import match_double_rounding
from udc_tf.finetune.whole_biases import make_biases_whole
from udc_tf.graph.folds import folds
from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.compact_kernels import CompactKernel
from udc_tf.layers.inventory import activation_quantizers, kernel_layers
from udc_tf.quantize import number_format
from udc_tf.quantize.quantizers import integer_levels

_MOST_GAIN = 2.0  # by which the correction of a batch norm may change a channel, or a half
_SHRINKS = np.linspace(0.5, 1.0, 21)
_VALUES = 1 << 17  # of a tensor, by which its range is chosen


def fit_weights(
    network: keras.Model,
    original: keras.Model,
    options: Mapping[str, Option],
    inputs: list[np.ndarray],
    sensitivities: Sensitivities,
    settings: CompressSettings,
    progress: Progress = lambda what, share: None,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Gives a compact network the weights of its options; activations are rounded from then on.

    Args:
        network: of the bits and non-zeros of `options`; it is changed in place.
        original: the same structure in float.
        options: of each layer with a kernel, by name.
        inputs: one array per input.

    Returns:
        The outputs of both, as they are computed on the way.
    """
    walk = Walk(network, original)
    is_shared = max(walk.calls.values()) > 1
    shared = Walk(original, original).shared_inputs(inputs) if is_shared else {}
    fitter = _Fitter(network, options, sensitivities, settings, walk.calls, shared, progress)
    outputs = walk.run(inputs, fitter.visit)
    for quantizer in activation_quantizers(network):
        quantizer.tracking.assign(0.0)
    make_biases_whole(network)
    match_double_rounding(network)
    return outputs


class _Fitter:
    def __init__(
        self,
        network: keras.Model,
        options: Mapping[str, Option],
        sensitivities: Sensitivities,
        settings: CompressSettings,
        calls: Mapping[str, int],
        shared: Mapping[str, np.ndarray],
        progress: Progress,
    ):
        self._options, self._settings, self._progress = options, settings, progress
        self._calls, self._shared = calls, shared
        self._importance, self._ranges = sensitivities.importance, sensitivities.ranges
        self._norms: dict[str, Any] = {f.kernel.name: f.batch_norm for f in folds(network)}
        self._folded = {norm.name for norm in self._norms.values() if norm is not None}
        self._done, self._count = 0, len(kernel_layers(network))

    def visit(self, call: Call) -> None:
        if call.again:
            return
        if isinstance(call.layer, CompactKernel):
            self._fit_kernel(call)
            self._done += 1
            self._progress("weights", self._done / self._count)
        elif isinstance(call.layer, ActivationQuantizer):
            self._fit_range(call.layer, call.inputs[0])
        elif call.name in self._folded and self._settings.corrections:
            correct_norm(call.layer, call.original, call.inputs[0], call.original_inputs[0])

    def _fit_kernel(self, call: Call) -> None:
        layer, original, how = call.layer, call.original, self._settings
        # Of a layer that is called several times, all calls: what later ones get is not known yet.
        inputs = self._shared.get(layer.name, call.inputs[0])
        wanted_inputs = self._shared.get(layer.name, call.original_inputs[0])
        matrix, _ = matrix_of(
            layer,
            original,
            inputs,
            wanted_inputs,
            self._importance,
            self._norms,
            how.follow and how.reconstruct,
        )
        option = self._options[layer.name]
        if how.reconstruct:
            rounded = matrix.reconstructed(option, how.sweeps)
        else:
            rounded = matrix.nearest(option)
        set_weights(layer, rounded, self._norms.get(layer.name))
        if self._norms.get(layer.name) is None and layer.bias is not None and how.corrections:
            before = to_matrix(layer, keras.ops.convert_to_numpy(original.theta))
            wanted = _mean_output(wanted_inputs, layer, before)
            given = _mean_output(inputs, layer, rounded.weights)
            layer.bias.assign(original.bias.numpy() + wanted - given)

    def _fit_range(self, quantizer: ActivationQuantizer, values: np.ndarray) -> None:
        quantizer.enabled.assign(1.0)
        if quantizer.fixed_range is not None:
            return
        # What joins it later is not known yet.
        if quantizer.hold_peaks or self._calls[quantizer.name] > 1:
            quantizer.set_range(*self._ranges[quantizer.name])
        elif self._settings.fitted_ranges:
            quantizer.set_range(*least_error_range(values))
        else:
            quantizer.set_range(float(values.min()), float(values.max()))


def _mean_output(inputs: np.ndarray, layer: CompactKernel, weights: np.ndarray) -> np.ndarray:
    """The mean of each output channel, without bias and activation."""
    kernel = tf.constant(from_matrix(layer, weights, tuple(layer.theta.shape)), tf.float32)
    total, batch = np.zeros(layer.output_channels(inputs.shape)), 64
    for start in range(0, len(inputs), batch):
        found = layer.apply_kernel(tf.constant(inputs[start : start + batch]), kernel)
        axes = tuple(range(1, len(found.shape) - 1))
        total = total + tf.reduce_sum(tf.reduce_mean(found, axes) if axes else found, 0).numpy()
    return total / len(inputs)


def set_weights(layer: CompactKernel, rounded: Rounded, norm: Any) -> None:
    """Puts rounded weights into a layer, the steps of their columns into its batch norm."""
    steps = np.broadcast_to(
        rounded.levels.steps, (rounded.weights.shape[0], 1, rounded.weights.shape[2])
    )
    codes = np.rint(rounded.weights / steps)
    common = float(np.exp(np.log(steps.astype(np.float64)).mean()))
    bits = layer.deployed_bits
    layer.log_range.assign(np.log(common * integer_levels(bits)))
    step = number_format.step_of(tf.exp(tf.convert_to_tensor(layer.log_range)), bits).numpy()
    shape = tuple(layer.theta.shape)
    layer.theta.assign(from_matrix(layer, codes * step, shape))
    mask = np.ones_like(codes) if rounded.mask is None else rounded.mask
    layer.mask.assign(from_matrix(layer, mask, shape))
    layer.beta.assign(rounded.shift * step)
    layer.deployed.assign(1.0)
    if norm is None:
        return
    scale = step / steps.ravel().astype(np.float64)  # by which the layer's outputs have grown
    if layer.bias is not None:
        layer.bias.assign(layer.bias.numpy() * scale)
    norm.moving_mean.assign(norm.moving_mean.numpy() * scale)
    _multiply_gain(norm, 1 / scale)


def _multiply_gain(norm: Any, factor: np.ndarray) -> None:
    """Changes what a batch norm multiplies its channels with."""
    if norm.gamma is not None:
        norm.gamma.assign(norm.gamma.numpy() * factor)
        return
    variance = (norm.moving_variance.numpy() + norm.epsilon) / factor**2 - norm.epsilon
    norm.moving_variance.assign(np.maximum(variance, 0.0))


def correct_norm(norm: Any, original: Any, inputs: np.ndarray, original_inputs: np.ndarray) -> None:
    """Lets a batch norm give each channel the mean and the deviation that the original's has."""
    axes = tuple(range(inputs.ndim - 1))
    mean, wanted = (x.mean(axis=axes, dtype=np.float64) for x in (inputs, original_inputs))
    deviations = [x.std(axis=axes, dtype=np.float64) for x in (inputs, original_inputs)]
    gains = [
        (1.0 if n.gamma is None else n.gamma.numpy())
        / np.sqrt(n.moving_variance.numpy() + n.epsilon)
        for n in (norm, original)
    ]
    now, before = (np.abs(g) * d for g, d in zip(gains, deviations, strict=True))
    alive = (now > 0) & (before > 0)
    ratio = np.divide(before, now, out=np.ones_like(now), where=alive)
    _multiply_gain(norm, np.clip(ratio, 1 / _MOST_GAIN, _MOST_GAIN))
    gain = (1.0 if norm.gamma is None else norm.gamma.numpy()) / np.sqrt(
        norm.moving_variance.numpy() + norm.epsilon
    )
    # The channel's mean before the offset, in units of what the batch norm now multiplies.
    offset = (wanted - original.moving_mean.numpy()) * gains[1]
    kept = norm.moving_mean.numpy()
    held = np.divide(offset, gain, out=np.zeros_like(mean), where=gain != 0)
    norm.moving_mean.assign(np.where(gain != 0, mean - held, kept))


def least_error_range(values: np.ndarray) -> tuple[float, float]:
    """The range of 256 values with the least squared error; it includes zero.

    >>> least_error_range(np.linspace(0, 1, 1000))
    (0.0, 1.0)
    """
    flat = np.asarray(values, np.float32).ravel()
    low, high = min(float(flat.min()), 0.0), max(float(flat.max()), 0.0)
    if low == high:
        return low, high
    sample = flat[:: max(1, flat.size // _VALUES)]
    best = (np.inf, low, high)
    for shrink in _SHRINKS:
        step = shrink * (high - low) / 255
        ends = np.round(shrink * low / step), np.round(shrink * high / step)
        rest = np.clip(np.rint(sample / step), *ends) * step - sample
        error = float(np.square(rest).mean())
        if error <= best[0]:
            best = error, float(shrink) * low, float(shrink) * high
    return best[1], best[2]
