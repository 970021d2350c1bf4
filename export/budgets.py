"""What `export` holds the compiled network to: every target it is given, or it refuses the target.

`Flash` is the size of the compiled file, `Sram` and `Cycles` are what Vela plans and estimates for
it; `Macs` are those of the integer network that is written,
`PaperSize` is the paper's formula for the bits and non-zeros that the written layers have.
"""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from udc_tf.cost.byte_sizes import parse_bytes
from udc_tf.cost.counts import binary_entropy
from udc_tf.cost.device_targets import Cycles, Sram
from udc_tf.cost.targets import Flash, Macs, PaperSize
from udc_tf.export import vela
from udc_tf.export.errors import BudgetError
from udc_tf.export.integer_network import WEIGHT_BITS, IntegerNetwork

_RIGHT = "udc_tf.Flash('32KiB'), udc_tf.Sram('64KiB'), udc_tf.Macs(5e6) or a list of such targets"


@dataclasses.dataclass(frozen=True)
class Budgets:
    """The smallest budget of each kind, None where there is none, and the system they are for."""

    system: vela.System
    flash: int | None = None
    macs: float | None = None
    paper: int | None = None
    sram: int | None = None
    cycles: float | None = None

    @property
    def accelerator(self) -> str:
        return self.system.accelerator

    @classmethod
    def of(
        cls,
        target: Any,
        accelerator: str | None = None,
        *,
        sram: int | str | None = None,
        **system: Any,
    ) -> "Budgets":
        """Reads the argument `target` of `export`, and what is said besides.

        >>> found = Budgets.of([Flash("32KiB"), Flash("16KiB"), Macs(1e6)])
        >>> found.accelerator, found.flash, found.macs, found.sram
        ('ethos-u55-128', 16384, 1000000.0, None)
        """
        targets = (
            [] if target is None else target if isinstance(target, (list, tuple)) else [target]
        )
        for one in targets:
            if type(one) not in (Flash, Macs, PaperSize, Sram, Cycles):
                raise ValueError(_refusal(one))
        where = vela.System.of(targets, accelerator=accelerator, **system)
        vela.default_system(where.accelerator)  # an unknown accelerator is told before any work

        def smallest(kind: type[Any]) -> Any:
            return min((t.budget for t in targets if isinstance(t, kind)), default=None)

        memory = [n for n in (smallest(Sram), sram and parse_bytes(sram)) if n]
        return cls(
            where,
            smallest(Flash),
            smallest(Macs),
            smallest(PaperSize),
            min(memory, default=None),
            smallest(Cycles),
        )

    def lines(
        self, model: keras.Model, network: IntegerNetwork, compiled: vela.VelaResult
    ) -> list[dict[str, Any]]:
        """For each budget what is needed, what there is, and by how much that is exceeded."""
        needs = {
            "flash bytes": (compiled.flash_bytes, self.flash),
            "sram bytes": (compiled.sram_bytes, self.sram),
            "cycles (estimated by Vela)": (compiled.cycles, self.cycles),
            "multiply-accumulates": (macs(network), self.macs),
        }
        if self.paper is not None:
            needs["paper bytes"] = (paper_bytes(model, network), self.paper)
        return [
            {"what": what, "need": need, "have": have, "excess": max(need - have, 0)}
            for what, (need, have) in needs.items()
            if have is not None
        ]

    def hold(self, compiled: vela.VelaResult) -> bool:
        """Whether a compiled file is inside all that Vela tells about it."""
        needs = (
            (compiled.flash_bytes, self.flash),
            (compiled.sram_bytes, self.sram),
            (compiled.cycles, self.cycles),
        )
        return all(have is None or need <= have for need, have in needs)

    def check_sram(self, compiled: vela.VelaResult, least: int) -> None:
        """Raises a `BudgetError` if the working memory is too large; `least` was reached."""
        if self.sram is not None and compiled.sram_bytes > self.sram:
            raise BudgetError(
                f"The compiled network needs at least {least:,} bytes of SRAM, the budget is "
                f"{self.sram:,}, {least - self.sram:,} too many, also where Vela saves memory "
                "before time. Search with udc_tf.Sram, or take smaller images or fewer channels."
            )

    def check_cycles(self, compiled: vela.VelaResult) -> None:
        """Raises a `BudgetError` if Vela estimates too many cycles."""
        if self.cycles is not None and compiled.cycles > self.cycles:
            raise BudgetError(
                f"The compiled network needs {compiled.cycles:,} cycles as Vela estimates, the "
                f"budget is {self.cycles:,.0f}, {compiled.cycles - self.cycles:,.0f} too many; "
                "search with udc_tf.Cycles."
            )

    def check_macs(self, network: IntegerNetwork) -> None:
        """Raises a `BudgetError` if the written network multiplies too often."""
        need = macs(network)
        if self.macs is not None and need > self.macs:
            raise BudgetError(
                f"The exported network needs {need:,} multiply-accumulates, the budget is "
                f"{self.macs:,.0f}, {need - self.macs:,.0f} too many; search with this budget."
            )

    def check_paper_size(self, model: keras.Model, network: IntegerNetwork) -> None:
        """Raises a `BudgetError` if the written layers are too large by the paper's formula."""
        need = paper_bytes(model, network)
        if self.paper is not None and need > self.paper:
            raise BudgetError(
                f"The exported network has {need:,} bytes by the paper's formula, the budget is "
                f"{self.paper:,}, {need - self.paper:,} too many; search with this budget."
            )


def macs(network: IntegerNetwork) -> int:
    """Multiply-accumulates of one inference: every weight at every position, zeros too."""
    total = 0
    for step in network.kernels:
        # A transposed convolution multiplies each input with the kernel, all others each output.
        over = step.inputs[0] if step.kind == "TRANSPOSE_CONV" else step.output
        total += math.prod(network.values[over].shape[1:-1]) * step.weights.codes.size
    return total


def paper_bytes(model: keras.Model, network: IntegerNetwork) -> int:
    """b + H(s) bits for each weight; of a layer that was not searched, 8 bits."""
    layers = {layer.name: layer for layer in model.layers if hasattr(layer, "integer_kernel")}
    bits = 0.0
    for step in network.kernels:
        layer, count = layers.get(step.weights.layer), step.weights.codes.size
        if layer is None:
            bits += count * WEIGHT_BITS
        else:
            bits += count * (layer.deployed_bits + binary_entropy(layer.nonzeros))
    return math.ceil(bits / 8)


def _refusal(one: Any) -> str:
    received = f"Received: {one!r} of type {type(one).__name__}"
    if hasattr(one, "bind"):
        return (
            "`export` cannot check a target of your own on the compiled network, and a budget that "
            f"nobody checks is none: leave it out, or pass {_RIGHT}. {received}"
        )
    if isinstance(one, (int, float, np.number)) and not isinstance(one, bool):
        return f"`target` must say what the number counts: {_RIGHT}. {received}"
    return f"`target` must be {_RIGHT}. {received}"
