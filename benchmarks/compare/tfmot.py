"""TFMOT's pruning and quantization-aware training, in a process of its own."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import udc_tf
from benchmarks.compare.methods import channels_of, int8_accuracies, widest_uniform
from benchmarks.compare.runs import Run
from benchmarks.compare.sizing import Bench
from benchmarks.compare.tasks import Task
from benchmarks.harness import Row, Stopwatch
from udc_tf.models import resnet8

SPARSITIES = (0.5, 0.75)
_ATTEMPTS = 4  # the first is short
_SHORT_STAGES, _SHORT_IMAGES = (0, 1, 1), 4_000
_ROOT = pathlib.Path(__file__).parents[2]


def setting_of(sparsity: float) -> str:
    return f"{sparsity:.0%} zeros"


def prune_and_quantize(bench: Bench, run: Run) -> Row:
    """The widest network that fits once it is trained.

    A short training tells how TFMOT's weights compress; if the real one then ends above the budget,
    a narrower network is trained. Only the training of the last one is counted.
    """
    if bench.task.model is not resnet8:
        raise ValueError(f"TFMOT is compared on ResNet8 only. Received: the task {run.data!r}")
    sparsity = float(run.setting.split("%")[0]) / 100
    target = wanted = bench.target(run.budget)
    for attempt in range(_ATTEMPTS):
        watch = Stopwatch()
        arch = widest_uniform(bench, wanted, 8, 1 - sparsity)
        if arch is None:
            return {"budget_met": False, "failed": "no width is small enough"}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "model.tflite")
            stages = udc_tf.Stages(epochs=run.epochs if attempt else _SHORT_STAGES)
            images = None if attempt else _SHORT_IMAGES
            train(bench.task, arch, sparsity, stages, images, run.seed, path)
            training = watch.read().cpu
            compiled = udc_tf.export.compile_with_vela(path, folder, target.accelerator)
            if attempt and compiled.flash_bytes <= run.budget:
                scores = int8_accuracies(path, bench.task)
                cpu, wall = watch.read()
                return {
                    "channels": channels_of(arch),
                    "predicted_bytes": arch.flash_bytes,
                    "training_cpu_seconds": training,
                    "flash_bytes": compiled.flash_bytes,
                    "budget_met": True,
                    **scores,
                    "cpu_seconds": cpu,
                    "seconds": wall,
                }
        spare = run.budget - compiled.flash_bytes
        wanted = dataclasses.replace(wanted, budget=wanted.budget + spare)
    return {"budget_met": False, "failed": f"{_ATTEMPTS} widths compiled to more than the budget"}


def train(
    task: Task,
    arch: udc_tf.Architecture,
    sparsity: float,
    stages: udc_tf.Stages,
    images: int | None,
    seed: int,
    path: pathlib.Path,
) -> None:
    """Writes the int8 .tflite of a network with the channels of `arch`."""
    x, y = (a[:images] for a in task.train)
    rate = stages.learning_rate(-(-len(x) // task.batch_size))
    np.savez(path.with_name("data.npz"), x=x, y=y)
    specification = {
        "data": str(path.with_name("data.npz")),
        "tflite": str(path),
        "input_shape": task.input_shape,
        "filters": {layer.name: layer.outputs for layer in arch.layers},
        "sparsity": sparsity,
        "batch_size": task.batch_size,
        "stages": stages.epochs,
        "rates": list(zip(rate.firsts, rate.lasts, rate.steps, strict=True)),
        "seed": seed,
    }
    spec = path.with_name("spec.json")
    spec.write_text(json.dumps(specification))
    command = [sys.executable, "-m", "benchmarks.compare.tfmot_training", str(spec)]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"TFMOT's training failed:\n{done.stderr[-3000:]}")
