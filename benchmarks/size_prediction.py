"""How well the fitted size model predicts compiled files that it was not fitted to.

    python -m benchmarks.size_prediction
    python -m benchmarks.size_prediction --networks=resnet8,ds_cnn

For each network: configurations of the space `ethos_u55` near a budget are compiled, with weights
that are bell-shaped, pruned and rounded as finetuning leaves them. The size model is fitted to the
first of them and asked about the others.
"""

import functools
from collections.abc import Mapping

import numpy as np
from absl import flags

from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from benchmarks.networks import NETWORKS
from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.targets import Flash
from udc_tf.export import size_coefficients, size_fit

BUDGETS = {
    "resnet8": "24KiB",
    "ds_cnn": "12KiB",
    "mobilenet_v2": "128KiB",
    "autoencoder": "48KiB",
    "cnn28": "12KiB",
}


def summary(errors: np.ndarray) -> dict[str, float]:
    return {
        "mean_absolute": round(float(np.abs(errors).mean()), 4),
        "worst": round(float(np.abs(errors).max()), 4),
    }


def measure(name: str, fitted_count: int, held_out: int) -> Row:
    target = Flash(BUDGETS[name])
    rows = size_fit.measure(
        NETWORKS[name](),
        "ethos_u55",
        target,
        fitted_count + held_out,
        progress=lambda done, count: print(f"{name}: {done} of {count}", flush=True),
    )
    fitted, unseen = rows[:fitted_count], rows[fitted_count:]
    model = size_coefficients.fit(fitted)
    fitted_model = size_fit.SizeFit(DeviceModel(model), target.accelerator, tuple(fitted))
    default = size_fit.SizeFit(DeviceModel(), target.accelerator, tuple(fitted))
    return {
        "size_model": model.to_dict(),
        "default_on_unseen": summary(default.errors(unseen)),
        "fitted_on_its_own": summary(fitted_model.errors()),
        "fitted_on_unseen": summary(fitted_model.errors(unseen)),
        "unseen": [
            {"compiled": m.flash_bytes, "predicted": round(m.predicted(model))} for m in unseen
        ],
    }


def report(rows: Mapping[str, Row]) -> str:
    def cells(errors: Mapping[str, float]) -> tuple[str, str]:
        return f"{errors['mean_absolute']:.1%}", f"{errors['worst']:.1%}"

    lines = [
        (name, *cells(row["default_on_unseen"]), *cells(row["fitted_on_unseen"]))
        for name, row in rows.items()
    ]
    errors = np.array(
        [u["predicted"] / u["compiled"] - 1 for row in rows.values() for u in row["unseen"]]
    )
    lines.append((f"all {len(errors)} unseen files", "", "", *cells(summary(errors))))
    head = ("network", "default: mean error", "worst", "fitted: mean error", "worst")
    return table(head, lines)


def run(rows: Rows) -> str:
    given = flags.FLAGS
    for name in given.networks:
        rows.once(name, functools.partial(measure, name, given.fitted, given.held_out))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_list("networks", list(NETWORKS), "Which of the benchmark's networks.")
    flags.DEFINE_integer("fitted", 16, "Configurations for the fit.")
    flags.DEFINE_integer("held_out", 8, "Configurations for the comparison.")
    harness.main(run, "size_prediction")
