"""Sets a search on its way: the first guess, and what single decisions change in the loss."""

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from udc_tf.search import evidence, moves, spare_channels, start
from udc_tf.search.chains import chains_of, contents_of
from udc_tf.search.repair import Budget, repair, smallest_of
from udc_tf.training import batch_norm, training_data, workers

if TYPE_CHECKING:
    from udc_tf.search.model import SearchModel

_WARMUP_CERTAINTY = 6.0
_LISTENING = (0.0, 0.25, 0.5)  # of what follows the warm-up
_PARTS = 4  # of a batch, whose losses tell how certain their mean is
_LEAST_IMAGES = 64  # of a round: fewer look certain by chance
_LEAST_BATCHES = 0.25  # of a run: below that nothing is looked at
_MOST_BATCHES = 32
_FORWARD_PASSES = 3  # that a training step costs
_LOOKING = 0.1  # of what evidence may take: the share that is not for losses
_LEAD = 1.0  # in nats


def set_out(search: "SearchModel", certainty: float | None) -> None:
    """The first guess for the weights as they are."""
    certainty = search.settings.certainty if certainty is None else certainty
    if not certainty:
        return
    harms = _prior(search)
    logits, pressure = _solved(search, harms, certainty, certainty == search.settings.certainty)
    search.state.start_at(logits, harms, pressure)


def warm_up(search: "SearchModel") -> None:
    """Where the warm-up samples: around a guess that is open enough to compare.

    Weights that have seen all options alike serve, and judge, no configuration well. Operators and
    kernel sizes are drawn alike all the same: the prior knows too little of them.
    """
    certainty = min(_WARMUP_CERTAINTY, search.settings.certainty)
    if not certainty:
        return
    set_out(search, certainty)
    alike = [d.kind in ("choice", "kernel") for d in search.problem.plan.decisions]
    search.state.logits.assign(np.where(np.asarray(alike)[:, None], 0.0, search.state.logits))


def moments(search: "SearchModel") -> list[int]:
    """The steps before which something is decided, the end of the warm-up first."""
    return sorted({search.state.warmup_steps(), *_rounds(search), search.state.settling_step()})


def _rounds(search: "SearchModel") -> list[int]:
    """The steps before which the loss is asked, if anything can be afforded."""
    warmup, planned = search.state.warmup_steps(), int(search.state.planned.numpy())
    shares = _LISTENING if affordable_batches(search) >= _LEAST_BATCHES else ()
    return [round(warmup + share * (planned - warmup)) for share in shares]


def stop(search: "SearchModel") -> None:
    """Decides what is due before the next step."""
    step, rounds = search.state.steps_done(), _rounds(search)
    if step == search.state.warmup_steps():
        search.set_out()
    if step in rounds:
        listen(search, rounds.index(step), len(rounds))
    if step == search.state.settling_step():
        settle(search)


def settle(search: "SearchModel") -> None:
    """Solves the pressure once more, so that the most likely configuration is at the budget."""
    if search.settings.certainty:
        harms = search.state.harms_by_now()
        logits, pressure = _solved(search, harms, search.settings.certainty)
        search.state.settle(logits, harms, pressure)


def listen(search: "SearchModel", number: int, rounds: int) -> None:
    """Moves the decisions to where prior and measured losses together send them.

    What gradients have moved since they set out stays.

    Args:
        number: of the round, from 0.
        rounds: how many there are in the run, which share what may be measured.
    """
    state, plan = search.state, search.problem.plan
    likely = np.where(state.valid.numpy(), state.start.numpy(), -np.inf).argmax(axis=1)
    harms = state.harms.numpy()
    if number == 0:
        harms = harms * _of_spare_channels(search, likely)
    batches = _images(search, affordable_batches(search) / rounds, number)
    if number and not batches:
        return
    if batches:
        bases = moves.bases_of(plan, likely)
        losses = losses_of(search, moves.configurations(plan, bases), batches)
        found = moves.steps_between(plan.decisions, harms, bases, losses, _prior(search))
        harms = evidence.updated_harms(
            plan.decisions, harms, found, chains_of(plan), contents_of(plan)
        )
    harms = workers.mean_over_workers(search.distribute_strategy, harms)
    logits, pressure = _solved(search, harms, search.settings.certainty)
    state.move_start(logits, harms, pressure)


