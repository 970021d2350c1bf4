"""A network as the list of int8 operators it will be: between the Keras graph and the flatbuffer.

`Value` is a tensor, `Step` an operator, `Kernel` the integers and scales of one. What folds or
fuses is folded and fused here; ranges are known where training gave them.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from udc_tf.export import tflite_file
from udc_tf.graph.trace import Graph

INT8_MIN, INT8_MAX = -128, 127
WEIGHT_BITS = 8  # of a layer that has no bits of its own
WEIGHT_MAX = 127  # codes are symmetric: -128 is never used


@dataclasses.dataclass(frozen=True)
class Quantization:
    """real = scale * (integer - zero_point)."""

    scale: np.float32
    zero_point: int

    @classmethod
    def of_range(cls, low: float, high: float) -> "Quantization":
        """int8 over a range that is widened to include zero; zero becomes one of the 256 values.

        Rounds as TensorFlow's fake-quant does, so that both agree on every value.

        >>> Quantization.of_range(0.0, 2.55)
        Quantization(scale=np.float32(0.01), zero_point=-128)
        """
        first, last = np.float32(min(low, 0.0)), np.float32(max(high, 0.0))
        if last <= first:
            last = first + np.float32(1.0)  # all zero: any scale does
        scale = np.float32((last - first) / np.float32(INT8_MAX - INT8_MIN))
        from_low = INT8_MIN - float(first) / float(scale)
        zero_point = math.floor(from_low + 0.5)
        return cls(scale, min(max(zero_point, INT8_MIN), INT8_MAX))

    @classmethod
    def of_tensor(cls, tensor: tflite_file.Tensor) -> "Quantization":
        """That of an int8 tensor of a file."""
        return cls(np.float32(tensor.scales[0]), int(tensor.zero_points[0]))

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and largest real value."""
        scale = float(self.scale)
        return (INT8_MIN - self.zero_point) * scale, (INT8_MAX - self.zero_point) * scale

    def quantize(self, values: np.ndarray) -> np.ndarray:
        """Nearest integers, saturated; halves go up. In doubles: a float's error decides no tie."""
        scaled = np.asarray(values, np.float64) / float(self.scale)
        codes = np.floor(scaled + 0.5) + self.zero_point
        return np.clip(codes, INT8_MIN, INT8_MAX).astype(np.int8)

    def dequantize(self, codes: np.ndarray) -> np.ndarray:
        """The real values of integers."""
        return (np.asarray(codes, np.float32) - self.zero_point) * self.scale


@dataclasses.dataclass(frozen=True)
class Kernel:
    """Weights of one operator: `codes * scales` along the axis of output channels, and a bias.

    Attributes:
        layer: the Keras layer they belong to.
        codes: int8, in TFLite's layout.
        axis: of the output channels.
        scales: one per channel, or a single one for the whole tensor; batch norm is in them.
        bias: real, one per channel.
        bias_codes: int32, as written; see `bias_rounding`.
        bits: of the codes, as the network says; None for a layer that was not searched.
        collapsed: channels that batch norm all but switched off; see `folding.within_int32`.
        shift: the smallest |code| of the shifted number format; 0 in the plain one.
    """

    layer: str
    codes: np.ndarray
    axis: int
    scales: np.ndarray
    bias: np.ndarray
    bits: int | None = None
    collapsed: tuple[int, ...] = ()
    bias_codes: np.ndarray | None = None
    shift: int = 0

    @property
    def channels(self) -> int:
        return len(self.bias)

    @property
    def written_bias(self) -> np.ndarray:
        """The codes of the bias, once there are any."""
        if self.bias_codes is None:
            raise ValueError(f"The bias of `{self.layer}` is not rounded yet.")
        return self.bias_codes

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.codes))

    def real(self) -> np.ndarray:
        """The weights as real numbers."""
        shape = [1] * self.codes.ndim
        shape[self.axis] = -1
        return (self.codes * np.reshape(self.scales, shape)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Constant:
    """A tensor of numbers in 8 bits beside a step's inputs, zero at zero."""

    codes: np.ndarray
    scale: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Constant":
        """The nearest to real numbers.

        >>> Constant.of(np.array([0.5, -1.27])).codes
        array([  50, -127], dtype=int8)
        """
        scale = float(np.abs(values).max()) / WEIGHT_MAX or 1.0
        return cls(np.round(values / scale).astype(np.int8), scale)

    def real(self) -> np.ndarray:
        return (self.codes * self.scale).astype(np.float32)


@dataclasses.dataclass
class Value:
    """A tensor of the network, batch of one.

    Attributes:
        trained: range that training gave, or that TFLite prescribes; None: to be calibrated.
        follows: index of the value whose scale this one has.
        rounds_twice: whether the Keras network, too, rounds it as the integers do.
        measured_with: the quantizer of a value to be calibrated; those with one have one range.
        limit: of that range, on either side of zero.
    """

    name: str
    shape: tuple[int, ...]
    trained: tuple[float, float] | None = None
    prescribed: bool = False
    follows: int | None = None
    rounds_twice: bool = False
    measured_with: str | None = None
    limit: float = math.inf


@dataclasses.dataclass
class Step:
    """One operator.

    Attributes:
        kind: TFLite's name of it.
        name: of the layer it comes from.
        inputs: indices of values.
        output: index of a value.
        activation: "NONE", "RELU" or "RELU6", fused.
        limits: of an activation that the range of the output makes: beyond it, 8 bits saturate.
        options: what the kind needs besides: strides, padding, sizes.
    """

    kind: str
    name: str
    inputs: tuple[int, ...]
    output: int
    kernel: Kernel | None = None
    activation: str = "NONE"
    limits: tuple[float, float] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def weights(self) -> Kernel:
        """The kernel of a step that has one."""
        if self.kernel is None:
            raise ValueError(f"{self.kind} of `{self.name}` has no weights.")
        return self.kernel


@dataclasses.dataclass
class IntegerNetwork:
    """Steps in an order in which they can be run.

    Attributes:
        graph: the calls of the Keras model that it was made of.
        value_of: id of a tensor of that graph -> index of the value that stands for it, in the
            order of the calls; tensors inside of what folds or fuses have none.
    """

    name: str
    values: list[Value]
    steps: list[Step]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    graph: Graph | None = None
    value_of: Mapping[int, int] = dataclasses.field(default_factory=dict)

    @property
    def keras_graph(self) -> Graph:
        """The calls of the Keras model."""
        if self.graph is None:
            raise ValueError(f"`{self.name}` was not made of a Keras model.")
        return self.graph

    @property
    def kernels(self) -> list[Step]:
        """The steps that have weights."""
        return [step for step in self.steps if step.kernel is not None]

    def input_shapes(self) -> list[tuple[int, ...]]:
        """Without the batch."""
        return [self.values[i].shape[1:] for i in self.inputs]


def bias_scales(step: Step, quantizations: Sequence[Quantization]) -> np.ndarray:
    """Units of a kernel's accumulators: one per channel, or a single one."""
    scales = np.asarray(step.weights.scales, np.float32)
    return np.float32(quantizations[step.inputs[0]].scale) * scales
