"""Networks to take home: `zoo/`, three budgets of each, with all that firmware needs.

    python -m benchmarks.take_home                        # what has no row yet
    python -m benchmarks.take_home --networks=activity    # one of them
    python -m benchmarks.take_home --only_report          # the cards, and the table of the README

Each network is what one command finds, `udc --recipe=NAME --flash=A,B,C`, in a work directory under
`--work`, so that an interrupted run goes on. With its row, the files of seed 0 go to `zoo/`, beside
a card. The int8 network of the same family, at full width, is trained for as many epochs. Training
is far shorter than the recipes have it, for time; the cards say what it was.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import zipfile
from collections.abc import Callable

import keras
import numpy as np
from absl import flags

import udc_tf
import udc_tf.export
from benchmarks import harness, zoo_cards
from benchmarks.data import mlperf_tiny
from benchmarks.harness import SHARED, Row, Rows, Stopwatch
from benchmarks.zoo_networks import NETWORKS, Network
from udc_tf.cli import training_steps
from udc_tf.cli.flags import make_flags, options_of
from udc_tf.cli.options import resolve
from udc_tf.cli.tasks import task_of

ACCELERATOR = "ethos-u55-128"
_UDC = (sys.executable, "-c", "from udc_tf.cli.commands import udc; udc()")
_LARGE = "1MiB"  # a budget that no int8 network here comes near


def measure(name: str, seed: int) -> Row:
    """What the command found for each budget."""
    network = NETWORKS[name]
    here = os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
    command = [*_UDC, *network.command(seed), f"--workdir={workdir(name, seed).name}"]
    folder = workdir(name, seed).parent
    subprocess.run(command, check=True, cwd=folder, env=here)
    found = {budget: _found(workdir(name, seed) / budget) for budget in network.budgets}
    return {"flags": network.command(seed), "budgets": found}


def _found(work: pathlib.Path) -> Row:
    results = json.loads((work / "results.json").read_text())
    manifest = json.loads((work / "artefacts" / "manifest.json").read_text())
    ran = {row["runner"]: row for row in results["verification"]}
    return {
        "metric": results["metric"],
        "validation": results["validation_score"],
        "test": results["test_score"],
        "examples": results["examples"],
        "sets": results.get("sets", {}),
        "flash": manifest["flash_bytes"],
        "budget": results["flash_budget"],
        "sram": manifest["sram_bytes"],
        "cycles": manifest["estimated_cycles"],
        "macs": manifest["macs"],
        "unlike_tflm": ran["npu"]["differs_from_tflm"],
        "verified_on": ran["npu"]["examples"],
        "wall_seconds": sum(v for k, v in results.items() if k.endswith("_seconds")),
    }


def measure_int8(name: str, seed: int = 0, width: float = 1.0) -> Row:
    """The same network with 8 bits, dense, trained for as many epochs; at full width by default."""
    values = make_flags()
    values(["udc", *NETWORKS[name].command(seed), f"--flash={_LARGE}"])
    with contextlib.chdir(workdir(name, 0).parent):
        run = resolve(options_of(values))
        recipe, task, data = run.recipe, task_of(run.recipe.task), run.load_data()
        epochs = recipe.search_epochs + recipe.stages.total_epochs
        watch = Stopwatch()
        whole = run.build_model(data.input_shape, data.classes)
        tiny = udc_tf.compact(whole, width=width, bits=8)
        folder = f"int8_width_{width}_seed_{seed}"
        stages = dataclasses.replace(recipe.stages, epochs=epochs)
        udc_tf.finetune(
            tiny,
            data.training_batches(recipe.batch_size, recipe.augmentation, run.seed),
            validation_data=data.batches("validation", recipe.batch_size),
            stages=stages,
            loss=task.loss(tiny, stages.label_smoothing),
            metrics=task.metrics(),
            optimizer=keras.optimizers.Adam() if recipe.optimizer == "adam" else None,
            workdir=f"{folder}_state",
            seed=run.seed,
            verbose=2,
        )
        scores = training_steps.evaluate_parts(run, tiny, data)
        calibration = training_steps.calibration_inputs(data)
        made = udc_tf.export.export(tiny, folder, accelerator=ACCELERATOR, calibration=calibration)
    return {
        "epochs": epochs,
        "validation": scores["validation_score"],
        "test": scores["test_score"],
        "flash": made.flash_bytes,
        "sram": made.sram_bytes,
        "cycles": made.manifest["estimated_cycles"],
        "macs": made.manifest["macs"],
        "cpu_seconds": watch.read().cpu,
    }


def measure_mlperf(path: pathlib.Path, folder: pathlib.Path) -> Row:
    """MLPerf Tiny's own int8 file, compiled as ours are."""
    made = udc_tf.export.compile_with_vela(path, folder, accelerator=ACCELERATOR)
    return {"flash": made.flash_bytes, "sram": made.sram_bytes}


