"""Compiles a network until it keeps its budgets: tighter where it is over, fuller where not."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from absl import logging

from udc_tf.cost.steps import Engine
from udc_tf.export import growing, size_truth, tightening, two_tensors, vela
from udc_tf.export.budgets import Budgets
from udc_tf.export.errors import BudgetError
from udc_tf.export.int8 import Int8Model
from udc_tf.export.tightening import Probabilities
from udc_tf.finetune.double_rounding import match_double_rounding
from udc_tf.finetune.whole_biases import make_biases_whole

GROW_FROM = 0.05  # of the flash budget unused
_MARGIN = 1.02  # of what is to be saved in a round of tightening
_WAITS = (
    1.5  # an operator that takes less than this times the reading of its weights waits for them
)
# A round that was not enough had been asked for too little: on large networks Vela's coding moves
# by more than what is left to save, and asking for just that again led nowhere.
_MORE_EACH_ROUND = 1.5
_USED_BY_GROWTH = 0.95  # of what is left: what coding makes of it is known only afterwards


@dataclasses.dataclass(frozen=True)
class Compiled:
    """An int8 network, how far TFLM is from the Keras model, and what Vela made of it."""

    exact: Int8Model
    agreement: dict[str, Any]
    vela: vela.VelaResult
    content: bytes  # of the compiled file, which the next compilation writes over


def compile_within(
    model: keras.Model,
    compiled_model: Callable[..., Compiled],
    budgets: Budgets,
    rounds: int,
    grow_rounds: int,
    recover: Callable[[keras.Model], Any] | None,
    probabilities: Probabilities | None,
) -> tuple[keras.Model, Compiled, list[dict[str, Any]]]:
    """Compiles, tightens until flash and cycles fit; the network, what it became, the rounds."""
    made = compiled_model(model)
    log: list[dict[str, Any]] = []
    excess = _excess(made, budgets)
    if excess is None:
        if budgets.flash is not None and recover is not None:
            model, made, log = _grown(model, made, compiled_model, budgets, grow_rounds, recover)
        return model, _within_sram(model, made, compiled_model, budgets), log
    adjustable = bool(tightening.compact_layers(model))
    if adjustable:
        model = copy_of(model)  # the caller's network stays as it is
    while adjustable and excess is not None and len(log) < rounds and excess.can_be_saved:
        wanted = excess.weights * _MARGIN * _MORE_EACH_ROUND ** len(log) + 16
        moves = tightening.tighten(model, wanted, efficiency(made), probabilities, excess.layers)
        if not moves:
            break
        if recover is not None:
            recover(model)
        _settle_arithmetic(model)
        before, made = made, compiled_model(model)
        log.append(
            {
                "flash_bytes_before": before.vela.flash_bytes,
                "cycles_before": before.vela.cycles,
                "excess_bytes": round(excess.weights),
                "moves": [dataclasses.asdict(m) for m in moves],
                "flash_bytes_after": made.vela.flash_bytes,
                "cycles_after": made.vela.cycles,
            }
        )
        logging.info(
            "Tightened %d layers: %d -> %d bytes, %d -> %d cycles",
            len(moves),
            before.vela.flash_bytes,
            made.vela.flash_bytes,
            before.vela.cycles,
            made.vela.cycles,
        )
        excess = _excess(made, budgets)
    if budgets.flash is not None and made.vela.flash_bytes > budgets.flash:
        raise BudgetError(_over_budget(made, budgets.flash, adjustable, len(log)))
    return model, _within_sram(model, made, compiled_model, budgets), log


@dataclasses.dataclass(frozen=True)
class _Excess:
    """What is too much, as bytes of weights, and where they can be saved: anywhere, if None."""

    weights: float
    available: int
    layers: frozenset[str] | None = None

    @property
    def can_be_saved(self) -> bool:
        return self.weights < self.available


def _excess(made: Compiled, budgets: Budgets) -> _Excess | None:
    """Flash that is too much; or cycles, which fall with the weights where these are waited for."""
    compiled = made.vela
    if budgets.flash is not None and (over := compiled.flash_bytes - budgets.flash) > 0:
        return _Excess(over, compiled.encoded_weight_bytes)
    if budgets.cycles is not None and (late := compiled.cycles - budgets.cycles) > 0:
        pace = Engine.of(budgets.accelerator).weights
        waited = {
            _layer(made, operator.index): operator.weight_bytes
            for operator in compiled.operators
            if operator.cycles * pace < _WAITS * operator.weight_bytes
        }
        return _Excess(late * pace, sum(waited.values()), frozenset(waited))
    return None


def _layer(made: Compiled, index: int) -> str:
    """The layer that an operator of the file is for."""
    suffix = two_tensors.SUFFIX if made.exact.shifts else ""
    return made.exact.network.steps[index].name.removesuffix(suffix)


def _grown(
    model: keras.Model,
    made: Compiled,
    compiled_model: Callable[..., Compiled],
    budgets: Budgets,
    rounds: int,
    recover: Callable[[keras.Model], Any],
) -> tuple[keras.Model, Compiled, list[dict[str, Any]]]:
    """Gives what is left of the flash to where it helps most, as long as all budgets hold."""
    log: list[dict[str, Any]] = []
    budget, share = budgets.flash or 0, _USED_BY_GROWTH
    while len(log) < rounds and (left := budget - made.vela.flash_bytes) > GROW_FROM * budget:
        larger = copy_of(model)
        moves = growing.grow(larger, share * left, efficiency(made))
        if not moves:
            break
        recover(larger)
        _settle_arithmetic(larger)
        remade = compiled_model(larger)
        log.append(
            {
                "flash_bytes_before": made.vela.flash_bytes,
                "unused_bytes": left,
                "moves": [dataclasses.asdict(m) for m in moves],
                "flash_bytes_after": remade.vela.flash_bytes,
            }
        )
        if budgets.hold(remade.vela):
            model, made = larger, remade
        else:
            share /= 2  # from the network before it
    return model, made, log


def _within_sram(
    model: keras.Model,
    made: Compiled,
    compiled_model: Callable[..., Compiled],
    budgets: Budgets,
) -> Compiled:
    """Lets Vela trade cycles for working memory where that is over its budget; checks both."""
    least = made.vela.sram_bytes
    for settings in ({"sram_limit": budgets.sram}, {"optimise": "Size"}):
        if budgets.sram is None or made.vela.sram_bytes <= budgets.sram:
            break
        logging.info("%d bytes of SRAM are too many: compiling again, %s", least, settings)
        again = compiled_model(model, **settings)
        # Other weights orders make another file: one that no longer fits is no way out.
        if budgets.flash is None or again.vela.flash_bytes <= budgets.flash:
            least = min(least, again.vela.sram_bytes)
            made = again if again.vela.sram_bytes < made.vela.sram_bytes else made
    budgets.check_sram(made.vela, least)
    budgets.check_cycles(made.vela)
    return made


def _settle_arithmetic(model: keras.Model) -> None:
    """Biases and roundings of a finetuned network once more: fewer bits have another step."""
    if any(getattr(layer, "rounds_twice", False) for layer in model.layers):
        make_biases_whole(model)
        match_double_rounding(model)


def copy_of(model: keras.Model) -> keras.Model:
    """A network with the same weights."""
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    return copy


def efficiency(made: Compiled) -> dict[str, float]:
    """Layer -> bytes that Vela stored over the entropy of its codes."""
    exact, found = made.exact, dict[str, float]()
    for size in size_truth.layer_sizes(exact.network, made.vela):
        layer = size.layer.removesuffix(two_tensors.SUFFIX if exact.shifts else "")
        ratio = (size.vela_bytes or 0) / max(size.entropy_bytes, 1.0)
        found[layer] = max(ratio, found.get(layer, 0.0))
    return {layer: ratio for layer, ratio in found.items() if ratio}


def _over_budget(made: Compiled, budget: int, adjustable: bool, rounds: int) -> str:
    need = made.vela.flash_bytes
    rest = need - made.vela.encoded_weight_bytes
    text = (
        f"The compiled network does not fit: it needs {need:,} bytes of flash, the budget is "
        f"{budget:,}, {need - budget:,} too many. {rest:,} of them are commands, scales and "
        "container, which do not shrink with the weights."
    )
    if rest >= budget:
        return f"{text} No choice of weights fits; search with fewer layers or channels."
    if not adjustable:
        return f"{text} It has no layers of few bits or zeros to tighten; search for a smaller one."
    return f"{text} {rounds} rounds of tightening led no further; search with this budget."
