"""What Vela makes of networks, and what it says about the prices of options."""

import dataclasses
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from udc_tf.compact.architecture import Architecture
from udc_tf.compact.build import LayerChoice
from udc_tf.compress.integer_program import Choice
from udc_tf.compress.prices import Prices, prices_of
from udc_tf.compress.storage_options import Option
from udc_tf.cost.device_targets import Cycles, OnDevice, Sram
from udc_tf.cost.targets import Flash, Target
from udc_tf.graph.conversion import safe_name
from udc_tf.layers.inventory import kernel_layers
from udc_tf.search.extract import need_of
from udc_tf.search.problem import SearchProblem, accelerators_of

_MEASURED = {Flash: "flash_bytes", Sram: "sram_bytes", Cycles: "cycles"}
_MARGIN = 0.003  # of the budget, that is left free after a network that was too large


@dataclasses.dataclass(frozen=True)
class Trial:
    """A compiled network, beside the targets that it should keep."""

    targets: tuple[Target, ...]
    sizes: Any  # `udc_tf.export.trial_compile.CompiledSizes`

    def need(self, target: Target) -> float | None:
        """What it takes of a target; None where no compiler tells."""
        name = _MEASURED.get(type(target))
        return None if name is None else float(getattr(self.sizes, name))

    def _shares(self, kind: type) -> list[float]:
        found = ((t, self.need(t)) for t in self.targets if isinstance(t, kind))
        return [need / t.budget for t, need in found if need is not None]

    @property
    def holds(self) -> bool:
        return max(self._shares(Flash) + self._shares(OnDevice)) <= 1

    @property
    def use(self) -> float:
        """Of the flash budget, or of what binds where there is none."""
        return max(self._shares(Flash) or self._shares(OnDevice))

    @property
    def flash_bytes(self) -> int | None:
        """None if no target asked for it."""
        return self.sizes.flash_bytes if self._shares(Flash) else None

    def told(self, architecture: Architecture) -> Architecture:
        """The same, with the sizes that were compiled in place of those that were predicted."""
        stored = self.sizes.stored
        layers = (
            dataclasses.replace(x, bytes=float(stored.get(safe_name(x.name), x.bytes)))
            for x in architecture.layers
        )
        pairs = zip(self.targets, architecture.needs, strict=True)
        needs = (
            line if (need := self.need(target)) is None else need_of(target, need)
            for target, line in pairs
        )
        return dataclasses.replace(
            architecture,
            flash_bytes=self.sizes.flash_bytes,
            layers=tuple(layers),
            needs=tuple(needs),
        )

    def describe(self) -> str:
        found = ((t, self.need(t)) for t in self.targets)
        return ", ".join(
            f"{t.describe(need)}, the budget is {t.describe(t.budget)}"
            for t, need in found
            if need is not None
        )


