"""The plan of a finetuning run: three stages and their learning rates.

1. weights quantized, nothing pruned, but for inherited weights of one bit;
2. pruning annealed from nothing to each layer's rate, masks following the weights;
3. both held: masks, batch-norm statistics and activation ranges stand still.
"""

import dataclasses
import math
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from udc_tf.quantize.plain_numbers import is_number, is_whole, plain

FORMATS = ("shifted", "plain")
STARTS = ("inherited", "fresh", "kept")
RANGES = ("fitted", "learned")


@dataclasses.dataclass(frozen=True)
class Cosine:
    """A learning rate that falls from `first` to `last` along a half cosine.

    With `cycle` it restarts: after `cycle` epochs, then after twice as many, and so on.
    """

    first: float
    last: float
    cycle: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        if not is_number(self.first) or self.first <= 0:
            raise ValueError(f"`first` must be a positive learning rate. Received: {self.first!r}")
        if not is_number(self.last) or self.last < 0:
            raise ValueError(f"`last` must be a learning rate, or 0. Received: {self.last!r}")
        if self.cycle is not None and (not is_whole(self.cycle) or self.cycle < 1):
            raise ValueError(
                f"`cycle` must be a positive number of epochs, or None. Received: {self.cycle!r}"
            )

    def pieces(self, epochs: int) -> list[int]:
        """Lengths of the cycles, in epochs.

        >>> Cosine(0.1, 1e-4, cycle=2).pieces(14), Cosine(0.1, 0.0).pieces(14)
        ([2, 4, 8], [14])
        """
        if self.cycle is None:
            return [epochs] if epochs else []
        lengths: list[int] = []
        length = self.cycle
        while sum(lengths) < epochs:
            lengths.append(min(length, epochs - sum(lengths)))
            length *= 2
        return lengths


