"""One training step of a search: weights, ranges and decisions together."""

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from udc_tf.quantize import ranking
from udc_tf.search import decisions
from udc_tf.search.followers import followers_of
from udc_tf.search.passes import task_in_passes
from udc_tf.search.samples import repeated
from udc_tf.search.state import Now
from udc_tf.training.loss_scaling import unscaled

if TYPE_CHECKING:
    from udc_tf.search.model import SearchModel


def search_step(search: "SearchModel", data: Any) -> dict[str, tf.Tensor]:
    """Trains a `SearchModel` on one batch and returns the logs."""
    settings = search.settings
    if settings.full_batches:
        data = repeated(data, settings.samples)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    now = search.state.schedule()
    _refresh_if_due(search)
    logits = search.state.logits.value
    # Every replica adds its gradient; together they are to count once, as the task does.
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    with tf.GradientTape() as tape:
        tape.watch(logits)
        z = search.state.draw(now)
        ratios = search.cost_ratios(z)
        size_loss = tf.reduce_mean(tf.abs(ratios - 1.0))
        size_term = settings.strength * size_loss
        if settings.price:
            size_term = search.state.price.value * tf.reduce_mean(ratios)
        size_term = search.optimizer.scale_loss(size_term / replicas)
    task = task_in_passes(search, z, data)
    of_logits = tape.gradient(
        [z, size_term], logits, output_gradients=[task.of_samples, tf.ones_like(size_term)]
    )
    _apply(search, of_logits, task.of_ranges, task.of_weights, now)
    for metric in search.metrics:
        if metric.name == "loss":
            metric.update_state(task.loss * replicas)
    logs = search.compute_metrics(x, y, task.outputs, sample_weight=sample_weight)
    decided = _decision_logs(search, now)
    if settings.price:
        sizes = tf.stack([decided["argmax_ratio"], decided["expected_ratio"]])
        search.state.follow_size(tf.reduce_mean(sizes), now)
    return {**logs, "size_loss": size_loss, **decided}


def _apply(
    search: "SearchModel",
    of_logits: tf.Tensor,
    of_ranges: list[tf.Tensor],
    of_weights: list[tf.Tensor],
    now: Now,
) -> None:
    of_logits, *of_ranges = unscaled(search.optimizer, [of_logits, *of_ranges])
    search.optimizer.apply(of_weights, search.trainable_variables)
    if of_ranges:
        search.ranges_in_one.apply(search.range_optimizer, of_ranges)
    # Frozen during the warm-up: without gradient, and with the optimizer's clock put back to zero,
    # so that it starts afresh afterwards. (No tf.cond: replicas cannot synchronise in one.)
    of_logits = tf.where(now.warming_up, tf.zeros_like(of_logits), of_logits)
    before = tf.identity(search.state.logits.value)
    search.decision_optimizer.apply([of_logits], [search.state.logits])
    # What is settled stays, whatever momentum the optimizer has.
    search.state.logits.assign(tf.where(now.settled, before, search.state.logits.value))
    clock = search.decision_optimizer.iterations
    clock.assign(tf.where(now.warming_up, tf.zeros_like(clock), clock.value))
    search.state.finish_step(now)


def _refresh_if_due(search: "SearchModel") -> None:
    """Every few steps, masks and ranges follow the weights."""
    due = tf.equal(search.state.step % search.settings.mask_refresh, 0)
    followers, fresh = followers_of(
        search.kernel_layers,
        lambda: tf.exp(search.state.log_probabilities()),
        search.settings.range_follow,
        sorting=ranking.sorts_here(search.jit_compile is True),
    )
    if not followers:
        return
    now = [tf.convert_to_tensor(v) for v in followers]
    # Assigned outside of the tf.cond: replicas cannot synchronise in one.
    for variable, value in zip(followers, tf.cond(due, fresh, lambda: now), strict=True):
        variable.assign(value)


def _decision_logs(search: "SearchModel", now: Now) -> dict[str, tf.Tensor]:
    log_pi = search.state.log_probabilities()
    both = tf.stack([decisions.most_likely(log_pi), tf.exp(log_pi)])
    argmax_ratio, expected_ratio = tf.unstack(search.cost_ratios(both))
    return {
        "argmax_ratio": argmax_ratio,
        "expected_ratio": expected_ratio,
        "price": tf.convert_to_tensor(search.state.price),
        "entropy": decisions.entropy(log_pi, search.state.valid),
        "tau": now.tau,
        "xi": now.xi,
        "vartheta": now.vartheta,
    }
