"""What every option of every layer costs at the network's outputs, measured on data.

Of each option the error of the layer's outputs is computed: with the second moments of its inputs,
for weights that are rounded and pruned as they would be, and weighted by how much each channel
matters (`fisher`). What that means at the network's outputs is measured for two options per layer,
with this layer changed alone; the effects of its other options follow from these two.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from udc_tf.compact.summary import entropy_of
from udc_tf.compress import input_moments
from udc_tf.compress.kernel_matrix import from_matrix, to_matrix
from udc_tf.compress.matrix_rounding import Matrix, rounded_all
from udc_tf.compress.output_divergence import Divergence
from udc_tf.compress.storage_options import Option
from udc_tf.compress.walk import Call, Walk
from udc_tf.graph.folds import folds
from udc_tf.layers.activation_quantizer import ActivationQuantizer, settled
from udc_tf.layers.compact_kernels import CompactKernel
from udc_tf.layers.inventory import activation_quantizers

_PROBED = (0.2, 0.5)  # of the options in the order of their errors
_BATCH = 64
_LEAST = 1e-9
_STEEPEST = 1.5  # how much faster than its error a layer's effect may grow

Progress = Callable[[str, float], None]  # what is done, and how much of it


@dataclasses.dataclass(frozen=True)
class LayerSensitivity:
    """The options of one layer.

    Attributes:
        harms: of each option, the divergence at the network's outputs.
        entropies: of each option's integers, in bits per weight.
        measured: whether `harms` have been compared with the network's outputs.
    """

    options: tuple[Option, ...]
    harms: tuple[float, ...]
    entropies: tuple[float, ...]
    measured: bool


@dataclasses.dataclass(frozen=True)
class Sensitivities:
    """Of a whole network.

    Attributes:
        layers: by name.
        importance: of the output channels of each layer, by name.
        ranges: of the tensors, smallest and largest value, by the name of their quantizer.
    """

    layers: Mapping[str, LayerSensitivity]
    importance: Mapping[str, np.ndarray]
    ranges: Mapping[str, tuple[float, float]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "layers": {n: dataclasses.asdict(s) for n, s in self.layers.items()},
            "importance": {n: np.asarray(v).tolist() for n, v in self.importance.items()},
            "ranges": {n: list(v) for n, v in self.ranges.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Sensitivities":
        layers = {
            name: LayerSensitivity(
                tuple(Option(int(o["bits"]), float(o["nonzeros"])) for o in row["options"]),
                tuple(map(float, row["harms"])),
                tuple(map(float, row["entropies"])),
                bool(row["measured"]),
            )
            for name, row in values["layers"].items()
        }
        importance = {n: np.asarray(v, np.float64) for n, v in values["importance"].items()}
        ranges = {n: (float(v[0]), float(v[1])) for n, v in values["ranges"].items()}
        return cls(layers, importance, ranges)


@dataclasses.dataclass(frozen=True)
class _Probe:
    """A layer's kernel and mean, rounded, and what its error says of it."""

    kernel: np.ndarray
    mean_change: np.ndarray
    error: float


def measure(
    original: keras.Model,
    options: Mapping[str, tuple[Option, ...]],
    importance: Mapping[str, np.ndarray],
    inputs: Sequence[np.ndarray],
    divergence: Divergence,
    *,
    probe_examples: int,
    until: float | None = None,
    progress: Progress = lambda what, share: None,
) -> Sensitivities:
    """The sensitivities of a network in float.

    Args:
        original: of `CompactKernel` layers with 32 bits.
        options: of each layer, by name.
        importance: of its channels.
        inputs: one array per input.
        divergence: of the outputs.
        probe_examples: with how many, effects are measured at the outputs; 0: not at all.
        until: no such measurement begins after that (`time.monotonic`).
        progress: is told what is done.
    """
    norms = {f.kernel.name: f.batch_norm for f in folds(original)}
    errors: dict[str, np.ndarray] = {}
    entropies: dict[str, tuple[float, ...]] = {}
    probes: dict[str, list[_Probe]] = {}
    ranges: dict[str, tuple[float, float]] = {}

    def visit(call: Call) -> None:
        layer = call.layer
        if isinstance(layer, ActivationQuantizer):
            low, high = float(call.inputs[0].min()), float(call.inputs[0].max())
            before = ranges.get(layer.name, (0.0, 0.0))
            ranges[layer.name] = min(low, before[0]), max(high, before[1])
        if not isinstance(layer, CompactKernel) or call.again:
            return
        given = shared.get(layer.name, call.inputs[0])
        matrix, mean = matrix_of(layer, layer, given, None, importance, norms)
        rounded = rounded_all(matrix, options[layer.name])
        errors[layer.name] = np.array([matrix.error(r) for r in rounded])
        entropies[layer.name] = tuple(_entropy(r) for r in rounded)
        order = np.argsort(errors[layer.name])
        probes[layer.name] = [
            _Probe(
                from_matrix(layer, rounded[i], tuple(layer.theta.shape)),
                np.einsum("gk,gkn->gn", mean, matrix.weights - rounded[i]).ravel(),
                float(errors[layer.name][i]),
            )
            for i in {int(order[round(share * (len(order) - 1))]) for share in _PROBED}
        ]
        progress("errors of all options", len(errors) / len(options))

    walk = Walk(original, original)
    shared = walk.shared_inputs(inputs)
    walk.run(inputs, visit)
    effects: dict[str, list[tuple[float, float]]] = {}
    if probe_examples:
        few = [x[:probe_examples] for x in inputs]
        with settled(activation_quantizers(original)):
            effects = _effects(original, probes, norms, few, divergence, until, progress)
    every = [pair for pairs in effects.values() for pair in pairs] or [(1.0, 1.0)]
    typical = float(np.exp(np.mean([np.log(effect / error) for error, effect in every])))
    layers = {
        name: LayerSensitivity(
            options[name],
            tuple(_harms(found, effects.get(name), typical).tolist()),
            entropies[name],
            name in effects,
        )
        for name, found in errors.items()
    }
    return Sensitivities(layers, importance, ranges)


