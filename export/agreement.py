"""The gate of `export`: what is written computes what the Keras model computes, or is not written.

Two comparisons on a handful of calibration inputs, both with the Keras model's own values:

1. *Layer by layer.* Each operator is given the Keras model's own values, so that nothing has
   accumulated, and must give the Keras model's next value. The distance is the root mean square
   error of the worst channel, over the root mean square of the tensor (at least one step of its
   8 bits). It may be `EXACT` where the weights are the Keras layer's own integers or there are
   none, and `ROUNDED` where a plain Keras layer's weights were rounded to 8 bits. The first
   operator beyond that is the layer that the error names. A tensor that the file does not compute
   anew must be, up to rounding, what it stands for.
2. *End to end.* TFLM's outputs of the file against those of `model(...)`: the root mean square
   error may be `HONEST` times what rounding to 8 bits costs this network (its fake-quant simulation
   against the Keras model; next to nothing for a finetuned network, which rounds itself), or one
   step of the output if that is more. Beyond that, rounding may have accumulated over many layers:
   if each operator of TFLM is right by itself (`operator_agreement`), `ACCUMULATED` times the
   outputs' standard deviation passes, which is a correlation of 0.99, and so do two steps. And
   never more than `FAR` times it (or two steps): a constant would be as close, so 8 bits do not
   hold the network.

How far honest networks stay from these limits: `benchmarks/results/export_agreement.json`.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from udc_tf.export import operator_agreement, simulation, tflm_check
from udc_tf.export.emitter import laid_out
from udc_tf.export.errors import MismatchError
from udc_tf.export.int8 import Int8Model
from udc_tf.export.integer_network import Quantization, Step
from udc_tf.graph.trace import Graph, TensorRef

EXACT = 0.01
ROUNDED = 0.25
HONEST = 3.0
ACCUMULATED = 0.14
FAR = 1.0
_WORTH_A_WARNING = 0.3
_MOST_INPUTS = 16
_MOST_BYTES = 2**27  # of the Keras model's intermediate values


@dataclasses.dataclass(frozen=True)
class OutputAgreement:
    """How far TFLM is from the Keras model at one output, and how far it may be.

    Attributes:
        distance: root mean square error over the outputs' standard deviation.
        steps: the same error in steps of the output.
        allowed_steps: the largest error that passes.
    """

    distance: float
    steps: float
    allowed_steps: float


def inputs_for(
    exact: Int8Model, samples: Sequence[np.ndarray] | None, count: int
) -> list[np.ndarray]:
    """The first calibration samples, or noise over the inputs' ranges."""
    if samples is not None:
        return [array[:count] for array in samples]
    rng = np.random.default_rng(0)
    inputs = []
    for index in exact.network.inputs:
        low, high = exact.quantizations[index].limits
        shape = (count, *exact.network.values[index].shape[1:])
        inputs.append(rng.uniform(low, high, shape).astype(np.float32))
    return inputs


def check(
    model: keras.Model, exact: Int8Model, samples: Sequence[np.ndarray] | None
) -> dict[str, Any]:
    """Compares the file with the Keras model, layer by layer and end to end.

    Returns:
        What was measured, for the report.

    Raises:
        MismatchError: they are too far apart; the message names the first layer that departs.

    Example:

    >>> from udc_tf.export.int8 import to_int8
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")])
    >>> data = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    >>> check(model, to_int8(model, data), [data])["inputs"]
    8
    """
    network = exact.network
    inputs = inputs_for(exact, samples, _affordable(network.keras_graph))
    tensors = keras_values(network.keras_graph, inputs)
    layers = compare_layers(exact, tensors)
    for layer in layers:
        if layer.distance > layer.allowed:
            raise MismatchError(
                f"The exported network departs from the Keras model at the layer `{layer.name}`: "
                f"given the same inputs, its outputs are {layer.distance:.2g} of their size apart, "
                f"and {layer.allowed:g} is allowed. Nothing was written; please report this layer."
            )
    outputs = _compare_outputs(model, exact, inputs, tensors)
    for output in outputs:
        if output.distance > _WORTH_A_WARNING and output.steps > 1:
            logging.warning(
                "8 bits cost this network much: outputs move by %.2f of their standard deviation. "
                "Finetune it (udc_tf.finetune) before it is deployed.",
                output.distance,
            )
    return {
        "inputs": len(inputs[0]),
        "worst_layer": max((x.distance / x.allowed for x in layers), default=0.0),
        "outputs": [dataclasses.asdict(output) for output in outputs],
    }


