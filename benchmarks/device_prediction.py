"""How well flash, working memory and cycles are predicted for files that nothing was fitted to.

    python -m benchmarks.device_prediction
    python -m benchmarks.device_prediction --networks=resnet8

For each network and accelerator `fit_size_model` fits the coefficients, as a user's call does. They
are asked about configurations near the flash budget that were not compiled for it. Widths are those
that a search for SRAM and cycles has, in bricks of 16 channels where it can; beside them tenths,
which it has with `snap=1`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from absl import flags

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from benchmarks.networks import NETWORKS
from benchmarks.size_prediction import BUDGETS, summary
from udc_tf.cost.device_targets import Cycles, Sram
from udc_tf.cost.targets import Flash, Target
from udc_tf.export import size_fit, vela
from udc_tf.export.size_coefficients import Measurement
from udc_tf.search.make import searchable
from udc_tf.search.model import SearchModel

ACCELERATORS = (
    *("ethos-u55-64", "ethos-u55-256", "ethos-u65-256", "ethos-u85-256"),
    "ethos-u85-512",  # of several cores
)
ATTRIBUTES = {"flash": "flash_bytes", "sram": "sram_bytes", "cycles": "cycles"}
COSTS = tuple(ATTRIBUTES)
_UNSEEN_SEED = 2  # by that of 1 the pace of a U85-512 was chosen
_SPACE = udc_tf.SearchSpace.preset("ethos_u55")
SPACES = {"bricks": _SPACE, "tenths": dataclasses.replace(_SPACE, snap=1)}


def measure(name: str, widths: str, accelerator: str, fitted_count: int, held_out: int) -> Row:
    model, space = NETWORKS[name](), SPACES[widths]
    targets: list[Target] = [
        Flash(BUDGETS[name], accelerator),
        Sram("64MiB", accelerator),  # this and the next are budgets that nothing exceeds
        Cycles(1e12, accelerator),
    ]
    targets = size_fit.fit_size_model(model, space, targets, configurations=fitted_count)
    search = searchable(model, space, targets)
    unseen = size_fit.measure_search(search, vela.System(accelerator), held_out, _UNSEEN_SEED)
    return compare(search, unseen)


def compare(search: SearchModel, unseen: Sequence[Measurement]) -> Row:
    """Errors of what a search predicts on files that nothing was fitted to."""
    chosen = np.array([row.options for row in unseen])
    row: Row = {}
    for cost, bound in zip(COSTS, search.problem.bound, strict=True):
        predicted = bound.cost(bound.maps.counts(bound.maps.one_hot(chosen)))
        compiled = np.array([getattr(m, ATTRIBUTES[cost]) for m in unseen])
        row[cost] = summary(predicted / compiled - 1) | {
            "predicted": [round(float(p)) for p in predicted],
            "compiled": compiled.tolist(),
        }
    return row


def report(rows: Mapping[str, Row]) -> str:
    def cells(row: Row) -> list[str]:
        return [f"{row[c]['mean_absolute']:.1%}, {row[c]['worst']:.1%}" for c in COSTS]

    head = ("network, widths", "accelerator", *(f"{cost}: mean, worst error" for cost in COSTS))
    lines = [(*key.rsplit(", ", 1), *cells(row)) for key, row in rows.items()]
    for widths in SPACES:
        for accelerator in ACCELERATORS:
            ending = f", {widths}, {accelerator}"
            if found := [row for key, row in rows.items() if key.endswith(ending)]:
                all_of_them = cells({c: over_all(found, c) for c in COSTS})
                lines.append((f"all, {widths}", accelerator, *all_of_them))
    return table(head, lines)


def over_all(rows: Sequence[Row], cost: str) -> dict[str, float]:
    """The errors of several networks together."""
    predicted = np.concatenate([row[cost]["predicted"] for row in rows])
    return summary(predicted / np.concatenate([row[cost]["compiled"] for row in rows]) - 1)


def run(rows: Rows) -> str:
    given = flags.FLAGS
    for widths, name, accelerator in itertools.product(SPACES, given.networks, ACCELERATORS):
        case = functools.partial(measure, name, widths, accelerator, given.fitted, given.held_out)
        rows.once(f"{name}, {widths}, {accelerator}", case)
    return harness.write(rows.path.with_suffix(".md"), report(rows.read()))


if __name__ == "__main__":
    flags.DEFINE_list("networks", ["resnet8", "ds_cnn", "cnn28"], "Of the benchmark's networks.")
    flags.DEFINE_integer("fitted", 16, "Configurations for the fit.")
    flags.DEFINE_integer("held_out", 8, "Configurations for the comparison.")
    harness.main(run, "device_prediction")
