"""What each part of finetuning is worth.

    python -m benchmarks.finetune_matrix
    python -m benchmarks.finetune_matrix --groups=parts --seeds=0

All networks are ResNet8s on Fashion-MNIST at 14x14, trained equally long from fresh weights unless
a row says otherwise. Accuracy is that of `evaluate` after finetuning: integer weights, 8-bit
activations. The table goes beside the rows.
"""

import functools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from benchmarks import harness
from benchmarks.data import fashion_mnist_14
from benchmarks.harness import Row, Rows, Stopwatch, table, write
from benchmarks.networks import resnet8_14, uniform_compact
from udc_tf.finetune.run import finetune
from udc_tf.finetune.stages import Cosine, Stages
from udc_tf.layers.inventory import kernel_layers

EPOCHS, TRAIN_IMAGES, BATCH, SEEDS = 6, 8_000, 64, (0, 1, 2)

NARROW, MIDDLE, WIDE = (0.2, 4, 1.0), (0.3, 4, 0.4), (0.5, 4, 0.15)
TASK = (0.5, 4, 0.2)  # width, bits, non-zeros

# Pruned and quantized from the first step; the same course of the learning rate.
SCRATCH = {
    "epochs": (0, 5, 1),
    "prune_until": 0.0,
    "learning_rates": (Cosine(0.1, 0.1), Cosine(0.1, 0.01), Cosine(0.01, 0.0)),
}

# Group -> label -> (network, changes to the plan). Order: the most telling first.
MATRIX = {
    "soundness": {
        "dense, narrow": (NARROW, {}),
        "sparse, wide": (WIDE, {}),
        "sparse, middle": (MIDDLE, {}),
    },
    "parts": {
        "Q^, three stages, alpha 1, fresh weights": (TASK, {}),
        "Q": (TASK, {"number_format": "plain"}),
        "sparse from scratch": (TASK, SCRATCH),
        "alpha 0.8, in stage 3 1": (TASK, {"alpha": (0.8, 0.8, 1.0)}),
        "weights of 2 float epochs, then 4": (TASK, {"pretrain": 2}),
    },
    "sparse training": {
        "ranges learned alone": (WIDE, {"ranges": "learned"}),
        "gradient through the mask 1": (WIDE, {"pruned_gradient": 1.0}),
        "gradient through the mask 0.1": (WIDE, {"pruned_gradient": 0.1}),
        "ranges learned alone, Q": (WIDE, {"ranges": "learned", "number_format": "plain"}),
        "Q": (WIDE, {"number_format": "plain"}),
        "refresh every step": (WIDE, {"refresh_every": 1}),
        "refresh every 64 steps": (WIDE, {"refresh_every": 64}),
        "pruned by the end of stage 2": (WIDE, {"prune_until": 1.0}),
        "no recalibration": (WIDE, {"calibration_batches": 0}),
    },
}


def measure(network, changes, seed: int) -> Row:
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    (width, bits, nonzeros), changes = network, dict(changes)
    train, test = fashion_mnist_14(TRAIN_IMAGES)
    pretrain = changes.pop("pretrain", 0)
    watch = Stopwatch()
    tiny = uniform_compact(resnet8_14(width), bits, nonzeros)
    if pretrain:
        tiny = pretrained(tiny, width, train, pretrain, seed)
    stages = Stages(**{"epochs": EPOCHS - pretrain, **changes})
    history = finetune(tiny, train, stages=stages, seed=seed, batch_size=BATCH, verbose=0)
    history = history.history
    _, accuracy = tiny.evaluate(*test, batch_size=1000, verbose=0)
    end_of_first = max(0, stages.epochs[0] - 1)
    return {
        "accuracy": round(accuracy, 4),
        "train_accuracy": round(history["accuracy"][-1], 4),
        "weight_norm_before_pruning": round(history["weight_norm"][end_of_first], 1),
        "weight_norm": round(history["weight_norm"][-1], 1),
        "nonzeros": sum(layer.integer_kernel().nonzeros for layer in kernel_layers(tiny)),
        "seconds": round(watch.read().wall),
    }


def pretrained(tiny, width, train, epochs, seed):
    """`tiny` with the weights of the same network trained in float."""
    model = resnet8_14(width)
    steps = epochs * -(-len(train[0]) // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(0.1, steps, alpha=0.01)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=False)
    model.fit(*train, batch_size=BATCH, epochs=epochs, verbose=0)
    ours = [x for x in tiny.layers if x.weights and "quantizer" not in x.name]
    theirs = [x for x in model.layers if x.weights]
    for layer, source in zip(ours, theirs, strict=True):
        names = {v.name: v for v in layer.weights}
        for variable in source.weights:
            names[variable.name].assign(variable.numpy())
    return tiny


def report(rows: Mapping[str, Row]) -> str:
    lines = []
    for group, runs in MATRIX.items():
        for label, (network, _) in runs.items():
            found = [r for s in SEEDS if (r := rows.get(f"{group}/{label}/{s}"))]
            if not found:
                continue
            scores = [r["accuracy"] for r in found]
            growth = np.mean([r["weight_norm"] / r["weight_norm_before_pruning"] for r in found])
            each = ", ".join(f"{a:.4f}" for a in scores)
            accuracy = f"**{np.mean(scores):.4f}** ({each})"
            lines.append(
                (
                    *(group, label, ", ".join(map(str, network)), found[0]["nonzeros"]),
                    *(accuracy, f"{growth:.2f}"),
                )
            )
    head = (
        *("group", "run", "width, bits, non-zeros", "weights that are not zero"),
        *("accuracy, mean (seeds)", "weight norm after / before pruning"),
    )
    return table(head, lines)


def run(rows: Rows) -> str:
    tf.config.threading.set_intra_op_parallelism_threads(flags.FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for group in flags.FLAGS.groups:
        for seed in map(int, flags.FLAGS.seeds):
            for label, (network, changes) in MATRIX[group].items():
                case = functools.partial(measure, network, changes, seed)
                rows.once(f"{group}/{label}/{seed}", case)
    return write(rows.path.with_suffix(".md"), report(rows.read()))


if __name__ == "__main__":
    flags.DEFINE_list("groups", list(MATRIX), "Groups to run.")
    flags.DEFINE_list("seeds", list(map(str, SEEDS)), "Seeds to run.")
    flags.DEFINE_integer("threads", 1, "Threads of one operator.")
    harness.main(run, "finetune_matrix")
