"""What does a front of three budgets cost, against three searches one by one?

Fashion-MNIST at 14x14, 5,000 training images, ResNet8 at half its width. Alone, each budget is
searched for 12 epochs, 2.4 of them the warm-up (the default share). The front: 12 epochs a budget,
of which the first 8 are trained once for all. Every network found is then finetuned for 5 epochs
and tested on the 10,000 test images. CPU seconds of one process on one core with one thread each
for TensorFlow's two pools, tracing included; so it is the search alone, and search and finetuning
together. Epochs are counted too: they are what remains of the cost in a long run.

    python -m benchmarks.front                  # resumes run by run; writes front.json
    python -m benchmarks.front --seeds 0,1,2
"""

import argparse
import json
import os
import pathlib
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

import udc_tf
from benchmarks.finetune_data import fashion_mnist_14, resnet8
from udc_tf.files import replaced_atomically
from udc_tf.search.front import shared_epochs

RESULTS = pathlib.Path(__file__).with_suffix(".json")
BUDGETS = ("11KiB", "14KiB", "18KiB")
IMAGES, BATCH = 5000, 128
ALONE_EPOCHS, FRONT_EPOCHS, FINETUNE_EPOCHS = 12, 12, 5
FRONT_WARMUP = 2 / 3


def make_search(seed: int, budget: str, **settings) -> udc_tf.SearchModel:
    keras.utils.set_random_seed(seed)
    settings = udc_tf.SearchSettings(seed=seed, **settings)
    search = udc_tf.make_searchable(resnet8(0.5), "ethos_u55", udc_tf.Flash(budget), settings)
    search.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return search


def alone(seed: int, budget: str, x, y):
    """Architecture, CPU seconds and epochs of one search."""
    started = time.process_time()
    search = make_search(seed, budget)
    search.fit(x, y, batch_size=BATCH, epochs=ALONE_EPOCHS, verbose=0)
    return [search.architecture()], time.process_time() - started, ALONE_EPOCHS


def front(seed: int, x, y):
    """The architectures, CPU seconds and epochs of all budgets together."""
    started = time.process_time()
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
    return found, time.process_time() - started, epochs


def finetuned(architecture, seed: int, train, test) -> dict[str, float]:
    """Test accuracy of a finetuned network, and what that took."""
    started = time.process_time()
    tiny = architecture.build()
    stages = udc_tf.Stages(epochs=FINETUNE_EPOCHS)
    udc_tf.finetune(tiny, train, stages=stages, batch_size=BATCH, seed=seed, verbose=0)
    seconds = time.process_time() - started
    accuracy = tiny.evaluate(*test, batch_size=500, verbose=0, return_dict=True)["accuracy"]
    return {
        "predicted flash": architecture.flash_bytes,
        "accuracy": round(accuracy, 4),
        "finetuning, s": round(seconds, 1),
    }


def measure(seed: int, budgets: tuple[str, ...], searched, train, test) -> dict:
    found, seconds, epochs = searched
    return {
        "search, s": round(seconds, 1),
        "search, epochs": epochs,
        "networks": {
            budget: finetuned(architecture, seed, train, test)
            for budget, architecture in zip(budgets, found, strict=True)
        },
    }


def summarize(runs: dict[str, dict], seeds: list[int]) -> dict:
    """Ratios of cost over all seeds, and differences in accuracy, front minus alone."""
    cost = {"alone": np.zeros(3), "front": np.zeros(3)}
    accuracy = {"alone": [], "front": []}
    for seed in seeds:
        for kind, keys in (
            ("alone", [f"seed {seed}/alone/{b}" for b in BUDGETS]),
            ("front", [f"seed {seed}/front"]),
        ):
            networks = [n for key in keys for n in runs[key]["networks"].values()]
            accuracy[kind].append([n["accuracy"] for n in networks])
            search = sum(runs[key]["search, s"] for key in keys)
            whole = search + sum(n["finetuning, s"] for n in networks)
            cost[kind] += [search, whole, sum(runs[key]["search, epochs"] for key in keys)]
    ratio = cost["front"] / cost["alone"]
    alone, shared = np.array(accuracy["alone"]), np.array(accuracy["front"])
    summary = {
        "seeds": seeds,
        "front / alone, CPU of the search": round(ratio[0], 3),
        "front / alone, CPU of search and finetuning": round(ratio[1], 3),
        "front / alone, epochs of the search": round(ratio[2], 3),
        "accuracy alone, mean by budget": alone.mean(0).round(4).tolist(),
        "accuracy front, mean by budget": shared.mean(0).round(4).tolist(),
        "front - alone, mean": round(float((shared - alone).mean()), 4),
        "front - alone, each": (shared - alone).round(4).tolist(),
    }
    if len(seeds) > 1:
        # Of one search alone, at one budget.
        summary["standard deviation over seeds, alone"] = round(
            float(np.sqrt(alone.var(0, ddof=1).mean())), 4
        )
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1")
    seeds = [int(s) for s in parser.parse_args().seeds.split(",")]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}
    train, test = fashion_mnist_14(IMAGES)

    def keep(key, budgets, search):
        if key in results["runs"]:
            return
        results["runs"][key] = measure(seed, budgets, search(), train, test)
        print(key, results["runs"][key], flush=True)
        keras.backend.clear_session()
        write(results)

    for seed in seeds:
        keep(f"seed {seed}/front", BUDGETS, lambda seed=seed: front(seed, *train))
        for b in BUDGETS:
            keep(f"seed {seed}/alone/{b}", (b,), lambda s=seed, b=b: alone(s, b, *train))
    results["summary"] = summarize(results["runs"], seeds)
    write(results)
    print(json.dumps(results["summary"], indent=1))


def write(results: dict) -> None:
    with replaced_atomically(RESULTS) as partial:
        partial.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
