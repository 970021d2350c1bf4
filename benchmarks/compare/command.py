"""Is UDC better? At equal compiled flash and equal total training, beside what else there is.

    python -m benchmarks.compare                         # runs what is missing, then reports
    python -m benchmarks.compare --only_report           # table and picture from what there is
    python -m benchmarks.compare --data=fashion --methods=udc,uniform --seeds=0 --max_minutes=60
    python -m benchmarks.compare --data=cifar_ds_cnn --methods=udc,uniform,int8_width,int8_full \\
        --results=benchmarks/results/compare_ds_cnn.json     # another network

Every run adds its row to results/compare.json; compare.md is the table, compare.png the picture.
Several processes may share the work (start the same command again): a run is claimed by a lock, so
none is done twice. Fashion-MNIST is pooled to 14x14, CIFAR-10 to 16x16; the network is a ResNet8.
--full does the recipes of `udc_tf.models` instead, UDC and plain int8, each once and for hours.

- udc: search, 16,000 images or an epoch if that is more, and finetuning.
- uniform: one width, bitwidth and density for all inner layers, the widest that fits, trained for
  all epochs; the best of the grid. int8_width: its 8 dense bits. int8_full: these at full width.
- random: trials of `random_search.py`, each trained for all epochs, best of 3 and of 10.
- tfmot: pruning and quantization-aware training with TFMOT, the best of two sparsities.
- dnas: plain differentiable search, the best of five lambdas, repaired to the budget; then as udc.

Choices are made on validation images; settings are repeated with further seeds once chosen.
"""

import dataclasses
import functools
import pathlib

import keras
from absl import logging

from benchmarks.compare import full, report, tasks
from benchmarks.compare.methods import (
    RECIPES,
    dnas_recipe,
    random_trial,
    search_method,
    uniform,
)
from benchmarks.compare.plan import FIRST_SEED, Sizes, plan
from benchmarks.compare.random_search import run_trials
from benchmarks.compare.runs import Run
from benchmarks.compare.sizing import Bench
from benchmarks.compare.tfmot import prune_and_quantize
from benchmarks.harness import Row, Rows, rows_of

_SHOWN = ("validation_accuracy", "test_accuracy", "flash_bytes", "cpu_seconds", "failed")


def do(bench: Bench, rows: Rows, run: Run) -> Row:
    """Does a run and keeps its row."""
    if run.method == "random" and run.seed == FIRST_SEED:
        number = int(run.setting.split()[-1])
        return run_trials(bench, rows, run, number + 1)
    row = run.row(_perform(bench, rows, run))
    rows.add(run.key, row)
    return row


def _perform(bench: Bench, rows: Rows, run: Run) -> Row:
    keras.utils.clear_session()
    if run.budget is not None:
        bench.target(run.budget)  # a size fit that is made now is not this run's time
    if run.method in RECIPES:
        return search_method(bench, run, RECIPES[run.method])
    if run.method == "dnas":
        return search_method(bench, run, dnas_recipe(run.setting))
    if run.method in ("uniform", "int8_full"):
        return uniform(bench, run)
    if run.method == "tfmot":
        return prune_and_quantize(bench, run)
    if run.method == "random":
        first = dataclasses.replace(run, seed=FIRST_SEED)
        return random_trial(bench, run, rows.read()[first.key]["draw"])
    raise ValueError(f"There is no such method. Received: {run.method!r}")


def next_run(given, sizes: Sizes, rows: Rows):
    """The first run without a row that no other process is at, with its claim; or None."""
    found = rows.read()
    seeds = [int(s) for s in given.seeds]
    for run in plan(sizes, given.methods, seeds, found):
        if run.key not in found and (claim := rows.claim(run.lane)):
            if run.key not in rows.read():
                return run, claim
            claim.close()
    return None


def all_runs(given, sizes: Sizes, cache: pathlib.Path, rows: Rows) -> None:
    @functools.cache
    def bench(name: str) -> Bench:
        return Bench(tasks.load(name, given.images, cache), cache, given.size_compiles)

    while found := next_run(given, sizes, rows):
        run, claim = found
        with claim:
            row = do(bench(run.data), rows, run)
        print(run.key, *(f"{k} {row[k]}" for k in _SHOWN if k in row), sep="; ", flush=True)


def compare(given) -> str:
    """All that the flags, or an object like them, ask for; returns the report."""
    cache, rows = pathlib.Path(given.cache).expanduser(), rows_of(given)
    if given.full:
        beside = rows.path.with_name(f"{rows.path.stem}_full.json")
        full_rows = Rows(beside, given.only_report, given.max_minutes)
        return full.run(given.data, given.methods, cache, full_rows)
    sizes = {}
    for name in given.data:
        if name.startswith("cifar") and not (given.only_report or tasks.has_cifar(cache)):
            logging.warning("Without cifar: its files are not on this machine.")
            continue
        budgets = [int(b) for b in given.budgets] or tasks.BUDGETS[name]
        sizes[name] = (given.epochs, tasks.training_images(name, given.images), budgets)
    all_runs(given, sizes, cache, rows)
    return report.write_report(rows.read(), sizes, rows.path)