class Trials:
    """Compiles the networks of one model for the devices of its targets.

    Args:
        options: of each layer.
        build: makes the network of some layers' options.
        samples: one array per input.
    """

    def __init__(
        self,
        options: Mapping[str, tuple[Option, ...]],
        build: Callable[[Mapping[str, LayerChoice]], keras.Model],
        samples: Sequence[np.ndarray],
    ):
        self._options, self._build = options, build
        self._samples = [x[:8] for x in samples]
        self._known: dict[str, Any] = {}  # sizes of the largest and the smallest networks

    def of(self, problem: SearchProblem, network: keras.Model) -> Trial | None:
        """None if the targets are nothing that a compiler could tell."""
        if not any(isinstance(t, (Flash, OnDevice)) for t in problem.targets):
            return None
        return Trial(problem.targets, self._sizes(problem, network))

    def _sizes(self, problem: SearchProblem, network: keras.Model) -> Any:
        """Where working memory is too much, Vela is asked to save it, as `export` asks it."""
        compiled_sizes = importlib.import_module("udc_tf.export.trial_compile").compiled_sizes
        system = importlib.import_module("udc_tf.export.vela").System.of(problem.targets)
        memory = [t.budget for t in problem.targets if isinstance(t, Sram)]
        sizes = compiled_sizes(network, self._samples, system, problem.allow_cpu)
        if memory and sizes.sram_bytes > min(memory):
            saving = dataclasses.replace(system, sram_limit=min(memory))
            less = compiled_sizes(network, self._samples, saving, problem.allow_cpu)
            sizes = less if less.sram_bytes < sizes.sram_bytes else sizes
        return sizes

    def _extreme(self, problem: SearchProblem, largest: bool) -> Trial | None:
        """The network of 8 bits everywhere, or that of the least that can be stored."""
        said = [t.to_dict() for t in problem.targets if isinstance(t, OnDevice)]
        key = json.dumps([largest, accelerators_of(problem.targets), said], sort_keys=True)
        if key not in self._known:
            chosen = fewest(self._options)
            network = self._build(
                {
                    n: LayerChoice(8) if largest else LayerChoice(o.bits, o.nonzeros)
                    for n, o in chosen.items()
                }
            )
            for layer in () if largest else kernel_layers(network):
                layer.refresh_mask(shifted=False)
                layer.fit_range()
            trial = self.of(problem, network)
            self._known[key] = None if trial is None else trial.sizes
        sizes = self._known[key]
        return None if sizes is None else Trial(problem.targets, sizes)

    def prices(
        self, problem: SearchProblem, entropies: Mapping[str, Sequence[float]]
    ) -> list[Prices]:
        """What options cost of each target, with what Vela says of the extremes.

        Raises:
            ValueError: not even the least that can be stored keeps working memory or cycles.
        """
        prices = prices_of(problem, self._options, entropies)
        largest = self._extreme(problem, largest=True)
        if largest is None:
            return prices
        found = []
        for target, price in zip(problem.targets, prices, strict=True):
            need = largest.need(target)
            if price.is_flash:
                price = self._flash_price(problem, price)
            elif need is not None and need <= target.budget:
                price = price.without_options(need)
            elif need is not None:
                price = price.scaled(*self._least(problem, target))
            found.append(price)
        return found

    def _flash_price(self, problem: SearchProblem, price: Prices) -> Prices:
        """With what is constant in that of the two files which is nearer to the budget."""
        files = []
        for largest in (False, True):
            trial = self._extreme(problem, largest)
            assert trial is not None, "a flash budget is there"
            files.append((trial.sizes.flash_bytes, self._stored(trial)))
        (_, least), (_, most) = files
        flash, stored = min(files, key=lambda file: abs(file[0] - price.budget))
        return dataclasses.replace(price, constant=flash - sum(stored)).seen(least, most)

    def _stored(self, trial: Trial) -> list[float]:
        return [float(trial.sizes.stored.get(safe_name(n), 0)) for n in self._options]

    def _least(self, problem: SearchProblem, target: Target) -> tuple[list[int], float]:
        """The numbers of the options that store least, and what they need of a target."""
        trial = self._extreme(problem, largest=False)
        need = None if trial is None else trial.need(target)
        if trial is None or need is None or need > target.budget:
            raise ValueError(
                "Bits and sparsities hardly change working memory and cycles; fewer channels or "
                "smaller inputs do: search (udc_tf.make_searchable). Received: a network of at "
                f"least {target.describe(need or 0)}, budget {target.describe(target.budget)}"
            )
        chosen = fewest(self._options)
        return [row.index(chosen[name]) for name, row in self._options.items()], need

    def corrected(self, prices: Sequence[Prices], choice: Choice, trial: Trial) -> list[Prices]:
        """Prices as the compiled network of a choice has them."""
        stored, found = self._stored(trial), []
        for price, target in zip(prices, trial.targets, strict=True):
            need = trial.need(target)
            margin = _MARGIN if need is not None and need > price.budget else 0.0
            if price.is_flash:
                size = trial.sizes.flash_bytes
                price = price.corrected(choice.options, stored, size, margin)
            elif need is not None:
                price = price.scaled(choice.options, need, margin)
            found.append(price)
        return found


def fewest(options: Mapping[str, tuple[Option, ...]]) -> dict[str, Option]:
    """The option of each layer that stores least."""
    return {n: min(row, key=lambda o: o.deployed_bits * o.nonzeros) for n, row in options.items()}
