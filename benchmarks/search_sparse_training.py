"""How should sparse, few-bit weights be trained inside the search?

Networks of one configuration are trained by the search's own machinery (four samples a step, masks
refreshed every 16 steps, ranks within the active slice): width x non-zeros at 4 bits. Compared are
the share of its gradient that a pruned weight keeps, and whether the quantization ranges follow the
weights at each refresh or have their gradient alone. Fashion-MNIST pooled to 14x14, 6,000 training
images; accuracy on the 10,000 of the test set after the batch norms are measured anew.

    python -m benchmarks.search_sparse_training        # resumes; writes search_sparse_training.json
"""

import itertools
import json
import pathlib
import time

import keras
import numpy as np

import udc_tf
from benchmarks.finetune_data import fashion_mnist_14
from udc_tf.files import replaced_atomically
from udc_tf.models import resnet8

RESULTS = pathlib.Path(__file__).with_suffix(".json")
NETWORKS = {"0.2 dense": (0.2, 1.0), "0.3 at 40%": (0.3, 0.4), "0.5 at 15%": (0.5, 0.15)}
VARIANTS = {  # share of the gradient, how far ranges follow
    "none, ranges follow": (0.0, 0.5),
    "none, ranges by gradient": (0.0, 0.0),
    "a tenth, ranges follow": (0.1, 0.5),
    "straight through, ranges follow": (1.0, 0.5),
}
SEEDS = (0, 1, 2)
EPOCHS, BATCH, IMAGES = 8, 64, 6_000


def run(width, nonzeros, share, follow, seed: int, train, test) -> dict[str, float]:
    keras.utils.set_random_seed(seed)
    model = resnet8((14, 14, 1))
    last = model.layers[-1].name
    space = udc_tf.SearchSpace(
        widths=(width,),
        bits=(4,),
        sparsities=(nonzeros,),
        overrides={last: {"bits": (4, 8)}},  # a search needs something to decide
    )
    settings = udc_tf.SearchSettings(
        pruned_gradient=share, range_follow=follow, seed=seed, warmup=0.0
    )
    search = udc_tf.make_searchable(model, space, udc_tf.Flash("16KiB"), settings)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    search.compile(loss=loss)
    started = time.perf_counter()
    search.fit(*train, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    tiny = search.architecture().build()
    tiny.compile(loss=loss, metrics=["accuracy"])
    kernels = [layer.theta.numpy() for layer in tiny.layers if hasattr(layer, "theta")]
    return {
        "accuracy": float(tiny.evaluate(*test, batch_size=500, verbose=0)[1]),
        "weight_norm": float(sum((k**2).sum() for k in kernels)),
        "seconds": round(time.perf_counter() - started),
    }


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    train, test = fashion_mnist_14(IMAGES)
    for seed, variant, name in itertools.product(SEEDS, VARIANTS, NETWORKS):
        key = f"{name}/{variant}/seed {seed}"
        # The share of the gradient of pruned weights means nothing where none are pruned.
        if key in results or (NETWORKS[name][1] == 1.0 and VARIANTS[variant][0] > 0):
            continue
        results[key] = run(*NETWORKS[name], *VARIANTS[variant], seed, train, test)
        print(key, results[key], flush=True)
        with replaced_atomically(RESULTS) as partial:
            partial.write_text(json.dumps(results, indent=1) + "\n")
    for name, variant in itertools.product(NETWORKS, VARIANTS):
        found = [v["accuracy"] for k, v in results.items() if k.startswith(f"{name}/{variant}/")]
        if found:
            print(f"{name:12} {variant:32} {np.mean(found):.4f} +- {np.std(found):.4f}")


if __name__ == "__main__":
    main()
