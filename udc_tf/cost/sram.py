"""Working memory, as Vela plans it: the most that is alive at the same time.

A step needs the tensors that are alive while it runs, each in bricks of 16 channels, its buffered
weights, and those of the step that comes next, which are fetched meanwhile. Vela buffers weights
where that pays: not where reading them takes as long as the step itself. In a mode with SRAM of the
NPU's own, inputs and outputs of the network stay outside.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from udc_tf.cost.accelerators import family
from udc_tf.cost.counts import CountMaps, Counts, total
from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.schedule import in_place
from udc_tf.cost.steps import StepCosts

SRAM_ONLY, SHARED, DEDICATED = "Sram_Only", "Shared_Sram", "Dedicated_Sram"
_PAYS = 1.25  # cycles of a step over those of reading its weights, from where on they are buffered


def default_mode(accelerator: str) -> str:
    """The memory mode that Vela assumes.

    >>> default_mode("ethos-u55-128"), default_mode("ethos-u65-256")
    ('Shared_Sram', 'Dedicated_Sram')
    """
    return SHARED if family(accelerator) == "ethos-u55" else DEDICATED


def require_mode(accelerator: str, memory_mode: str | None) -> None:
    """Raises a `ValueError` for a mode that the accelerator lacks: an Ethos-U55 has no DRAM.

    What a user's own vela.ini calls a mode is known only to that file.
    """
    own = family(accelerator) == "ethos-u55" and (memory_mode or "").startswith(DEDICATED)
    if own:
        raise ValueError(
            f"`memory_mode` of an Ethos-U55 is {SRAM_ONLY} or {SHARED}: it has no SRAM besides "
            f"the system's. Received: {memory_mode!r} for {accelerator}"
        )


@dataclasses.dataclass(frozen=True)
class SramCost:
    """Bytes of SRAM on an accelerator, in one of Vela's memory modes."""

    accelerator: str
    memory_mode: str
    model: DeviceModel

    def bind(self, plan: Plan) -> "BoundSram":
        return BoundSram(StepCosts(plan, self.accelerator, self.model), self.memory_mode)


@dataclasses.dataclass(frozen=True)
class BoundSram:
    """The working memory of one network's configurations."""

    steps: StepCosts
    memory_mode: str

    @property
    def maps(self) -> CountMaps:
        return self.steps.maps

    def cost(self, counts: Counts) -> Any:
        peaks = self.peaks(counts)
        return peaks.max(-1) if isinstance(peaks, np.ndarray) else tf.reduce_max(peaks, -1)

    def peaks(self, counts: Counts) -> Any:
        """What Vela should plan for each step, [..., steps]."""
        return self.steps.model.sram * self.by_step(counts)

    def by_step(self, counts: Counts) -> Any:
        """Bytes that are in use while each step runs, [..., steps]."""
        if isinstance(counts.tensor_bytes, np.ndarray):
            maps = counts.tensor_bytes @ self._alive.T
        else:
            maps = tf.matmul(counts.tensor_bytes, self._alive, transpose_b=True)
        encoded = self.steps.encoded(counts)
        if self.memory_mode.startswith(SRAM_ONLY):
            return counts.step_present * (maps + total(encoded)[..., None])
        buffers = encoded * self._buffered(counts, encoded)
        following = _next(buffers)
        return counts.step_present * (maps + buffers + following)

    def _buffered(self, counts: Counts, encoded: Any) -> Any:
        """1 where weights are copied to SRAM before they are used, else 0: of gradient 0."""
        if self.memory_mode.startswith(DEDICATED):
            return 1.0
        pays = self.steps.cycles(counts) > _PAYS * encoded / self.steps.engine.weights
        return (
            pays.astype(np.float32) if isinstance(pays, np.ndarray) else tf.cast(pays, tf.float32)
        )

    @functools.cached_property
    def _alive(self) -> np.ndarray:
        """[steps, tensors]: 1 where a tensor takes memory while a step runs."""
        plan = self.steps.plan
        alive = np.zeros((len(plan.steps), len(plan.tensors)), np.float32)
        for number, tensor in enumerate(plan.tensors):
            own_memory = tensor.outside and self.memory_mode.startswith(DEDICATED)
            if not own_memory and not tensor.part_of_another:
                alive[tensor.first : tensor.last + 1, number] = 1.0
        for now, step in enumerate(plan.steps):
            if in_place(step, plan.tensors, now):
                alive[now, step.output] = 0.0
        return alive


def _next(values: Any) -> Any:
    """Of each step what the step behind it has."""
    if isinstance(values, np.ndarray):
        return np.concatenate([values[..., 1:], np.zeros_like(values[..., :1])], -1)
    return tf.concat([values[..., 1:], tf.zeros_like(values[..., :1])], -1)
