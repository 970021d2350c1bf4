"""What `export` holds the compiled network to: every target it is given, or it refuses the target.

`Flash` is the size of the compiled file; `Macs` are those of the integer network that is written,
`PaperSize` is the paper's formula for the bits and non-zeros that the written layers have.
"""

import dataclasses
import math
from typing import Any

import keras
import numpy as np

from udc_tf.cost.counts import binary_entropy
from udc_tf.cost.targets import Flash, Macs, PaperSize
from udc_tf.export import vela
from udc_tf.export.errors import BudgetError
from udc_tf.export.integer_network import WEIGHT_BITS, IntegerNetwork

_DEFAULT_ACCELERATOR = "ethos-u55-128"
_RIGHT = "udc_tf.Flash('32KiB'), udc_tf.Macs(5e6) or a list of such targets"


@dataclasses.dataclass(frozen=True)
class Budgets:
    """The smallest budget of each kind, None where there is none."""

    accelerator: str
    flash: int | None = None
    macs: float | None = None
    paper: int | None = None

    @classmethod
    def of(cls, target: Any, accelerator: str | None = None) -> "Budgets":
        """Reads the argument `target` of `export`.

        >>> Budgets.of([Flash("32KiB"), Flash("16KiB"), Macs(1e6)])
        Budgets(accelerator='ethos-u55-128', flash=16384, macs=1000000.0, paper=None)
        """
        targets = (
            [] if target is None else target if isinstance(target, (list, tuple)) else [target]
        )
        for one in targets:
            if type(one) not in (Flash, Macs, PaperSize):
                raise ValueError(_refusal(one))
        names = {t.accelerator for t in targets if isinstance(t, Flash)}
        if accelerator is not None:
            names.add(accelerator)
        if len(names) > 1:
            raise ValueError(
                "A network is compiled for one accelerator, and all targets must be for it. "
                f"Received: {', '.join(sorted(names))}"
            )
        name = names.pop() if names else _DEFAULT_ACCELERATOR
        vela.default_system(name)  # an unknown accelerator is told before any work

        def smallest(kind: type[Flash | Macs | PaperSize]) -> Any:
            return min((t.budget for t in targets if isinstance(t, kind)), default=None)

        return cls(name, smallest(Flash), smallest(Macs), smallest(PaperSize))

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