def matrix_of(
    layer: CompactKernel,
    original: CompactKernel,
    inputs: np.ndarray,
    original_inputs: np.ndarray | None,
    importance: Mapping[str, np.ndarray],
    norms: Mapping[str, keras.layers.BatchNormalization | None],
    follow: bool = False,
) -> tuple[Matrix, np.ndarray]:
    """A layer's kernel with the moments of its inputs, and the mean of these."""
    norm = norms.get(layer.name)
    corrected = norm is not None or layer.bias is not None  # then what changes in the mean
    found = input_moments.measure(layer, inputs, original_inputs, centred=corrected)
    weights = to_matrix(layer, keras.ops.convert_to_numpy(original.theta)).astype(np.float64)
    matrix = Matrix.of(weights, found, importance[layer.name], norm is not None, follow)
    return matrix, found.mean


def _entropy(rounded: np.ndarray) -> float:
    """Of numbers that are levels of their column each."""
    steps = np.where(rounded != 0, np.abs(rounded), np.inf).min(axis=1, keepdims=True)
    scaled = np.where(np.isfinite(steps), rounded / np.where(np.isfinite(steps), steps, 1), 0)
    return entropy_of(np.round(scaled * 64).astype(np.int64))


def _harms(
    errors: np.ndarray, effects: Sequence[tuple[float, float]] | None, typical: float
) -> np.ndarray:
    """Effects of all options, from those that were measured: a line through them in logarithms."""
    if not effects:
        return typical * errors
    points = np.log(np.asarray(effects))
    (error, effect), spread = points.mean(axis=0), np.ptp(points, axis=0)
    steepness = spread[1] / spread[0] if spread[0] > 0 else 1.0
    steepness = float(np.clip(steepness, 1 / _STEEPEST, _STEEPEST))
    return np.exp(effect + steepness * (np.log(np.maximum(errors, _LEAST)) - error))


def _effects(
    network: keras.Model,
    probes: Mapping[str, Sequence[_Probe]],
    norms: Mapping[str, keras.layers.BatchNormalization | None],
    inputs: Sequence[np.ndarray],
    divergence: Divergence,
    until: float | None,
    progress: Progress,
) -> dict[str, list[tuple[float, float]]]:
    """Layer -> what was computed and what is measured at the outputs, for each of its probes."""
    run = tf.function(
        lambda batch: network(batch, training=False), autograph=False, reduce_retracing=True
    )

    def outputs() -> list[np.ndarray]:
        parts = []
        for start in range(0, len(inputs[0]), _BATCH):
            batch = [tf.convert_to_tensor(x[start : start + _BATCH]) for x in inputs]
            found = run(keras.tree.pack_sequence_as(network.input, batch))
            parts.append([y.numpy() for y in keras.tree.flatten(found)])
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    wanted = outputs()
    effects: dict[str, list[tuple[float, float]]] = {}
    for number, (name, of_layer) in enumerate(probes.items()):
        if until is not None and time.monotonic() > until:
            break
        effects[name] = []
        for probe in of_layer:
            with _changed(network.get_layer(name), norms.get(name), probe):
                found = divergence.between(wanted, outputs())
            effects[name].append((max(probe.error, _LEAST), max(found, _LEAST)))
        progress("effects at the outputs", (number + 1) / len(probes))
    return effects


class _changed:
    """A layer with a probe's weights, and its mean corrected, while the context lasts."""

    def __init__(self, layer: CompactKernel, norm: Any, probe: _Probe):
        self._new: list[tuple[Any, np.ndarray]] = [(layer.theta, probe.kernel)]
        if norm is not None:
            self._new.append((norm.moving_mean, norm.moving_mean.numpy() - probe.mean_change))
        elif layer.bias is not None:
            self._new.append((layer.bias, layer.bias.numpy() + probe.mean_change))
        self._old = [(variable, variable.numpy()) for variable, _ in self._new]

    def __enter__(self) -> None:
        for variable, value in self._new:
            variable.assign(value)

    def __exit__(self, *_: object) -> None:
        for variable, value in self._old:
            variable.assign(value)
