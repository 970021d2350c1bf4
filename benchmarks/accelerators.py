"""Does every Ethos-U that Vela knows get its files, and what of them was executed?

    python -m benchmarks.accelerators

ResNet8 and DS-CNN for the embedded digits at 16x16 are searched for 60 steps, once each, under a
flash budget; what was found is then exported for all accelerators without a budget, untrained but
for that. A row is what the manifest says. `benchmarks.device_targets` has searches for each of them
by itself, with budgets.
"""

import functools
import tempfile
from collections.abc import Mapping

import keras
from absl import logging

import udc_tf
import udc_tf.export
from benchmarks import harness
from benchmarks.data import Arrays, scaled_digits
from benchmarks.device_targets import NETWORKS, SPACE
from benchmarks.harness import Row, Rows, table
from udc_tf.cost.accelerators import ACCELERATORS

BUDGETS = {"resnet8": "32KiB", "ds_cnn": "16KiB"}


@functools.cache
def searched(name: str) -> udc_tf.Architecture:
    keras.utils.set_random_seed(0)
    model = NETWORKS[name]((16, 16, 1), 10)
    settings = udc_tf.SearchSettings(seed=0, samples=2)
    search = udc_tf.make_searchable(model, SPACE, udc_tf.Flash(BUDGETS[name]), settings)
    search.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = images()
    search.fit(x, y, batch_size=32, epochs=2, verbose=0)
    return search.architecture(statistics=x[:256])


def images() -> Arrays:
    x, y = scaled_digits("train", 960)
    return x.repeat(2, axis=1).repeat(2, axis=2), y


def measure(name: str, accelerator: str) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        result = udc_tf.export.export(
            searched(name).build(), folder, calibration=images()[0][:64], accelerator=accelerator
        )
        files = sorted(path.name for path in result.folder.iterdir() if path.is_file())
    told = result.manifest
    return {
        **{k: told[k] for k in ("flash_bytes", "sram_bytes", "estimated_cycles", "executed")},
        "files": files,
    }


def report(rows: Mapping[str, Row]) -> str:
    head = ("network, accelerator", "flash", "SRAM", "cycles", "before Vela", "compiled stream")
    lines = []
    for key, row in rows.items():
        before, compiled = row["executed"]["tflite"], row["executed"]["compiled"]
        stream = f"not executed: {compiled.get('why_not')}"
        if compiled["on"]:
            unlike = compiled["values_unlike_tflm"]
            stream = f"on {compiled['on']}, {unlike} values unlike TFLM's"
        figures = (f"{row[k]:,}" for k in ("flash_bytes", "sram_bytes", "estimated_cycles"))
        lines.append((key, *figures, f"on {before['on']}", stream))
    return f"{table(head, lines)}\n{len(rows)} of {len(NETWORKS) * len(ACCELERATORS)} exported."


def run(rows: Rows) -> str:
    logging.set_verbosity(logging.ERROR)
    for name in NETWORKS:
        for accelerator in ACCELERATORS:
            rows.once(f"{name}, {accelerator}", functools.partial(measure, name, accelerator))
    return harness.write(rows.path.with_suffix(".md"), report(rows.read()))


if __name__ == "__main__":
    harness.main(run, "accelerators")