@dataclasses.dataclass(frozen=True)
class Stages:
    """How a compact network is finetuned.

    Attributes:
        epochs: of each of the three stages; or of all together, which are then split 30:50:20.
        learning_rates: one schedule per stage. A higher rate recovers faster from quantization and
            pruning, a lower one settles better; stage 3 wants a low one.
        alpha: the share of the weights that a training step quantizes, one number or one per stage.
            Lower values leave more weights unrounded in a step: gentler, but further from what is
            deployed.
        clip_unquantized: whether the other weights are clipped to the range, as in UDC, or left as
            they are.
        number_format: "shifted" puts all levels beyond the pruned zone (UDC's Q^), so that none is
            wasted; "plain" spreads them from zero (Q).
        pruned_gradient: the share of its gradient that a pruned weight gets. 0 leaves it where it
            is; 1 passes all of it through the mask, so that the weight can grow back.
        prune_until: the share of stage 2 after which the target rate is reached. Less leaves more
            epochs to recover, more prunes more slowly.
        refresh_every: steps between two rankings of the weights. Fewer let the masks follow the
            weights more closely, and make the run slower.
        momentum: of SGD, if no optimizer is given.
        ranges: "fitted": in stages 1 and 2 the weights' ranges follow the weights, as often as the
            masks; "learned": they follow the gradient alone, as in stage 3.
        range_learning_rate: of Adam, for the logarithm of the weights' ranges. Higher values let
            them follow the weights faster between two fits, and less steadily.
        l2: weight decay: this times half the squared norm of the kernels is added to the loss.
            Higher values keep weights smaller.
        label_smoothing: in the loss that `finetune` makes; higher values ask for less certain
            outputs. A loss of your own has its own.
        train_batch_norm: whether batch norm's gain and offset are learned, or stay as they are.
        temperature: by which logits are divided for the teacher's loss. Higher values make the
            student heed the unlikely classes more.
        distillation: the weight of the teacher's loss, in [0, 1]; the labels' loss has the rest.
        start: "inherited" weights, scaled back to the size of fresh ones where a batch norm follows
            (`udc_tf.finetune.rescaling`), layers of one bit pruned from the start; or "fresh" ones
            from the layers' initializers; or all "kept": zeros and activation ranges stay, and
            weights begin, as `udc_tf.compress` or an earlier finetuning left them.
        calibration_batches: on how many batches the activations' ranges, and batch norm's
            statistics, are measured before they are frozen. More are more exact, and take longer;
            0 keeps the running averages of training.

    Example:

    >>> Stages(epochs=10).epochs
    (3, 5, 2)
    """

    epochs: tuple[int, int, int] | int = 20
    learning_rates: tuple[Cosine, Cosine, Cosine] = (
        Cosine(0.1, 0.08),
        Cosine(0.08, 0.01),
        Cosine(0.001, 0.0),
    )
    alpha: float | tuple[float, float, float] = 1.0
    clip_unquantized: bool = True
    number_format: str = "shifted"
    pruned_gradient: float = 0.0
    prune_until: float = 0.5
    refresh_every: int = 16
    momentum: float = 0.9
    ranges: str = "fitted"
    range_learning_rate: float = 1e-3
    l2: float = 0.0
    label_smoothing: float = 0.0
    train_batch_norm: bool = True
    temperature: float = 4.0
    distillation: float = 0.5
    start: str = "inherited"
    calibration_batches: int = 50

    def __post_init__(self) -> None:
        def check(valid: Any, name: str, wanted: str) -> None:
            if not valid:
                raise ValueError(f"`{name}` must be {wanted}. Received: {getattr(self, name)!r}")

        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        if isinstance(self.epochs, int) and is_whole(self.epochs):
            object.__setattr__(self, "epochs", split_epochs(self.epochs))
        whole = _three(self.epochs) and all(is_whole(e) and e >= 0 for e in self.lengths)
        wanted = "a positive number, or one for each of the three stages"
        check(whole and sum(self.lengths) >= 1, "epochs", wanted)
        if not isinstance(self.alpha, tuple) and is_number(self.alpha):
            object.__setattr__(self, "alpha", (float(self.alpha),) * 3)
        shares = _three(self.alpha) and all(is_number(a) and 0 <= a <= 1 for a in self.alphas)
        check(shares, "alpha", "in [0, 1]")
        rates = self.learning_rates
        cosines = _three(rates) and all(isinstance(r, Cosine) for r in rates)
        check(cosines, "learning_rates", "three `Cosine`s")
        for name in ("pruned_gradient", "prune_until", "distillation", "label_smoothing"):
            value = getattr(self, name)
            check(is_number(value) and 0 <= value <= 1, name, "in [0, 1]")
        for name in ("temperature", "range_learning_rate"):
            value = getattr(self, name)
            check(is_number(value) and value > 0, name, "positive")
        check(is_number(self.l2) and self.l2 >= 0, "l2", "at least 0")
        momentum = is_number(self.momentum) and 0 <= self.momentum < 1
        check(momentum, "momentum", "at least 0 and below 1")
        steps = is_whole(self.refresh_every) and self.refresh_every >= 1
        check(steps, "refresh_every", "a positive number of steps")
        batches = is_whole(self.calibration_batches) and self.calibration_batches >= 0
        check(batches, "calibration_batches", "a whole number, at least 0")
        for name, known in (
            ("number_format", FORMATS),
            ("start", STARTS),
            ("ranges", RANGES),
        ):
            check(getattr(self, name) in known, name, f"one of {', '.join(known)}")
        if self.start == "kept" and any(self.lengths[:2]):
            check(False, "epochs", "(0, 0, epochs) with start='kept', as `Stages.gentle` has them")

    @classmethod
    def cifar100(cls, **changes: Any) -> "Stages":
        """UDC's settings for CIFAR-100 (appendix F)."""
        return cls(**{**_paper(254), "l2": 5e-4, "train_batch_norm": False, **changes})

    @classmethod
    def imagenet(cls, **changes: Any) -> "Stages":
        """UDC's settings for ImageNet (appendix G)."""
        return cls(**{**_paper(126), "l2": 1e-4, "label_smoothing": 0.1, **changes})

    @classmethod
    def gentle(cls, epochs: int = 3, **changes: Any) -> "Stages":
        """For a network that `udc_tf.compress` made: it keeps what was fitted, and learns slowly.

        Batch norms stand still, so dropout is off meanwhile.

        >>> Stages.gentle().epochs
        (0, 0, 3)
        """
        slow = Cosine(1e-4, 0.0)
        settings = {"epochs": (0, 0, epochs), "start": "kept", "learning_rates": (slow,) * 3}
        return cls(**{**settings, **changes})

    def recovery(self) -> "Stages":
        """Two more epochs for a network that was finetuned so and then made smaller by export.

        Pruned again at once: the mask is what was tightened.

        >>> Stages(epochs=20).recovery().epochs
        (0, 1, 1)
        """
        first, second, third = self.learning_rates
        return dataclasses.replace(
            self,
            epochs=(0, 1, 1),
            learning_rates=(first, Cosine(second.first / 10, second.last), third),
            prune_until=0.0,
            start="inherited",
        )

    @property
    def total_epochs(self) -> int:
        return sum(self.lengths)

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Of the stages, in epochs."""
        return cast(tuple[int, int, int], self.epochs)

    @property
    def alphas(self) -> tuple[float, float, float]:
        """Of the stages."""
        return cast(tuple[float, float, float], self.alpha)

    @property
    def boundaries(self) -> tuple[int, int, int]:
        """The epochs at which the stages end."""
        first, second, third = (int(e) for e in np.cumsum(self.lengths))
        return first, second, third

    def stage_of(self, epoch: int) -> int:
        """1, 2 or 3.

        >>> [Stages(epochs=(1, 2, 1)).stage_of(e) for e in range(4)]
        [1, 2, 2, 3]
        """
        return 1 + int(np.searchsorted(self.boundaries[:2], epoch, side="right"))

    def pruned_share(self, epochs_done: float) -> float:
        """How much of each layer's target rate is pruned after `epochs_done` (a fraction, too).

        The cubic of Zhu and Gupta (arXiv:1710.01878), which TFMOT calls `PolynomialDecay`. Not
        taken from there: importing TFMOT switches the whole process to the old Keras.

        >>> plan = Stages(epochs=(2, 8, 2), prune_until=0.5)
        >>> [plan.pruned_share(e) for e in (1, 2, 4, 6, 11)]
        [0.0, 0.0, 0.875, 1.0, 1.0]
        """
        begin, length = self.lengths[0], self.lengths[1] * self.prune_until
        if epochs_done < begin:
            return 0.0
        progress = 1.0 if length < 1e-6 else min(1.0, (epochs_done - begin) / length)
        return 1.0 - (1.0 - progress) ** 3

    def learning_rate(self, steps_per_epoch: int) -> "StagedCosine":
        """The learning rate of each step of the run."""
        firsts, lasts, lengths = [], [], []
        for epochs, rate in zip(self.lengths, self.learning_rates, strict=True):
            for length in rate.pieces(epochs):
                firsts.append(rate.first)
                lasts.append(rate.last)
                lengths.append(length * steps_per_epoch)
        return StagedCosine(firsts, lasts, lengths)


def _three(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3


def split_epochs(epochs: int) -> tuple[int, int, int]:
    """Splits a run over the stages; stage 2 has at least one epoch.

    >>> [split_epochs(n) for n in (1, 2, 3, 20)]
    [(0, 1, 0), (1, 1, 0), (1, 1, 1), (6, 10, 4)]
    """
    last = round(0.2 * epochs)
    middle = max(1, min(round(0.5 * epochs), epochs - last - 1)) if epochs > 1 else epochs
    return epochs - middle - last, middle, last


def _paper(epochs: int) -> dict:
    rates = (Cosine(0.1, 1e-4, cycle=2), Cosine(0.1, 1e-4), Cosine(1e-4, 0.0))
    return {
        "epochs": (epochs, 60, 30),
        "learning_rates": rates,
        "start": "fresh",
        "prune_until": 1.0,
    }


@keras.saving.register_keras_serializable("udc_tf")
class StagedCosine(keras.optimizers.schedules.LearningRateSchedule):
    """Half cosines one after the other: piece i goes from `firsts[i]` to `lasts[i]`.

    Example:

    >>> rate = StagedCosine([0.1, 0.01], [0.0, 0.0], [10, 10])
    >>> [round(float(rate(step)), 4) for step in (0, 5, 10, 20)]
    [0.1, 0.05, 0.01, 0.0]
    """

    def __init__(self, firsts: list[float], lasts: list[float], steps: list[int]):
        self.firsts, self.lasts, self.steps = list(firsts), list(lasts), list(steps)

    def __call__(self, step: int | tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        ends = tf.constant(np.cumsum(self.steps), tf.float32)
        piece = tf.minimum(tf.reduce_sum(tf.cast(step >= ends, tf.int32)), len(self.steps) - 1)
        length = tf.gather(tf.constant(self.steps, tf.float32), piece)
        progress = tf.minimum(1.0, (step - (tf.gather(ends, piece) - length)) / length)
        first, last = tf.gather(self.firsts, piece), tf.gather(self.lasts, piece)
        return last + (first - last) * 0.5 * (1 + tf.cos(math.pi * progress))

    def get_config(self) -> dict[str, Any]:
        return {"firsts": self.firsts, "lasts": self.lasts, "steps": self.steps}
