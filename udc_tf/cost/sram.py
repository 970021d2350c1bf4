"""Working memory, as Vela plans it: the most that is alive at the same time.

A step needs the tensors that are alive while it runs, each in bricks of 16 channels, its buffered
weights, and those of the step that comes next, which are fetched meanwhile. Vela buffers weights
where that pays: not where reading them takes as long as the step itself, and never where they are
in SRAM already. In a mode with SRAM of the NPU's own, inputs and outputs of the network stay
outside.

On an Ethos-U85 sums and the like run within the convolution before them, so that what comes next is
the step behind. Weights that are not there when their step begins arrive in two halves, the second
of which makes room for the next step's; those that would be much too late are not buffered.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from udc_tf.cost.accelerators import family
from udc_tf.cost.counts import CountMaps, Counts
from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.schedule import in_place, within_the_last
from udc_tf.cost.steps import StepCosts, larger, take_or_none
from udc_tf.cost.vela_ini import DEDICATED, SRAM_ONLY

_PAYS = 1.25  # cycles of a step over those of reading its weights, from where on they are buffered
# Of an Ethos-U85, as Vela's schedules of 27 networks show them. By its multipliers: the bytes of
# weights that it is taken to fetch in a cycle.
_U85_PACE = {128: 1.4, 256: 2.2, 512: 2.7, 1024: 3.2, 2048: 3.2}
_TOO_LATE = 0.6  # cycles of fetching over those of the step and the one before it
_SPLIT_FROM = 32  # output channels: two slices of a brick


@dataclasses.dataclass(frozen=True)
class SramCost:
    """Bytes of SRAM on an accelerator, in a kind of Vela's memory modes."""

    accelerator: str
    mode: str
    model: DeviceModel

    def bind(self, plan: Plan) -> "BoundSram":
        u85 = family(self.accelerator) == "ethos-u85"
        pace = _U85_PACE[int(self.accelerator.rpartition("-")[2])] if u85 else None
        costs = StepCosts(plan, self.accelerator, self.model)
        return BoundSram(costs, self.mode, pace)


@dataclasses.dataclass(frozen=True)
class BoundSram:
    """The working memory of one network's configurations.

    Attributes:
        pace: bytes of weights that an Ethos-U85 fetches in a cycle; None for the others.
    """

    steps: StepCosts
    mode: str
    pace: float | None

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
        buffers = 0.0 if self.mode == SRAM_ONLY else self._buffers(counts)
        return counts.step_present * (maps + buffers)

    def _buffers(self, counts: Counts) -> Any:
        """Bytes of weights in SRAM while each step runs; what is buffered how has no gradient."""
        encoded, cycles = self.steps.encoded(counts), self.steps.cycles(counts)
        if self.pace is None:
            fetched = encoded
            if self.mode != DEDICATED:
                fetched *= _as_numbers(cycles > _PAYS * encoded / self.steps.engine.weights)
            return fetched + take_or_none(fetched, self._behind)
        wide = _as_numbers(self.steps.outputs(counts) >= _SPLIT_FROM)
        fetching, before = encoded / self.pace, take_or_none(cycles, self._before)
        halved = 0.0 * encoded
        for _ in range(2):  # behind a step in halves there is only the time of its second half
            left = before * (1.0 - 0.5 * take_or_none(halved, self._before))
            late = _as_numbers(fetching > left)
            buffered = 1.0 - late * _as_numbers(fetching > _TOO_LATE * (left + cycles))
            halved = late * buffered * wide
        fetched = encoded * buffered
        first = fetched * (1.0 - 0.5 * halved)
        return larger(fetched, first + take_or_none(first, self._behind))

    @functools.cached_property
    def _behind(self) -> list[int | None]:
        """Of each step the one whose weights are fetched while it runs."""
        steps = self.steps.plan.steps
        found: list[int | None] = [*range(1, len(steps)), None]
        for now in reversed(range(len(steps) - 1)):
            if self.pace is not None and within_the_last(steps[now + 1], steps[now]):
                found[now] = found[now + 1]
        return found

    @functools.cached_property
    def _before(self) -> list[int | None]:
        """Of each step the one during which its weights are fetched."""
        found: list[int | None] = [None] * len(self._behind)
        for now, behind in reversed(list(enumerate(self._behind))):
            if behind is not None:
                found[behind] = now
        return found

    @functools.cached_property
    def _alive(self) -> np.ndarray:
        """[steps, tensors]: 1 where a tensor takes memory while a step runs."""
        plan = self.steps.plan
        alive = np.zeros((len(plan.steps), len(plan.tensors)), np.float32)
        for number, tensor in enumerate(plan.tensors):
            own_memory = tensor.outside and self.mode == DEDICATED
            if not own_memory and not tensor.part_of_another:
                alive[tensor.first : tensor.last + 1, number] = 1.0
        for now, step in enumerate(plan.steps):
            if in_place(step, plan.tensors, now):
                alive[now, step.output] = 0.0
        return alive


def _as_numbers(truths: Any) -> Any:
    """1 and 0, of an array or a tensor."""
    if isinstance(truths, np.ndarray):
        return truths.astype(np.float32)
    return tf.cast(truths, tf.float32)
