"""What gradient should a pruned weight get inside the search?

Networks of one configuration are trained by the search's own machinery (four samples a step, masks
refreshed every 16 steps, ranks within the active slice): width x non-zeros at 4 bits, for several
shares of the gradient that pruned weights keep. Fashion-MNIST pooled to 14x14, 10,000 training
images; accuracy on the test set after the batch norms are measured anew.

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
SHARES = (0.0, 0.1, 1.0)
SEEDS = (0, 1, 2)
EPOCHS, BATCH = 12, 128


def run(width: float, nonzeros: float, share: float, seed: int, train, test) -> dict[str, float]:
    keras.utils.set_random_seed(seed)
    model = resnet8((14, 14, 1))
    last = model.layers[-1].name
    space = udc_tf.SearchSpace(
        widths=(width,),
        bits=(4,),
        sparsities=(nonzeros,),
        overrides={last: {"bits": (4, 8)}},  # a search needs something to decide
    )
    settings = udc_tf.SearchSettings(pruned_gradient=share, seed=seed, warmup=0.0)
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
    train, test = fashion_mnist_14(10_000)
    for seed, share, name in itertools.product(SEEDS, SHARES, NETWORKS):
        key = f"{name}/share {share}/seed {seed}"
        if key in results or (NETWORKS[name][1] == 1.0 and share != SHARES[0]):
            continue
        results[key] = run(*NETWORKS[name], share, seed, train, test)
        print(key, results[key], flush=True)
        with replaced_atomically(RESULTS) as partial:
            partial.write_text(json.dumps(results, indent=1) + "\n")
    for name, share in itertools.product(NETWORKS, SHARES):
        found = [v["accuracy"] for k, v in results.items() if k.startswith(f"{name}/share {share}/")]
        if found:
            print(f"{name:12} share {share}: {np.mean(found):.4f} +- {np.std(found):.4f}")


if __name__ == "__main__":
    main()