def define_work() -> None:
    flags.DEFINE_string("work", "build/take_home", "Where the work directories are.")


def workdir(name: str, seed: int) -> pathlib.Path:
    return pathlib.Path(flags.FLAGS.work).resolve() / name / f"seed_{seed}"


def prepare(network: Network, folder: pathlib.Path) -> None:
    """Puts the data where the command looks for them: beside its work directory."""
    folder.mkdir(parents=True, exist_ok=True)
    if (target := folder / network.file).exists() or not network.file:
        return
    made = _DATA[network.file]()
    if isinstance(made, pathlib.Path):
        target.symlink_to(made)
    else:
        np.savez(target, **made)


def _cifar10() -> dict[str, np.ndarray]:
    """The JPEG files of `cifar10_jpeg.npz` as pixels."""
    from PIL import Image

    arrays = {}
    with np.load(SHARED / "data" / "cifar10_jpeg.npz") as packed:
        for part in ("train", "test"):
            content, ends = packed[f"{part}_bytes"].tobytes(), packed[f"{part}_offsets"]
            opened = (
                Image.open(io.BytesIO(content[a:b])).convert("RGB")
                for a, b in itertools.pairwise(ends)
            )
            arrays[f"x_{part}"] = np.stack([np.asarray(image) for image in opened])
            arrays[f"y_{part}"] = packed[f"{part}_labels"]
    return arrays


def _activity() -> dict[str, np.ndarray]:
    """Seglearn's recordings of exercises, in windows of 128 steps, every 64; split by persons."""
    folder = pathlib.Path(flags.FLAGS.work)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
    subprocess.run([*pip, "seglearn==1.2.5"], check=True)
    with zipfile.ZipFile(next(folder.glob("seglearn-1.2.5*.whl"))) as wheel:
        packed = io.BytesIO(wheel.read("seglearn/data/watch_dataset.npy"))
    # Lists of recordings of unequal length, which the package keeps as a pickle. It is trusted as
    # any pinned package is that pip installs.
    recordings = np.load(packed, allow_pickle=True).item()
    parts: dict[str, list] = {}
    for x, y, person in zip(*(recordings[key] for key in ("X", "y", "subject")), strict=True):
        part = "test" if person > 8 else "validation" if person == 8 else "train"
        for start in range(0, len(x) - 127, 64):
            parts.setdefault(f"x_{part}", []).append(x[start : start + 128])
            parts.setdefault(f"y_{part}", []).append(int(y))
    return {name: np.asarray(v, np.float32 if name[0] == "x" else int) for name, v in parts.items()}


_DATA: dict[str, Callable[[], pathlib.Path | dict[str, np.ndarray]]] = {
    "spoken_digits.npz": lambda: SHARED / "data" / "spoken_digits.npz",
    "super_resolution": lambda: SHARED / "data" / "super_resolution",
    "cifar10.npz": _cifar10,
    "activity.npz": _activity,
}


def run(rows: Rows) -> str:
    given = flags.FLAGS
    for name in given.networks or NETWORKS:
        if not given.only_report:
            prepare(NETWORKS[name], workdir(name, 0).parent)
        for seed in map(int, given.seeds):
            rows.once(f"{name}/{seed}", functools.partial(measure, name, seed))
        rows.once(f"{name}/int8", functools.partial(measure_int8, name))
    for name, path in mlperf_tiny().items():
        folder = pathlib.Path(given.work, "mlperf_tiny")
        rows.once(f"mlperf_tiny/{name}", functools.partial(measure_mlperf, path, folder))
    found = rows.read()
    if not given.only_report:
        for name in NETWORKS:
            if f"{name}/0" in found and workdir(name, 0).is_dir():
                zoo_cards.take_files(name, workdir(name, 0))
    zoo_cards.write_cards(found)
    zoo_cards.write_results(found)
    return harness.write(zoo_cards.ZOO / "README.md", zoo_cards.overview(found))


if __name__ == "__main__":
    define_work()
    flags.DEFINE_list("networks", [], "Which; all by default.")
    flags.DEFINE_list("seeds", ["0"], "The files are those of seed 0.")
    harness.main(run, "take_home")
