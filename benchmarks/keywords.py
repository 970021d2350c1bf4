"""Keyword networks on spoken digits: the command `udc`, from data to the emulated board.

    python -m benchmarks.keywords --data=spoken_digits.npz
    python -m benchmarks.keywords --networks=conv1d

Each recipe runs as a user would run it, `udc --recipe=NAME --data=FILE`, but for fewer examples and
epochs, which `FLAGS` says. The row has what the command found: accuracy on speakers that nobody
heard before, flash, and for each runner whether its outputs equal TFLM's. Then firmware around the
compiled network runs on QEMU and says PASS or FAIL itself.
"""

import functools
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import numpy as np
from absl import flags

import udc_tf.export
from benchmarks import harness
from benchmarks.harness import Row, Rows, Stopwatch, table
from udc_tf.models.data import load
from udc_tf.models.recipes import RECIPES

NETWORKS = {
    name: recipe
    for name, recipe in (
        ("conv1d", "spoken_digits_conv1d"),
        ("lstm", "spoken_digits_lstm"),
        ("ds_cnn", "spoken_digits"),
    )
    if recipe in RECIPES
}
EXAMPLES = 6000
# Fewer examples and epochs than the recipe has, for time.
FLAGS = (
    f"--examples={EXAMPLES}",
    "--batch_size=64",
    "--search_epochs=2",
    "--finetune_epochs=5",
    "--size_compiles=3",
    "--runners=tflm,npu,qemu",
    "--verify_examples=16",
)
# An LSTM is written out step by step, so that tracing takes most of the time: once for each sample
# of a search and each stage of finetuning.
OF_LSTM = ("--samples=1", "--finetune_epochs=0,6,0", "--size_compiles=1", "--batch_size=128")


def flags_of(recipe: str) -> tuple[str, ...]:
    given = {flag.partition("=")[0]: flag for flag in FLAGS}
    changes = {flag.partition("=")[0]: flag for flag in OF_LSTM if recipe.endswith("_lstm")}
    return tuple((given | changes).values())


def measure(recipe: str, data: str) -> Row:
    """What one run of the command found."""
    with tempfile.TemporaryDirectory() as folder:
        udc = [sys.executable, "-c", "from udc_tf.cli.commands import udc; udc()"]
        watch = Stopwatch()
        said = (f"--recipe={recipe}", f"--data={data}", *flags_of(recipe), f"--workdir={folder}")
        subprocess.run([*udc, *said], check=True)
        seconds = watch.read()
        results = json.loads(pathlib.Path(folder, "results.json").read_text())
        compiled = pathlib.Path(folder, results["compiled"])
        rank = len(RECIPES[recipe].input_shape)
        x, _ = load(data, rank=rank).arrays("test", 2)
        shown = np.clip(np.rint(x * 128), -128, 127).astype(np.int8)
        verdict = udc_tf.export.run(compiled, shown, on="qemu").notes[0]
    return {
        "recipe": recipe,
        "flags": flags_of(recipe),
        "test_accuracy": results["test_score"],
        "test_examples": results["examples"]["test"],
        "flash": results["flash_bytes"],
        "budget": results["flash_budget"],
        "sram": results["sram_bytes"],
        "differs_from_tflm": {
            row["runner"]: row["differs_from_tflm"]
            for row in results["verification"]
            if "differs_from_tflm" in row
        },
        "qemu": verdict,
        "cpu_seconds": seconds.cpu,
        "wall_seconds": seconds.wall,
    }


def report(rows: Mapping[str, Row]) -> str:
    lines = [
        (
            name,
            f"{row['test_accuracy']:.1%}",
            f"{row['flash']:,} of {row['budget']:,}",
            f"{row['sram']:,}",
            ", ".join(n for n, d in row["differs_from_tflm"].items() if d == 0),
            row["qemu"],
            round(row["cpu_seconds"]),
        )
        for name, row in rows.items()
    ]
    head = ("network", "test accuracy", "flash", "SRAM", "equal to TFLM", "on QEMU")
    said = "".join(f"\n{name}: `udc {' '.join(row['flags'])}`\n" for name, row in rows.items())
    return table((*head, "processor seconds"), lines) + said


def run(rows: Rows) -> str:
    for name in flags.FLAGS.networks or NETWORKS:
        rows.once(name, functools.partial(measure, NETWORKS[name], flags.FLAGS.data))
    return harness.write(rows.path.with_suffix(".md"), report(rows.read()))


if __name__ == "__main__":
    flags.DEFINE_list("networks", [], "Which; all by default.")
    flags.DEFINE_string(
        "data", str(harness.SHARED / "data" / "spoken_digits.npz"), "AudioMNIST as log-mel frames."
    )
    harness.main(run, "keywords")
