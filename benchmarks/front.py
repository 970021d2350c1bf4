"""What does a front of three budgets cost, against three searches one by one?

Fashion-MNIST at 14x14, 5,000 training images, ResNet8 at half its width. Alone, each budget is
searched for 12 epochs, 2.4 of them the warm-up (the default share). The front: 12 epochs for each
budget, of which the first 8 are trained once for all. Every network found is then finetuned for 5
epochs and tested on the 10,000 test images. CPU seconds of one process on one core with one thread
each for TensorFlow's two pools, tracing included: of the search alone, and of search and finetuning
together. Epochs are counted too: they are what remains of the cost in a long run.

    python -m benchmarks.front
    python -m benchmarks.front --seeds=0,1,2
"""

import functools
import os
import tempfile
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from absl import flags

import udc_tf
from benchmarks import harness
from benchmarks.data import fashion_mnist_14
from benchmarks.harness import Row, Rows, Stopwatch, table
from benchmarks.networks import resnet8_14
from udc_tf.search.front import shared_epochs

BUDGETS = ("11KiB", "14KiB", "18KiB")
IMAGES, BATCH = 5000, 128
ALONE_EPOCHS, FRONT_EPOCHS, FINETUNE_EPOCHS = 12, 12, 5
FRONT_WARMUP = 2 / 3


def make_search(seed: int, budget: str, **settings) -> udc_tf.SearchModel:
    keras.utils.set_random_seed(seed)
    settings = udc_tf.SearchSettings(seed=seed, **settings)
    search = udc_tf.make_searchable(resnet8_14(0.5), "ethos_u55", udc_tf.Flash(budget), settings)
    search.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return search


def alone(seed: int, budget: str, x, y):
    """Architecture, CPU seconds and epochs of one search."""
    watch = Stopwatch()
    search = make_search(seed, budget)
    search.fit(x, y, batch_size=BATCH, epochs=ALONE_EPOCHS, verbose=0)
    return [search.architecture()], watch.read().cpu, ALONE_EPOCHS


def front(seed: int, x, y):
    """The architectures, CPU seconds and epochs of all budgets together."""
    watch = Stopwatch()
    search = make_search(seed, BUDGETS[1], warmup=FRONT_WARMUP)
    with tempfile.TemporaryDirectory() as folder:
        found = udc_tf.search_front(
            search,
            [udc_tf.Flash(b) for b in BUDGETS],
            x,
            y,
            epochs=FRONT_EPOCHS,
            workdir=folder,
            batch_size=BATCH,
            verbose=0,
        )
    shared = shared_epochs(FRONT_WARMUP, FRONT_EPOCHS)
    epochs = shared + len(BUDGETS) * (FRONT_EPOCHS - shared)
    return found, watch.read().cpu, epochs


def finetuned(architecture, seed: int, train, test) -> dict[str, float]:
    """Test accuracy of a finetuned network, and what that took."""
    watch = Stopwatch()
    tiny = architecture.build()
    stages = udc_tf.Stages(epochs=FINETUNE_EPOCHS)
    udc_tf.finetune(tiny, train, stages=stages, batch_size=BATCH, seed=seed, verbose=0)
    seconds = watch.read().cpu
    accuracy = tiny.evaluate(*test, batch_size=500, verbose=0, return_dict=True)["accuracy"]
    return {
        "predicted flash": architecture.flash_bytes,
        "accuracy": round(accuracy, 4),
        "finetuning, s": seconds,
    }


def measure(seed: int, budgets: Sequence[str]) -> Row:
    """A search for one budget, or a front of several; and each network finetuned."""
    keras.backend.clear_session()
    train, test = fashion_mnist_14(IMAGES)
    single = len(budgets) == 1
    found, seconds, epochs = alone(seed, *budgets, *train) if single else front(seed, *train)
    return {
        "search, s": seconds,
        "search, epochs": epochs,
        "networks": {
            budget: finetuned(architecture, seed, train, test)
            for budget, architecture in zip(budgets, found, strict=True)
        },
    }


def front_key(seed: int) -> str:
    return f"seed {seed}/front"


def alone_key(seed: int, budget: str) -> str:
    return f"seed {seed}/alone/{budget}"


def report(rows: Mapping[str, Row]) -> str:
    """Ratios of cost over all seeds that are complete, and differences in accuracy."""
    cost = {"alone": np.zeros(3), "front": np.zeros(3)}
    accuracy: dict[str, list] = {"alone": [], "front": []}
    seeds = [int(key.split("/")[0].split()[1]) for key in rows if key.endswith("/front")]
    seeds = [s for s in seeds if all(alone_key(s, b) in rows for b in BUDGETS)]
    for seed in seeds:
        kinds = {"alone": [alone_key(seed, b) for b in BUDGETS], "front": [front_key(seed)]}
        for kind, keys in kinds.items():
            networks = [n for key in keys for n in rows[key]["networks"].values()]
            accuracy[kind].append([n["accuracy"] for n in networks])
            search = sum(rows[key]["search, s"] for key in keys)
            whole = search + sum(n["finetuning, s"] for n in networks)
            cost[kind] += [search, whole, sum(rows[key]["search, epochs"] for key in keys)]
    searches, wholes, epochs = cost["front"] / cost["alone"]
    single, shared = (100 * np.array(accuracy[kind]) for kind in ("alone", "front"))
    gaps = shared - single
    spread = np.sqrt(single.var(0, ddof=1).mean()) if len(seeds) > 1 else np.nan
    return table(
        (f"front against single searches, {len(BUDGETS)} budgets, {len(seeds)} seeds", ""),
        [
            ("processor time of the search", f"{searches:.2f}"),
            ("processor time of search and finetuning", f"{wholes:.2f}"),
            ("epochs of the search", f"{epochs:.2f}"),
            ("accuracy, points: mean", f"{gaps.mean():+.2f}"),
            ("accuracy, points: least, most", f"{gaps.min():+.2f}, {gaps.max():+.2f}"),
            ("standard deviation over seeds of a single search, points", f"{spread:.2f}"),
        ],
    )


def run(rows: Rows) -> str:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for seed in map(int, flags.FLAGS.seeds):
        rows.once(front_key(seed), functools.partial(measure, seed, BUDGETS))
        for budget in BUDGETS:
            rows.once(alone_key(seed, budget), functools.partial(measure, seed, (budget,)))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_list("seeds", ["0", "1"], "One after the other.")
    harness.main(run, "front")
