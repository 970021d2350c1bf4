"""How a search runs: the constants of the algorithm, each of which can be switched off."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from udc_tf.quantize.plain_numbers import is_number, is_whole, plain


def _all_but_widths() -> dict[str, int]:
    return {"bits": 2, "sparsity": 2, "kernel": 2, "choice": 2}


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Constants of the UDC search. Defaults are the paper's where it gives any, but for the start.

    Pairs are the first and the last value of a schedule over the steps after the warm-up; `tau`
    goes through its values in the warm-up as well.

    Args:
        samples: configurations drawn per step, each trained on its own slice of the batch. More of
            them make the decisions' gradient less noisy, and leave each fewer images.
        full_batches: every sample is trained on the whole batch, as in the paper, instead of on its
            slice: exacter, and a step costs as many plain ones as there are samples.
        samples_per_pass: how many of them are computed together; all by default. Fewer need less
            memory and take a little longer; the result is the same.
        tau: temperature of the samples, which falls exponentially. Low values make a sample nearly
            one single option, as the deployed network is, but its gradient noisier.
        vartheta: the share of decisions sampled so that the most likely option wins, which rises
            linearly. Higher values train the weights more for the network that will be deployed,
            lower ones go on exploring.
        xi: how far the largest probability of a decision may rise above where it started; linear.
            Low values keep a decision open for longer.
        xi_schedule: how it rises, "linear" or "cosine".
        certainty: how strongly the first guess (`udc_tf.search.start`) prefers what harms least.
            High values let a short run keep to the guess; 0 starts from uniform probabilities, as
            the paper does.
        evidence: the share of the run's processor time that may go into measuring, when the warm-up
            ends, what single decisions change in the loss (`udc_tf.search.evidence`). More images
            make it more exact; 0 leaves the first guess as it is.
        warmup: the share of the steps, at the start, in which only the weights are trained. A
            longer one judges options by better weights, and leaves fewer steps to decide in.
        price: how fast the price of size follows the size. The loss has price * E / e*, and the
            price rises while E is above e* and falls, to no less than 0, while it is below: size
            is pushed one way only, and the task holds what it needs. With 0 the loss has
            |E - e*| / e* instead, as in the paper.
        strength: lambda, the weight of |E - e*| / e* in the loss, without a price. Higher values
            keep the size nearer to the budget during the run, at the expense of the task.
        kappa: how many options of a decision a forward pass mixes, by kind; all where not given.
            With 1 every pass sees one real option; more let it compare them.
        rejection, projection, straight_through: parts of the algorithm, to be switched off in
            ablations: `vartheta`, `xi` and `kappa` respectively then have no effect.
        rejection_draws: how many accepted samples are averaged for `vartheta`. More make those
            samples less noisy.
        mask_refresh: steps between two rankings of the weights. Fewer let the masks follow the
            weights more closely, and make steps slower.
        pruned_gradient: the share of its gradient that a pruned weight still gets, 0 to 1. With 0
            it stays where it is; higher values let it grow back.
        range_follow: how far, at each ranking, the quantization ranges move towards what fits the
            weights best. 1 goes all the way; 0 leaves them to their gradient alone.
        decision_travel: learning rate times steps of the decisions: how far they can move in a run,
            whatever its length. Higher values decide sooner. From a first guess the rate is at most
            0.01, so that runs with less than 3,000 deciding steps keep nearer to it.
        decision_rate: the decisions' learning rate itself, instead of what follows from their
            travel.
        seed: of the sampling; another one draws other samples.

    Example:

    >>> SearchSettings(samples=8).samples, SearchSettings.vanilla().rejection
    (8, False)
    """

    samples: int = 4
    full_batches: bool = False
    samples_per_pass: int | None = None
    tau: tuple[float, float] = (0.66, 0.1)
    vartheta: tuple[float, float] = (0.0, 0.5)
    xi: tuple[float, float] = (0.1, 1.0)
    xi_schedule: str = "linear"
    certainty: float = 60.0
    evidence: float = 0.12
    warmup: float = 0.2
    price: float = 0.05
    strength: float = 1.0
    kappa: Mapping[str, int] = dataclasses.field(default_factory=_all_but_widths)
    rejection: bool = True
    projection: bool = True
    straight_through: bool = True
    rejection_draws: int = 4
    mask_refresh: int = 16
    pruned_gradient: float = 0.0
    range_follow: float = 0.5
    decision_travel: float = 30.0
    decision_rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        def check(valid: Any, name: str, wanted: str) -> None:
            if not valid:
                raise ValueError(f"`{name}` must be {wanted}. Received: {getattr(self, name)!r}")

        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        for name in ("tau", "vartheta", "xi"):
            pair = getattr(self, name)
            valid = isinstance(pair, tuple) and len(pair) == 2 and all(map(is_number, pair))
            check(valid, name, "two numbers, first and last")
        for name in (
            "certainty",
            "evidence",
            "warmup",
            "strength",
            "pruned_gradient",
            "range_follow",
        ):
            check(is_number(getattr(self, name)), name, "a finite number")
        for name in ("samples", "rejection_draws", "mask_refresh"):
            value = getattr(self, name)
            check(is_whole(value) and value >= 1, name, "a whole number, at least 1")
        together = 1 if self.samples_per_pass is None else self.samples_per_pass
        divides = is_whole(together) and together >= 1 and self.samples % together == 0
        check(divides, "samples_per_pass", f"a divisor of `samples`, {self.samples}, or None")
        check(is_whole(self.seed) and 0 <= self.seed < 2**32, "seed", "a whole number below 2**32")
        check(min(self.tau) > 0, "tau", "positive")
        check(0 <= min(self.vartheta) <= max(self.vartheta) <= 1, "vartheta", "between 0 and 1")
        check(self.xi_schedule in ("linear", "cosine"), "xi_schedule", "'linear' or 'cosine'")
        check(min(self.xi) > 0, "xi", "positive; at 0 the order of the options is lost")
        check(self.certainty >= 0, "certainty", "at least 0")
        check(0 <= self.evidence <= 1, "evidence", "between 0 and 1")
        check(0 <= self.warmup < 1, "warmup", "at least 0 and below 1")
        check(self.price >= 0, "price", "at least 0")
        check(self.strength >= 0, "strength", "at least 0")
        kappas = self.kappa.values()
        check(all(is_whole(k) and k >= 1 for k in kappas), "kappa", "at least 1 for each kind")
        check(0 <= self.pruned_gradient <= 1, "pruned_gradient", "between 0 and 1")
        check(0 <= self.range_follow <= 1, "range_follow", "between 0 and 1")
        travel = self.decision_travel
        check(is_number(travel) and travel > 0, "decision_travel", "positive")
        rate = self.decision_rate
        valid_rate = rate is None or (is_number(rate) and rate > 0)
        check(valid_rate, "decision_rate", "positive, or None")

    @classmethod
    def paper(cls, **changes: Any) -> "SearchSettings":
        """The paper's algorithm: uniform start, 32 samples of full batches, Adam with 1e-3.

        Its searches take hundreds of epochs, and a step here costs 32 plain ones. For less,
        `samples=4, full_batches=False`; in a run of some thousand steps probabilities hardly leave
        uniform with that rate: `decision_rate=None` derives it from the length of the run.

        >>> SearchSettings.paper(samples=8).certainty
        0.0
        """
        return cls(
            **{
                "samples": 32,
                "full_batches": True,
                "certainty": 0.0,
                "evidence": 0.0,
                "price": 0.0,
                "rejection_draws": 4,
                "mask_refresh": 1,
                "range_follow": 0.0,
                "decision_rate": 1e-3,
                **changes,
            }
        )

    @classmethod
    def vanilla(cls, strength: float = 1.0, **changes: Any) -> "SearchSettings":
        """Plain differentiable search: one soft sample, no rejection, projection or warm-up."""
        return cls(
            samples=1,
            rejection=False,
            projection=False,
            straight_through=False,
            certainty=0.0,
            warmup=0.0,
            price=0.0,
            strength=strength,
            **changes,
        )
