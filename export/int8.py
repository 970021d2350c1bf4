"""The exact int8 TFLite model of a network.

Lower, quantize, write, then read the file back and compare every integer with the network's own.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from udc_tf.export import (
    bias_rounding,
    code_check,
    dense_scale,
    distinct_kernels,
    folding,
    product_scale,
    ranges,
    simulation,
    split_operators,
    table_scale,
    tflite_file,
    tflite_writer,
    two_tensors,
)
from udc_tf.export.errors import ConversionError
from udc_tf.export.integer_network import IntegerNetwork, Quantization, Step
from udc_tf.export.lowering import lower
from udc_tf.export.tflite_file import Operator, TFLiteFile
from udc_tf.training.divergence import not_finite


@dataclasses.dataclass(frozen=True)
class Int8Model:
    """A .tflite and what it was made of.

    Attributes:
        content: the bytes of the .tflite.
        network: its operators, in the file's order.
        quantizations: one per value of the network.
        shifts: layer -> how many steps its second tensor, of signs, counts for.
    """

    content: bytes
    network: IntegerNetwork
    quantizations: tuple[Quantization, ...]
    shifts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def reference(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """int8 outputs of the fake-quant network for real inputs, first axis the batch."""
        outputs = simulation.run(self.network, inputs, self.quantizations)
        indices = self.network.outputs
        return [self.quantizations[i].quantize(o) for i, o in zip(indices, outputs, strict=True)]

    def quantize_inputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """int8 inputs for real ones."""
        indices = self.network.inputs
        return [self.quantizations[i].quantize(x) for i, x in zip(indices, inputs, strict=True)]


DEPLOYMENTS = ("single", "two_tensors")


def to_int8(
    model: keras.Model, calibration: Any = None, deployment: str = "single", copy: bool = True
) -> Int8Model:
    """The int8 TFLite model of `model`.

    Ranges of activations come from the model's activation quantizers; `calibration` serves the
    tensors that have none.

    Args:
        model: a compact network, or one of plain Keras layers.
        calibration: an array, a list or dictionary of arrays, a dataset or batches.
        deployment: "single", one integer tensor per layer; "two_tensors", see `two_tensors`.
        copy: as for `trace`: False if nobody else needs the model.

    Raises:
        ConversionError: a layer has no int8 operator, or the file does not hold the integers.
        CalibrationError: ranges are missing and the data do not give them.

    Example:

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")])
    >>> exact = to_int8(model, calibration=np.ones((1, 4), "float32"))
    >>> exact.network.steps[0].kernel.codes.shape
    (2, 4)
    """
    if deployment not in DEPLOYMENTS:
        raise ValueError(f"`deployment` must be one of {DEPLOYMENTS}. Received: {deployment!r}")
    if (bad := not_finite(model)) is not None:
        raise ConversionError(
            f"`{bad}` has values that are not finite: the training diverged. Train anew with a "
            "smaller learning rate."
        )
    network, shifts = lower(model, copy), {}
    if deployment == "two_tensors":
        shifts, network = two_tensors.shifts(network), two_tensors.split(network)
    samples = None
    if calibration is not None:
        samples = ranges.take_samples(calibration, network, getattr(model, "input", None))
    network, quantizations = ranges.quantize_values(network, samples)
    network, quantizations = split_operators.split(network, quantizations)
    product_scale.settle(network, quantizations)
    table_scale.settle(network, quantizations)
    for step in network.kernels:
        scales = [quantizations[i].scale for i in (step.inputs[0], step.output)]
        step.kernel = folding.within_int32(step.weights, *scales)
        if step.kind == "FULLY_CONNECTED":
            step.kernel = dense_scale.settle(step.weights, *scales)
    distinct_kernels.keep_apart(network.kernels, quantizations)
    bias_rounding.round_biases(network, quantizations, samples)
    content = tflite_writer.write(network, quantizations)
    exact = Int8Model(content, network, tuple(quantizations), shifts)
    verify(exact)
    for check in checked_codes(model, exact):
        names = (check.layer, check.layer + two_tensors.SUFFIX)
        collapsed = {c for s in network.kernels if s.name in names for c in s.weights.collapsed}
        # Of two tensors, one may have collapsed alone.
        different = 0 if check.layer in shifts else check.different
        if different or check.collapsed + check.different > len(collapsed):
            raise ConversionError(f"The file does not hold the integers of the network: {check}")
    return exact


def checked_codes(model: keras.Model, exact: Int8Model) -> list[code_check.CodeCheck]:
    """The file's integers against those that the Keras layers report, channel by channel."""
    layers = []
    for index, step in enumerate(exact.network.steps):
        if step.kernel is not None:
            terms = [(index, 1)]
            if step.name in exact.shifts:
                terms.append((index + 1, exact.shifts[step.name]))  # its signs come next
            layers.append((terms, step.name))
    return code_check.compare_codes(model, exact.content, layers)


def verify(model: Int8Model) -> None:
    """Reads the file back and compares codes, non-zeros, scales and biases with the network.

    Raises:
        ConversionError: with the first layer that differs, and how.
    """
    file = tflite_file.read(model.content)
    network = model.network
    if [o.kind for o in file.operators] != [s.kind for s in network.steps]:
        raise ConversionError("The file's operators are not those of the network.")
    for operator, step in zip(file.operators, network.steps, strict=True):
        _verify_value(file, operator.outputs[0], model.quantizations[step.output], step)
        if step.kernel is not None:
            _verify_kernel(file, operator, step)


def _verify_value(file: TFLiteFile, index: int, quantization: Quantization, step: Step) -> None:
    tensor = file.tensors[index]
    if tensor.scales.tolist() != [float(quantization.scale)] or tensor.zero_points.tolist() != [
        quantization.zero_point
    ]:
        raise ConversionError(
            f"The output of `{step.name}` should have {quantization}. Received: scales "
            f"{tensor.scales}, zero points {tensor.zero_points}"
        )


def _verify_kernel(file: TFLiteFile, operator: Operator, step: Step) -> None:
    weights, kernel = file.tensors[operator.inputs[1]], step.weights
    if weights.data is None or weights.data.dtype != np.int8:
        raise ConversionError(f"`{step.name}` has no int8 weights. Received: {weights.type}")
    if weights.data.shape != kernel.codes.shape or (weights.data != kernel.codes).any():
        differing = "its shape"
        if weights.data.shape == kernel.codes.shape:
            differing = f"{int((weights.data != kernel.codes).sum())} codes"
        raise ConversionError(f"The weights of `{step.name}` differ from the network: {differing}.")
    if np.count_nonzero(weights.data) != kernel.nonzeros or weights.zero_points.any():
        raise ConversionError(f"The weights of `{step.name}` lost zeros.")
    expected = np.float32(kernel.scales)
    if weights.scales.shape != expected.shape or (weights.scales != expected).any():
        raise ConversionError(
            f"The scales of `{step.name}` differ. Received: {weights.scales}, not {expected}"
        )
    bias = file.tensors[operator.inputs[-1]]
    if np.any(bias.data != kernel.written_bias):
        raise ConversionError(f"The bias of `{step.name}` differs.")