def _of_spare_channels(search: "SearchModel", likely: np.ndarray) -> np.ndarray:
    count = min(int(_LOOKING * _forward_passes(search)), _MOST_BATCHES) // 2 * 2
    batches = [keras.utils.unpack_x_y_sample_weight(b)[0] for b in _batches(search, count)]
    found = spare_channels.factors(search, likely, batches[: len(batches) // 2 * 2])
    return workers.mean_over_workers(search.distribute_strategy, found)


def _forward_passes(search: "SearchModel") -> float:
    """How many of them evidence may take."""
    return _FORWARD_PASSES * search.settings.evidence * int(search.state.planned.numpy())


def affordable_batches(search: "SearchModel") -> float:
    """On how many batches, all rounds together, the settings allow every move to be measured.

    None if the search was told where to start: what harms then is to leave that place.
    """
    plan, settings = search.problem.plan, search.settings
    if not settings.certainty or search.labelled is None or search.problem.start is not None:
        return 0.0
    largest = np.asarray([len(d.options) - 1 for d in plan.decisions])
    asked = moves.configurations(plan, moves.bases_of(plan, largest // 2))
    return (1 - _LOOKING) * _forward_passes(search) / len(set(asked.values()))


def _prior(search: "SearchModel") -> np.ndarray:
    plan = search.problem.plan
    priced = zip(plan.layers, search.kernel_layers, strict=True)
    thetas = {p.name: layer.theta for p, layer in priced}
    return start.harms_of(plan, thetas, search.state.options, search.problem.start)


def _solved(
    search: "SearchModel", harms: np.ndarray, certainty: float, decided: bool = True
) -> tuple[np.ndarray, float]:
    """What harms least within the budget, as logits, and the pressure under which it does.

    One pressure for all leaves out what is large and hardly worth it, and what then would fit in
    stays out, too. So decisions are exchanged until nothing gains, and what they end with is in
    the lead by a little, or noise would tip what is close.
    """
    valid = search.state.valid.numpy()
    logits, pressure = start.first_guess(harms, valid, search.cost_ratios, certainty, decided)
    if decided and pressure:
        budget = Budget(search.problem.bound)
        chosen = repair(logits, valid, budget, smallest_of(search.problem.plan, budget), -harms)
        rows = np.arange(len(chosen))
        largest = np.where(valid, logits, -np.inf).max(axis=1)
        logits[rows, chosen] = np.maximum(logits[rows, chosen], largest + _LEAD)
    return logits, pressure


def _images(search: "SearchModel", batches: float, number: int) -> list[Any]:
    """What is measured on in a round that may take so many batches, or parts of one.

    Where that is too little, rounds are put together, and the last of them has it all: what weights
    say late in a short run is worth more than what they say at its start.
    """
    found = _batches(search, max(1, int(batches)))
    sizes = [len(t) for t in tree.flatten(found[:1]) if t is not None]
    images = batches * max(sizes, default=0)
    together = int(np.ceil(_LEAST_IMAGES / max(images, 1.0)))
    if (number + 1) % together:
        return []
    if together > 1:
        found, images = _batches(search, max(1, int(together * batches))), together * images
    return [training_data.each(lambda t: t[: int(images)], batch) for batch in found]


def _batches(search: "SearchModel", count: int) -> list[Any]:
    return list(itertools.islice(_items(search.labelled), min(count, _MOST_BATCHES)))


def _items(data: Any) -> Iterable[Any]:
    if data is None:
        return ()
    if isinstance(data, keras.utils.PyDataset):
        return (data[i] for i in range(data.num_batches or 0))
    return iter(data)


def losses_of(
    search: "SearchModel", asked: Mapping[moves.Move, tuple[int, ...]], batches: list[Any]
) -> dict[moves.Move, np.ndarray]:
    """The losses of each configuration, on parts of every batch."""
    options = search.state.options

    @tf.function(reduce_retracing=True, autograph=False)
    def loss_of(z: tf.Tensor, batch: Any) -> tf.Tensor:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = search.predict_by_samples(x, z[None])
        size = tf.shape(tree.flatten(x)[0])[0]
        losses = []
        for part in range(_PARTS):
            x_, y_, y_pred_, weight_ = _rows(
                (x, y, y_pred, sample_weight), size * part // _PARTS, size * (part + 1) // _PARTS
            )
            losses.append(search.compute_loss(x_, y_, y_pred_, weight_, training=False))
        return tf.stack(losses)

    metrics = [v for metric in search.metrics for v in metric.variables]
    before = [v.numpy() for v in metrics]
    # The same images, and the same of them dropped, for all: only the configuration differs.
    random = [v for v in search.network.non_trainable_variables if "seed_generator" in v.path]
    states = [v.numpy() for v in random]
    found = {}
    with batch_norm.unchanged(search.network):
        for chosen in dict.fromkeys(asked.values()):
            for variable, value in zip(random, states, strict=True):
                variable.assign(value)
            z = tf.one_hot(chosen, options)
            found[chosen] = np.concatenate([loss_of(z, batch).numpy() for batch in batches])
    for variable, value in zip(metrics, before, strict=True):
        variable.assign(value)
    return {move: found[chosen] for move, chosen in asked.items()}


def _rows(values: Any, begin: tf.Tensor, end: tf.Tensor) -> Any:
    return training_data.each(lambda t: t[begin:end], values)
