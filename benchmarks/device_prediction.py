"""How well flash, working memory and cycles are predicted for files that nothing was fitted to.

    python -m benchmarks.device_prediction
    python -m benchmarks.device_prediction --networks=resnet8

For each network and accelerator configurations of the space `ethos_u55` near a flash budget are
compiled, the coefficients fitted to the first of them and asked about the others. Widths are those
that a search for SRAM and cycles has, in bricks of 16 channels where it can; beside them tenths, as
the space has them, which only a search for flash alone takes.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from absl import flags

from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from benchmarks.networks import NETWORKS
from benchmarks.size_prediction import BUDGETS, summary
from udc_tf.cost.device_targets import Cycles, Sram
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import Flash, Target
from udc_tf.export import measuring, size_coefficients, size_fit, vela
from udc_tf.export.device_fit import fit_device
from udc_tf.search.make import searchable

ACCELERATORS = (
    *("ethos-u55-64", "ethos-u55-256", "ethos-u65-256", "ethos-u85-256"),
    "ethos-u85-512",  # of several cores
)
ATTRIBUTES = {"flash": "flash_bytes", "sram": "sram_bytes", "cycles": "cycles"}
COSTS = tuple(ATTRIBUTES)
WIDTHS: dict[str, tuple[Target, ...]] = {
    "bricks": (Sram("64MiB"), Cycles(1e12)),  # which nothing exceeds
    "tenths": (),
}


def measure(name: str, widths: str, accelerator: str, fitted_count: int, held_out: int) -> Row:
    besides = WIDTHS[widths]
    search = searchable(NETWORKS[name](), "ethos_u55", [Flash(BUDGETS[name]), *besides])
    rng = np.random.default_rng(0)
    system, rows = vela.System(accelerator), []
    for chosen in size_fit.configurations_near(search, fitted_count + held_out, rng):
        rows.append(measuring.measure_one(search, chosen, system, rng))
    return compare(accelerator, rows[:fitted_count], rows[fitted_count:], search.problem.plan)


def compare(
    accelerator: str,
    fitted: Sequence[size_coefficients.Measurement],
    unseen: Sequence[size_coefficients.Measurement],
    plan: Plan,
) -> Row:
    """Errors on the unseen files of what was fitted to the others."""
    model = fit_device(fitted, plan, vela.System(accelerator), size_coefficients.fit(fitted))
    targets: tuple[Target, ...] = (
        Flash(1, accelerator, model.size),
        Sram(1, accelerator, device_model=model),
        Cycles(1, accelerator, device_model=model),
    )
    chosen = np.array([row.options for row in unseen])
    row: Row = {}
    for cost, one in zip(COSTS, targets, strict=True):
        bound = one.bind(plan)
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
    for widths in WIDTHS:
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
    for widths, name, accelerator in itertools.product(WIDTHS, given.networks, ACCELERATORS):
        case = functools.partial(measure, name, widths, accelerator, given.fitted, given.held_out)
        rows.once(f"{name}, {widths}, {accelerator}", case)
    return harness.write(rows.path.with_suffix(".md"), report(rows.read()))


if __name__ == "__main__":
    flags.DEFINE_list("networks", ["resnet8", "ds_cnn", "cnn28"], "Of the benchmark's networks.")
    flags.DEFINE_integer("fitted", 16, "Configurations for the fit.")
    flags.DEFINE_integer("held_out", 8, "Configurations for the comparison.")
    harness.main(run, "device_prediction")
