"""What a search step costs beside a plain training step of the same network and batch.

CPU time and wall time, interleaved in one process: a round of plain steps, one of search steps with
the full `ethos_u55` space, one with two options a decision, and again. Ratios are medians over
rounds. Times alone mean little on a shared machine; the ratios do.

    python -m benchmarks.step_overhead                 # resumes; writes step_overhead.json
"""

import json
import pathlib
import resource
import time

import keras
import numpy as np
import tensorflow as tf

import udc_tf
from udc_tf.files import replaced_atomically
from udc_tf.models import mobilenet_v2, resnet8

RESULTS = pathlib.Path(__file__).with_suffix(".json")
NETWORKS = {
    "resnet8, 32x32, batch 128": (lambda: resnet8((32, 32, 3)), 32, 128, "24KiB"),
    "mobilenet_v2 0.35, 32x32, batch 64": (
        lambda: mobilenet_v2((32, 32, 3), classes=10, alpha=0.35), 32, 64, "256KiB",
    ),
    "mobilenet_v2 0.35, 96x96, batch 64": (
        lambda: mobilenet_v2((96, 96, 3), classes=10, alpha=0.35), 96, 64, "256KiB",
    ),
}  # fmt: skip
TWO_OPTIONS = udc_tf.SearchSpace(widths=(0.5, 1.0), bits=(4, 8), sparsities=(0.1, 1.0))
ROUNDS, STEPS = 6, 16  # a round holds one refresh of the masks


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(make, image: int, batch: int, budget: str) -> dict[str, float]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, image, image, 3)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, rng.integers(0, 10, batch))).repeat(STEPS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    models = {"plain": make()}
    models["plain"].compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss, jit_compile=False)
    for name, space in (("full", "ethos_u55"), ("two", TWO_OPTIONS)):
        models[name] = udc_tf.make_searchable(make(), space, udc_tf.Flash(budget))
        # Slow: what is measured are steps on noise, not training.
        slow = keras.optimizers.SGD(1e-3, momentum=0.9), keras.optimizers.Adam(1e-3)
        models[name].compile(*slow, loss=loss)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for _ in range(ROUNDS + 1):
        for name, model in models.items():
            cpu, wall = _cpu_seconds(), time.perf_counter()
            model.fit(data, verbose=0, shuffle=False)
            seconds[name].append((_cpu_seconds() - cpu, time.perf_counter() - wall))
    times = {name: np.asarray(rows[1:]) for name, rows in seconds.items()}  # not the tracing

    def ratio(a, b):
        return [round(float(v), 3) for v in np.median(times[a] / times[b], axis=0)]

    return {
        "plain step, CPU seconds": round(float(np.median(times["plain"][:, 0])) / STEPS, 4),
        "search / plain (CPU, wall)": ratio("full", "plain"),
        "full space / two options (CPU, wall)": ratio("full", "two"),
    }


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, case in NETWORKS.items():
        if name in results:
            continue
        results[name] = measure(*case)
        print(name, results[name], flush=True)
        with replaced_atomically(RESULTS) as partial:
            partial.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
