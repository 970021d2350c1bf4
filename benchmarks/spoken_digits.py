"""Does the search pay on an ordinary network? MLPerf Tiny's DS-CNN on spoken digits.

Nothing was tuned on it. Search and finetuning together train as long as the uniform networks, whose
layers are all alike, as wide as fits: equal predicted flash, without a size fit. Speakers who are
heard in training are in neither validation nor test.

    python -m benchmarks.spoken_digits
    python -m benchmarks.spoken_digits --budgets=9500 --methods="default,held at the guess"
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping

import keras
import numpy as np
from absl import flags

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, Stopwatch
from udc_tf.models import ds_cnn
from udc_tf.models.data.arrays import from_npz
from udc_tf.search.decisions import most_likely
from udc_tf.search.extract import describe

BUDGETS, SEEDS = (9_500, 14_000), (0, 1, 2)
IMAGES, BATCH, SEARCH_EPOCHS, EPOCHS = 12_000, 64, 4, 16
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
UNIFORM = {"4 bits dense": (4, 1.0), "4 bits half": (4, 0.5)}
SEARCHES = {
    "default": udc_tf.SearchSettings(),
    "held at the guess": udc_tf.SearchSettings(evidence=0.0),
    # As in the paper, with samples and a rate for runs as short as these.
    "paper": udc_tf.SearchSettings.paper(samples=4, full_batches=False, decision_rate=None),
}
METHODS = (*SEARCHES, *UNIFORM)


@functools.cache
def parts() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Ten coefficients of each frame, scaled by what the training images have."""
    found = from_npz(harness.SHARED / "data" / "spoken_digits.npz")
    bands = found.train.x.shape[-1]
    angles = np.outer(np.arange(bands) + 0.5, np.arange(10)) * np.pi / bands
    arrays = {}
    for name in ("train", "validation", "test"):
        split = getattr(found, name)
        of = slice(IMAGES if name == "train" else None)
        x = split.x[of].astype("float32") / 255 @ np.cos(angles).astype("float32")
        arrays[name] = x[..., None], split.y[of]
    x = arrays["train"][0]
    mean, deviation = (f(x, axis=(0, 1), keepdims=True) for f in (np.mean, np.std))
    return {name: ((x - mean) / deviation, y) for name, (x, y) in arrays.items()}


def searched(method: str, budget: int, seed: int) -> tuple[udc_tf.Architecture, Row]:
    settings = dataclasses.replace(SEARCHES[method], seed=seed)
    still = keras.optimizers.SGD(0.0) if method == "held at the guess" else None
    model = ds_cnn((49, 10, 1), 10)
    search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash(budget), settings)
    search.compile(loss=LOSS, decision_optimizer=still)
    watch = Stopwatch()
    search.fit(*parts()["train"], batch_size=BATCH, epochs=SEARCH_EPOCHS, verbose=0)
    likely = most_likely(search.state.log_probabilities())[None]
    before = {
        "argmax / budget": round(float(search.cost_ratios(likely)[0]), 4),
        "search_cpu_seconds": watch.read().cpu,
    }
    return search.architecture(), before


def widest(budget: int, bits: int, nonzeros: float) -> udc_tf.Architecture:
    space = udc_tf.SearchSpace(
        widths=tuple(n / 64 for n in range(1, 65)), bits=(bits,), sparsities=(nonzeros,)
    )
    any_size = udc_tf.Flash("64MiB")
    search = udc_tf.make_searchable(ds_cnn((49, 10, 1), 10), space, any_size)
    for n in range(63, -1, -1):
        arch = describe(search, np.full(len(search.problem.plan.decisions), n))
        if arch.flash_bytes <= budget:
            return arch
    raise ValueError(f"No width is small enough. Received: {bits} bits, {nonzeros:.0%}")


def measure(method: str, budget: int, seed: int) -> Row:
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    watch = Stopwatch()
    if method in UNIFORM:
        arch, row = widest(budget, *UNIFORM[method]), {}
        tiny, epochs = arch.build(inherit_weights=False), EPOCHS
    else:
        arch, row = searched(method, budget, seed)
        tiny, epochs = arch.build(), EPOCHS - SEARCH_EPOCHS
    stages = udc_tf.Stages(epochs=epochs)
    udc_tf.finetune(tiny, parts()["train"], stages=stages, batch_size=BATCH, seed=seed, verbose=0)
    tiny.compile(loss=LOSS, metrics=["accuracy"])
    for part in ("validation", "test"):
        row[part] = round(tiny.evaluate(*parts()[part], verbose=0, return_dict=True)["accuracy"], 4)
    layers = [(q.outputs, q.bits, round(q.nonzeros, 3)) for q in arch.layers]
    seconds = watch.read().cpu
    return {**row, "bytes": arch.flash_bytes, "layers": layers, "cpu_seconds": seconds}


def report(rows: Mapping[str, Row]) -> str:
    lines = []
    for budget, method in itertools.product(BUDGETS, METHODS):
        of = [row for key, row in rows.items() if key.startswith(f"{budget} bytes, {method}, ")]
        accuracies = [
            harness.mean_and_deviation([row[part] for row in of], 100)
            for part in ("validation", "test")
        ]
        if of:
            lines.append([f"{budget:,}", method, *accuracies, len(of)])
    return harness.table(("bytes", "network", "validation, %", "test, %", "seeds"), lines)


def run(rows: Rows) -> str:
    given = flags.FLAGS
    for budget, seed, method in itertools.product(map(int, given.budgets), SEEDS, given.methods):
        key = f"{budget} bytes, {method}, seed {seed}"
        rows.once(key, functools.partial(measure, method, budget, seed))
    return harness.write(rows.path.with_suffix(".md"), report(rows.read()))


if __name__ == "__main__":
    flags.DEFINE_list("budgets", [str(b) for b in BUDGETS], "Bytes.")
    flags.DEFINE_list("methods", list(METHODS), f"Of {', '.join(METHODS)}.")
    harness.main(run, "spoken_digits")
