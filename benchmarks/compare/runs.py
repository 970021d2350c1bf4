"""The runs of the comparison: what one row is about."""

import dataclasses

from benchmarks.harness import Row


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """One row of the table to be.

    Attributes:
        method: whose network it is.
        setting: which of the method's settings; methods that choose do it by validation.
        budget: bytes of compiled flash; None for a network that needs not fit.
        epochs: of all training together, the search's included.
    """

    data: str
    method: str
    setting: str
    budget: int | None
    seed: int
    epochs: int
    images: int

    @property
    def key(self) -> str:
        size = "any size" if self.budget is None else f"{self.budget} bytes"
        length = f"{self.epochs} epochs of {self.images}"
        return f"{self.data}, {size}: {self.method}, {self.setting}, seed {self.seed}, {length}"

    @property
    def lane(self) -> str:
        """What must not run twice at a time: random trials come one after the other."""
        return f"{self.data} {self.budget} random" if self.method == "random" else self.key

    def row(self, found: Row) -> Row:
        """What was found, with what the run is."""
        return {**dataclasses.asdict(self), **found}
