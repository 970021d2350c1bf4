"""How far samples are from a size that the most likely configuration has exactly.

The loss sees sampled configurations. If the most likely one is at the budget, |E(z) - e*| / e* of
the samples should be nothing; what it is instead pushes decisions for no reason, which the paper
calls over-regularisation. Here the budget is the size of ResNet8's most likely configuration, and
nothing is trained. By temperature, by how far the projection lets probabilities rise above 1/K (xi,
at the beginning, in the middle and at the end of its schedule), by rejection (the share vartheta
of decisions sampled given their argmax).

    python -m benchmarks.over_regularisation
"""

import functools
import itertools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows
from udc_tf.models import resnet8
from udc_tf.search.extract import repaired_choice
from udc_tf.search.projection import project
from udc_tf.search.repair import Budget
from udc_tf.search.state import Now

TEMPERATURES = (0.66, 0.33, 0.1)
RISES = (0.1, 0.5, 0.99)
REJECTION = (0.0, 0.5, 1.0)
SAMPLES = 512


@functools.cache
def decided() -> tuple[udc_tf.SearchModel, np.ndarray]:
    """A search whose budget is the size of the configuration that is returned with it."""
    keras.utils.set_random_seed(0)
    model, settings = resnet8((16, 16, 3), 10), udc_tf.SearchSettings(samples=SAMPLES)
    search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash(12_000), settings)
    search.set_out()
    chosen = repaired_choice(search)
    size = Budget(search.problem.bound).ratio(chosen) * 12_000
    search.retarget(udc_tf.Flash(round(size)))
    return search, chosen


def measure(tau: float, xi: float, vartheta: float) -> Row:
    search, chosen = decided()
    state = search.state
    sure = 20.0 * tf.one_hot(chosen, state.options)
    options = tf.reduce_sum(tf.cast(state.valid, tf.float32), axis=-1, keepdims=True)
    state.logits.assign(project(sure, state.valid, tf.minimum(1 / options + xi, 0.999)))
    values = (tf.constant(v) for v in (tau, vartheta, xi))
    z = state.draw(Now(tf.constant(False), *values))
    ratios = search.cost_ratios(z).numpy()
    return {
        "sampled size loss": round(float(np.abs(ratios - 1).mean()), 4),
        "mean size": round(float(ratios.mean()), 4),
    }


def report(rows: Mapping[str, Row]) -> str:
    lines = []
    for xi, vartheta in itertools.product(RISES, REJECTION):
        found = [rows[_key(tau, xi, vartheta)] for tau in TEMPERATURES]
        losses = [f"{r['sampled size loss']:.3f} ({r['mean size']:.2f})" for r in found]
        lines.append([xi, vartheta, *losses])
    head = ("xi", "vartheta", *(f"tau {tau}" for tau in TEMPERATURES))
    return "Sampled |E - e*| / e*, and E / e* in brackets; 0 and 1 would be right.\n\n" + (
        harness.table(head, lines)
    )


def _key(tau: float, xi: float, vartheta: float) -> str:
    return f"tau {tau}/xi {xi}/vartheta {vartheta}"


def run(rows: Rows) -> str:
    for case in itertools.product(TEMPERATURES, RISES, REJECTION):
        rows.once(_key(*case), functools.partial(measure, *case))
    return harness.write(rows.path.with_suffix(".md"), report(rows.read()))


if __name__ == "__main__":
    harness.main(run, "over_regularisation")