def _affordable(graph: Graph) -> int:
    """How many inputs to compare: a handful, fewer where the values of one are large."""
    refs = [ref for node in graph.nodes for ref in keras.tree.flatten(node.outputs)]
    each = 4 * sum(int(np.prod(ref.shape[1:])) for ref in refs)
    return int(np.clip(_MOST_BYTES // max(each, 1), 1, _MOST_INPUTS))


def keras_values(graph: Graph, inputs: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """Every tensor of a traced model, by its id, for a batch of inputs."""
    refs = keras.tree.flatten(graph.inputs)
    held: dict[int, tf.Tensor] = {
        ref.id: tf.constant(array, dtype)
        for ref, array, dtype in zip(refs, inputs, graph.input_dtypes, strict=True)
    }

    def fill(value: Any) -> Any:
        return held[value.id] if isinstance(value, TensorRef) else value

    for node in graph.nodes:
        args, kwargs = keras.tree.map_structure(fill, (node.args, node.kwargs))
        if "training" in inspect.signature(node.layer.call).parameters:
            kwargs["training"] = False  # some layers of augmentation train unless told otherwise
        produced = keras.tree.flatten(node.layer(*args, **kwargs))
        for ref, tensor in zip(keras.tree.flatten(node.outputs), produced, strict=True):
            held[ref.id] = tensor
    return {i: np.asarray(tensor, np.float32) for i, tensor in held.items()}


# Layer by layer.


@dataclasses.dataclass(frozen=True)
class LayerAgreement:
    """An operator's distance from the Keras layer that it stands for."""

    name: str
    distance: float
    allowed: float


def compare_layers(exact: Int8Model, tensors: Mapping[int, np.ndarray]) -> list[LayerAgreement]:
    """One entry for each value of the file that stands for tensors of the Keras model."""
    network = exact.network
    made_by = {
        ref.id: node.name
        for node in network.keras_graph.nodes
        for ref in keras.tree.flatten(node.outputs)
    }
    stands_for: dict[int, list[int]] = {}
    tensors = dict(tensors)
    for tensor, value in network.value_of.items():
        stands_for.setdefault(value, []).append(tensor)
        if value not in network.inputs:
            batch, *sizes = tensors[tensor].shape
            tensors[tensor] = tensors[tensor].reshape(batch, *laid_out((1, *sizes))[1:])
    held: dict[int, Any] = {}
    found: list[LayerAgreement] = []

    def anchor(value: int) -> None:
        """From here on the Keras model's own values, of which there may be several by rounding."""
        first, *others = stands_for[value]
        for other in others:
            apart = _rounding_aside(tensors[first], tensors[other], exact.quantizations[value])
            found.append(LayerAgreement(made_by[other], apart, EXACT))
        held[value] = tf.constant(tensors[stands_for[value][-1]])

    given = keras.tree.flatten(network.keras_graph.inputs)
    for ref, value in zip(given, network.inputs, strict=True):
        if value in stands_for:
            anchor(value)
        else:  # it is laid out first
            held[value] = tf.constant(tensors[ref.id])
    inexact = 0.0  # weights rounded since the last of Keras' values
    for step in network.steps:
        result = simulation.finish(step, simulation.apply(network, step, held), None)
        inexact = max(inexact, _allowed(step))
        if step.output not in stands_for:
            held[step.output] = result
            continue
        theirs = tensors[stands_for[step.output][0]]
        # A quantizer of Keras has rounded already what such a step hands over.
        compare = _rounding_aside if step.kind == "QUANTIZE" else _apart
        apart = compare(result.numpy(), theirs, exact.quantizations[step.output])
        found.append(LayerAgreement(step.name, apart, inexact))
        anchor(step.output)
        inexact = 0.0
    for value in stands_for:
        if value not in held:
            found.append(LayerAgreement(network.values[value].name, np.inf, EXACT))
    return found


def _allowed(step: Step) -> float:
    return ROUNDED if step.kernel is not None and step.kernel.bits is None else EXACT


def _apart(ours: np.ndarray, theirs: np.ndarray, quantization: Quantization) -> float:
    """Error of the worst channel over the size of the tensor."""
    if ours.shape != theirs.shape:
        return np.inf
    size = max(_rms(theirs), float(quantization.scale))
    error = np.square(np.asarray(ours, np.float64) - theirs).reshape(-1, theirs.shape[-1])
    return float(np.sqrt(error.mean(axis=0).max())) / size


def _rounding_aside(before: np.ndarray, after: np.ndarray, quantization: Quantization) -> float:
    """How far `after` is from `before` or from `before` in 8 bits, beyond one step."""
    if before.shape != after.shape:
        return np.inf
    low, high = quantization.limits
    step = float(quantization.scale)
    error = np.minimum(np.abs(after - before), np.abs(after - np.clip(before, low, high)))
    return float(np.maximum(error - step, 0).max()) / max(_rms(before), step)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


# End to end.


def _compare_outputs(
    model: keras.Model,
    exact: Int8Model,
    inputs: Sequence[np.ndarray],
    tensors: Mapping[int, np.ndarray],
) -> list[OutputAgreement]:
    network = exact.network
    called = model(
        keras.tree.pack_sequence_as(network.keras_graph.inputs, list(inputs)), training=False
    )
    expected = [np.asarray(output, np.float64) for output in keras.tree.flatten(called)]
    _check_parts(exact, expected, tensors)
    rounded = simulation.run(network, inputs, exact.quantizations)
    codes = tflm_check.run(exact.content, exact.quantize_inputs(inputs))
    found = []
    for number, index in enumerate(network.outputs):
        quantization, theirs = exact.quantizations[index], expected[number]
        if not np.isfinite(theirs).all():
            raise MismatchError(
                f"The Keras model's outputs `{network.values[index].name}` are not all finite, so "
                "that nothing can be compared with them. Nothing was written."
            )
        ours = quantization.dequantize(codes[number]).reshape(theirs.shape)
        step, spread = float(quantization.scale), float(theirs.std())
        error = _rms(ours - theirs)
        cost_of_8_bits = _rms(rounded[number].reshape(theirs.shape) - theirs)
        allowed = min(max(HONEST * cost_of_8_bits, step), max(FAR * spread, 2 * step))
        accumulated = max(ACCUMULATED * spread, 2 * step)
        if allowed < error <= accumulated and not operator_agreement.first_fault(exact, inputs):
            allowed = accumulated
        found.append(OutputAgreement(error / max(spread, step), error / step, allowed / step))
        if error > allowed:
            raise MismatchError(_explain(exact, inputs, tensors, number, found[-1]))
    return found


def _check_parts(
    exact: Int8Model, expected: Sequence[np.ndarray], tensors: Mapping[int, np.ndarray]
) -> None:
    """Layers that are taken apart (`graph.expansions`) must together still be the model."""
    network = exact.network
    refs = keras.tree.flatten(network.keras_graph.outputs)
    for ref, index, theirs in zip(refs, network.outputs, expected, strict=True):
        if not (np.isfinite(theirs).all() and tensors[ref.id].shape == theirs.shape):
            continue  # said with the outputs
        apart = _apart(tensors[ref.id], theirs, exact.quantizations[index])
        if apart > EXACT:
            raise MismatchError(
                "The layers that the Keras model was taken apart into do not compute what it does: "
                f"at the output `{network.values[index].name}` they are {apart:.2g} of its size "
                f"apart, and {EXACT:g} is allowed. Nothing was written; please report this model."
            )


def _explain(
    exact: Int8Model,
    inputs: Sequence[np.ndarray],
    tensors: Mapping[int, np.ndarray],
    number: int,
    output: OutputAgreement,
) -> str:
    name, fault = _first_departure(exact, inputs, tensors)
    network = exact.network
    remedy = (
        "the file does not compute what it should; please report this layer"
        if fault
        else "8 bits do not hold this network after training; finetune it (udc_tf.finetune)"
    )
    return (
        f"TFLM's outputs `{network.values[network.outputs[number]].name}` are far from the Keras "
        f"model's: {output.steps:.1f} steps of 8 bits apart ({output.distance:.2f} of their "
        f"standard deviation), and {output.allowed_steps:.1f} are allowed. The first layer that "
        f"departs is `{name}`: {remedy}. Nothing was written."
    )


def _first_departure(
    exact: Int8Model, inputs: Sequence[np.ndarray], tensors: Mapping[int, np.ndarray]
) -> tuple[str, bool]:
    """The layer to name, and whether the file is at fault there or 8 bits are."""
    if fault := operator_agreement.first_fault(exact, inputs):
        return fault.name, True
    network = exact.network
    held: dict[int, np.ndarray] = {}
    simulation.run(network, inputs, exact.quantizations, observe=held.__setitem__)
    for step in network.steps:
        for tensor, value in network.value_of.items():
            if value == step.output:
                theirs = tensors[tensor]
                apart = _rms(held[value].reshape(theirs.shape) - theirs)
                if apart > FAR * max(float(theirs.std()), float(exact.quantizations[value].scale)):
                    return step.name, False
    return network.steps[-1].name, False
