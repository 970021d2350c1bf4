"""What each operator of a network reads, moves and computes on an Ethos-U.

The multipliers work off micro-blocks of output: so many rows, columns and channels at once. For
each of them they take as many cycles as its weights, padding included, make them: this is what
`multiplied_weights` counts. Few positions do not go faster than weights can be decoded; the output
stage has its own pace, and so has the memory that weights come from.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from udc_tf.cost.accelerators import family, require_accelerator
from udc_tf.cost.counts import CountMaps, Counts
from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.flash import BoundFlash
from udc_tf.cost.padding import Padding, round_up
from udc_tf.cost.priced_network import Plan, Step
from udc_tf.quantize.quantizers import FLOAT_BITS

_FACTOR = 1.15  # what Vela counts over the formula, where nothing was measured
_SUMS = ("ADD", "SUB")
_POOLS = ("AVERAGE_POOL_2D", "MAX_POOL_2D")
_MEAN = "MEAN"  # which Vela makes a depthwise convolution of, with weights that are all alike
_SCALE_RECORD = 10.0  # bytes per channel


@dataclasses.dataclass(frozen=True)
class Engine:
    """How fast the parts of an accelerator are.

    Attributes:
        rows, columns, channels: of a micro-block.
        cores: that share the output channels.
        output: cycles of the output stage per element.
        weights: bytes of weights per cycle from where they are stored.
    """

    rows: int
    columns: int
    channels: int
    cores: int
    output: float
    weights: float

    @classmethod
    def of(cls, accelerator: str) -> "Engine":
        """By Vela's name; the memories are those of its default system for the family.

        >>> Engine.of("ethos-u55-128").output
        0.5
        """
        require_accelerator(accelerator)
        macs = int(accelerator.rpartition("-")[2])
        channels = 4 if macs == 32 else 8
        cores = 2 if accelerator == "ethos-u65-512" else 1
        positions = max(macs // cores // (8 * channels), 1)
        rows = 2 ** (int(math.log2(positions)) // 2)
        flash = family(accelerator) == "ethos-u55"
        return cls(rows, positions // rows, channels, cores, 64 / macs, 1.0 if flash else 12.0)


class StepCosts:
    """Cycles and encoded weights of all steps of a network, for samples of its decisions.

    Args:
        plan: the network.
        accelerator: Vela's name of the NPU.
        model: what was fitted.

    Raises:
        ValueError: the order or the sizes of the network's tensors are not known, or it has
            weights that no Ethos-U takes.
    """

    def __init__(self, plan: Plan, accelerator: str, model: DeviceModel):
        if not plan.steps:
            raise ValueError(
                "Working memory and cycles are known for functional models with known image sizes. "
                "Received: another one"
            )
        for layer in plan.layers:
            if FLOAT_BITS in (layer.options.bits or ()):
                raise ValueError(
                    f"An Ethos-U has no {FLOAT_BITS}-bit weights. Take bits up to 8. Received: "
                    f"bits={layer.options.bits} for the layer `{layer.name}`"
                )
        self.plan, self.model, self.engine = plan, model, Engine.of(accelerator)
        padding = Padding.of(accelerator)
        self.maps = CountMaps(plan, model.size.tables, padding=padding, steps=True)
        self._flash = BoundFlash(self.maps, model.size)
        steps = plan.steps
        self._kernel = np.asarray([s.layer is not None for s in steps], np.float32)
        mixing = [s.layer is not None and plan.layers[s.layer].inputs is not None for s in steps]
        self._mixing = np.asarray(mixing, np.float32)
        self._layer = np.asarray([s.layer or 0 for s in steps])
        self._part = np.asarray([s.part or 0 for s in steps])
        self._output = np.asarray([s.output for s in steps])
        self._means = np.asarray([self._mean_bytes(s) for s in steps], np.float32)
        fitted = [model.steps.get(s.name, (_FACTOR, 0.0)) for s in steps]
        self._factor, self._offset = np.asarray(fitted, np.float32).T

    def encoded(self, counts: Counts) -> Any:
        """Bytes of each step's weights and scales, [..., steps]."""
        stored = self._flash.layer_bytes(counts) - counts.present * self.model.size.per_operator
        encoded = self._kernel * take(stored, self._layer)
        if not self._means.any():
            return encoded
        return encoded + self._means * take(counts.part_channels, self._part)

    def outputs(self, counts: Counts) -> Any:
        """Channels that each step's kernel makes from all of its inputs, [..., steps]; else 0."""
        return self._mixing * take(counts.outputs, self._layer)

    def formula(self, counts: Counts) -> Any:
        """Cycles of each step by the formula alone, [..., steps]."""
        work = take(counts.multiplied_weights, self._layer)
        outputs = take(counts.padded_outputs, self._layer)
        per_weight, per_output = self._kernel_rates
        kernel = larger(work * per_weight, outputs * per_output)
        kernel = larger(kernel, self.encoded(counts) / self.engine.weights)
        # An activation that is an operation of its own goes over all elements once more.
        kernel += 2 * per_output * take(counts.narrow_outputs, self._layer)
        made = take(counts.tensor_bytes, self._output)
        return self._kernel * kernel + (1.0 - self._kernel) * made * self._part_rates

    def cycles(self, counts: Counts) -> Any:
        """Cycles of each step as Vela should count them, [..., steps]."""
        fitted = self._factor * self.formula(counts) + self._offset
        return counts.step_present * larger(fitted, 0.0 * fitted)

    @functools.cached_property
    def _kernel_rates(self) -> tuple[np.ndarray, np.ndarray]:
        """Cycles for each coded weight, and for each output channel, of the steps with kernels."""
        weights, outputs = [], []
        for step in self.plan.steps:
            depthwise = step.layer is not None and self.plan.layers[step.layer].inputs is None
            blocks = max(self._blocks(step), 8)  # weights are decoded at a pace of their own
            together = self.engine.channels * (1 if depthwise else 8) * self.engine.cores
            weights.append(blocks / together)
            outputs.append(math.prod(step.image) * self.engine.output)
        return np.asarray(weights, np.float32), np.asarray(outputs, np.float32)

    @functools.cached_property
    def _part_rates(self) -> np.ndarray:
        """Cycles for each byte that the steps without kernels make."""
        return np.asarray([self._part_rate(step) for step in self.plan.steps], np.float32)

    def _part_rate(self, step: Step) -> float:
        positions = max(math.prod(step.image), 1)
        window = max(math.prod(step.source) / positions, 1.0)
        if step.operator == _MEAN:
            return max(self._blocks(step), 8) * round_up(round(window), 4) / self.engine.channels
        if step.operator in _POOLS:
            blocks = self._blocks(step) / positions
            return blocks * max(window, 4.0) * 4 / self.engine.channels
        return self.engine.output * (3 if step.operator in _SUMS else window)

    @staticmethod
    def _mean_bytes(step: Step) -> float:
        """Bytes per channel of a mean's weights, a bit each, and scales; 0 for other steps."""
        if step.operator != _MEAN:
            return 0.0
        return math.prod(step.source) / max(math.prod(step.image), 1) / 8 + _SCALE_RECORD

    def _blocks(self, step: Step) -> int:
        height, width = step.image
        return -(-height // self.engine.rows) * -(-width // self.engine.columns)


def take(values: Any, indices: np.ndarray) -> Any:
    """Entries along the last axis, of an array or a tensor."""
    if isinstance(values, np.ndarray):
        return values[..., indices]
    return tf.gather(values, indices, axis=-1)


def take_or_none(values: Any, indices: Sequence[int | None]) -> Any:
    """Entries along the last axis; 0 where there is none.

    >>> take_or_none(np.array([5.0, 6.0]), [1, None]).tolist()
    [6.0, 0.0]
    """
    there = np.asarray([index is not None for index in indices], np.float32)
    return there * take(values, np.asarray([index or 0 for index in indices]))


def larger(one: Any, other: Any) -> Any:
    """The larger of two, element by element, of arrays or tensors."""
    if tf.is_tensor(one) or tf.is_tensor(other):
        return tf.maximum(one, other)
    return np.maximum(one, other)
