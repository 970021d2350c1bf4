"""How well the calibrated size model predicts compiled files that it was not fitted to.

    python benchmarks/size_prediction.py --networks=resnet8,ds_cnn

For each network: configurations of the space `ethos_u55` near a budget are compiled, with weights
that are bell-shaped, pruned and rounded as finetuning leaves them. The size model is fitted to the
first of them and asked about the others. Resumes network by network.
"""

import json
import pathlib

import numpy as np
from absl import app, flags
from export_networks import NETWORKS

from udc_tf.cost.flash import SizeModel
from udc_tf.cost.targets import Flash
from udc_tf.export import size_calibration
from udc_tf.files import replaced_atomically

_NETWORKS = flags.DEFINE_list("networks", list(NETWORKS), "Which of the benchmark's networks.")
_FITTED = flags.DEFINE_integer("fitted", 16, "Configurations for the fit.")
_HELD_OUT = flags.DEFINE_integer("held_out", 8, "Configurations for the comparison.")
BUDGETS = {
    "resnet8": "24KiB",
    "ds_cnn": "12KiB",
    "mobilenet_v2": "128KiB",
    "autoencoder": "48KiB",
    "cnn28": "12KiB",
}


def summary(errors: np.ndarray) -> dict:
    return {
        "mean_absolute": round(float(np.abs(errors).mean()), 4),
        "worst": round(float(np.abs(errors).max()), 4),
    }


def case(name: str) -> dict:
    target = Flash(BUDGETS[name])
    rows = size_calibration.measure(
        NETWORKS[name](),
        "ethos_u55",
        target,
        _FITTED.value + _HELD_OUT.value,
        progress=lambda done, count: print(f"{name}: {done} of {count}", flush=True),
    )
    fitted, unseen = rows[: _FITTED.value], rows[_FITTED.value :]
    model = size_calibration.fit(fitted)
    calibrated = size_calibration.SizeFit(model, target.accelerator, tuple(fitted))
    default = size_calibration.SizeFit(SizeModel(), target.accelerator, tuple(fitted))
    return {
        "size_model": model.to_dict(),
        "default_on_unseen": summary(default.errors(unseen)),
        "fitted_on_its_own": summary(calibrated.errors()),
        "fitted_on_unseen": summary(calibrated.errors(unseen)),
        "unseen": [
            {"compiled": m.flash_bytes, "predicted": round(m.predicted(model))} for m in unseen
        ],
    }


def main(_):
    path = pathlib.Path(__file__).with_suffix(".json")
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in _NETWORKS.value:
        if name not in results:
            results[name] = case(name)
            with replaced_atomically(path) as partial:
                partial.write_text(json.dumps(results, indent=1) + "\n")
        print(name, results[name]["default_on_unseen"], results[name]["fitted_on_unseen"])
    errors = np.array(
        [u["predicted"] / u["compiled"] - 1 for row in results.values() for u in row["unseen"]]
    )
    print(f"All {len(errors)} unseen files: {summary(errors)}")


if __name__ == "__main__":
    app.run(main)
