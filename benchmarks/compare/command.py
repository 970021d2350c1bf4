"""Is UDC better? At equal compiled flash and equal total training, beside what else there is.

    python -m benchmarks.compare                         # runs what is missing, then reports
    python -m benchmarks.compare --only_report           # table and picture from what there is
    python -m benchmarks.compare --data=fashion --methods=udc,uniform --seeds=0 --max_minutes=60
    python -m benchmarks.compare --images=8000 --results=benchmarks/compare_short.json
    python -m benchmarks.compare --data=cifar_ds_cnn --methods=udc,uniform,int8_width,int8_full \\
        --results=benchmarks/compare_ds_cnn.json         # another network

Every run adds its row to compare.json; compare.md is the table, compare.png the picture. Several
processes may share the work (start the same command again): a run is claimed by a lock, so none is
done twice. Fashion-MNIST is pooled to 14x14, CIFAR-10 to 16x16; the network is a ResNet8. --full
does the recipes of `udc_tf.models` instead, UDC and plain int8, each once and for hours.

- udc: search, 16,000 images or an epoch if that is more, and finetuning.
- uniform: one width, bitwidth and density for all inner layers, the widest that fits, trained for
  all epochs; the best of the grid. int8_width: its 8 dense bits. int8_full: these at full width.
- random: trials of `compare_tuner`, each trained for all epochs, best of 3 and of 10.
- tfmot: pruning and quantization-aware training with TFMOT, the best of two sparsities.
- dnas: plain differentiable search, the best of five lambdas, repaired to the budget; then as udc.

Choices are made on validation images; settings are repeated with further seeds once chosen.
"""

import functools
import os
import pathlib
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags, logging
from benchmarks.compare_methods import RECIPES, perform, random_trial
from benchmarks.compare_plan import FIRST_SEED, METHODS, plan
from benchmarks.compare_rows import Row, Rows, Run
from benchmarks.compare_sizing import Bench
from benchmarks.compare_tuner import run_trials

from benchmarks import compare_data, compare_full, compare_report
from udc_tf.export.size_calibration import DEFAULT_CONFIGURATIONS

RESULTS = pathlib.Path(__file__).with_suffix(".json")


def define_flags() -> None:
    _define_choices("data", ["fashion", "cifar"], compare_data.NAMES)
    _define_choices("methods", list(METHODS), [*METHODS, *RECIPES])
    flags.DEFINE_list("budgets", [], "Bytes; the task's own by default.")
    flags.DEFINE_list("seeds", ["0", "1", "2"], "Settings are chosen by seed 0.")
    flags.DEFINE_integer("epochs", 12, "Of a run, the search included.", lower_bound=2)
    flags.DEFINE_integer("images", 24_000, "To train on.")
    flags.DEFINE_string("results", str(RESULTS), "The rows; table and picture go beside it.")
    flags.DEFINE_string(
        "cache", "~/.cache/udc_tf/compare", "For data, size fits and random search."
    )
    flags.DEFINE_integer(
        "size_compiles", DEFAULT_CONFIGURATIONS, "Networks that a size fit compiles."
    )
    flags.DEFINE_float("max_minutes", None, "No run begins after that.")
    flags.DEFINE_bool("only_report", False, "No runs.")
    flags.DEFINE_bool("full", False, "The full-size recipes: one UDC and one int8 run of each.")


def _define_choices(name: str, default: list[str], choices: Sequence[str]) -> None:
    flags.DEFINE_list(name, default, f"Of {', '.join(choices)}.")
    flags.register_validator(
        name, lambda given: set(given) <= set(choices), f"must be of {', '.join(choices)}"
    )


def do(bench: Bench, rows: Rows, run: Run) -> Row:
    """Does a run and keeps its row."""
    if run.method != "random":
        row = perform(bench, run)
    elif run.seed == FIRST_SEED:
        number = int(run.setting.split()[-1])
        return run_trials(bench, rows, run, number + 1)
    else:
        first = Run(**{**vars(run), "seed": FIRST_SEED})
        row = random_trial(bench, run, rows.read()[first.key]["draw"])
    rows.add(run, row)
    return row


def next_run(given, sizes, rows: Rows):
    """The first run without a row that no other process is at, with its claim; or None."""
    found = rows.read()
    seeds = [int(s) for s in given.seeds]
    for run in plan(sizes, given.methods, seeds, found):
        if run.key not in found and (claim := rows.claim(run)):
            if run.key not in rows.read():
                return run, claim
            claim.close()
    return None


def all_runs(given, sizes, cache: pathlib.Path, rows: Rows) -> None:
    @functools.cache
    def bench(name: str) -> Bench:
        return Bench(compare_data.load(name, given.images, cache), cache, given.size_compiles)

    began, limit = time.monotonic(), given.max_minutes
    while limit is None or time.monotonic() - began < 60 * limit:
        found = next_run(given, sizes, rows)
        if found is None:
            return
        run, claim = found
        with claim:
            row = do(bench(run.data), rows, run)
        shown = ("validation_accuracy", "test_accuracy", "flash_bytes", "cpu_seconds", "failed")
        print(run.key, *(f"{k} {row[k]}" for k in shown if k in row), sep="; ", flush=True)


def compare(given) -> str:
    """All that the flags, or an object like them, ask for; returns the report."""
    cache = pathlib.Path(given.cache).expanduser()
    rows = Rows(pathlib.Path(given.results), cache / "locks")
    if given.full:
        return compare_full.run(given.data, given.methods, cache, rows.path, given.only_report)
    sizes = {}
    for name in given.data:
        if name.startswith("cifar") and not (given.only_report or compare_data.has_cifar(cache)):
            logging.warning("Without cifar: its files are not on this machine.")
            continue
        budgets = [int(b) for b in given.budgets] or compare_data.BUDGETS[name]
        sizes[name] = (given.epochs, compare_data.training_images(name, given.images), budgets)
    if not given.only_report:
        all_runs(given, sizes, cache, rows)
    return compare_report.write(rows.read(), sizes, rows.path)


if __name__ == "__main__":
    define_flags()
    app.run(lambda _: print(compare(flags.FLAGS)))
