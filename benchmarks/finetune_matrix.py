"""What each part of finetuning is worth: one table, every run resumable.

    python benchmarks/finetune_matrix.py                # runs what is missing, in order
    python benchmarks/finetune_matrix.py --table        # prints the table of what there is

Every run adds its line to finetune_matrix.json; finetune_matrix.md is the table. All networks are
ResNet8s on Fashion-MNIST at 14x14, trained equally long from fresh weights unless a row says
otherwise. Accuracy is that of `evaluate` after finetuning: integer weights, 8-bit activations.
"""

import json
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.finetune_data import compact, fashion_mnist_14, resnet8
from udc_tf.finetune.run import finetune
from udc_tf.finetune.stages import Cosine, Stages
from udc_tf.layers.inventory import kernel_layers

HERE = pathlib.Path(__file__).parent
RESULTS, TABLE = HERE / "finetune_matrix.json", HERE / "finetune_matrix.md"
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


def load() -> dict:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def run(data, network, changes, seed, epochs=EPOCHS) -> dict:
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    (width, bits, nonzeros), changes = network, dict(changes)
    model = resnet8(width)
    train, test = data
    pretrain = changes.pop("pretrain", 0)
    began = time.time()
    tiny = compact(model, bits, nonzeros)
    if pretrain:
        tiny = pretrained(tiny, width, train, pretrain, seed)
    stages = Stages(**{"epochs": epochs - pretrain, **changes})
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
        "seconds": round(time.time() - began),
    }


def pretrained(tiny, width, train, epochs, seed):
    """`tiny` with the weights of the same network trained in float."""
    model = resnet8(width)
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


def table(results: dict) -> str:
    lines = [
        "| group | run | width, bits, non-zeros | weights that are not zero "
        "| accuracy, mean (seeds) | weight norm after / before pruning |",
        "|---|---|---|---|---|---|",
    ]
    for group, rows in MATRIX.items():
        for label, (network, _) in rows.items():
            found = [r for s in SEEDS if (r := results.get(f"{group}/{label}/{s}"))]
            if not found:
                continue
            scores = [r["accuracy"] for r in found]
            growth = np.mean([r["weight_norm"] / r["weight_norm_before_pruning"] for r in found])
            each = ", ".join(f"{a:.4f}" for a in scores)
            lines.append(
                f"| {group} | {label} | {', '.join(map(str, network))} | {found[0]['nonzeros']} "
                f"| **{np.mean(scores):.4f}** ({each}) | {growth:.2f} |"
            )
    return "\n".join(lines) + "\n"


flags.DEFINE_bool("table", False, "Only write the table.")
flags.DEFINE_list("groups", list(MATRIX), "Groups to run.")
flags.DEFINE_list("seeds", list(map(str, SEEDS)), "Seeds to run.")
flags.DEFINE_integer("threads", 1, "Threads of one operator.")


def main(_):
    tf.config.threading.set_intra_op_parallelism_threads(flags.FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data = None if flags.FLAGS.table else fashion_mnist_14(TRAIN_IMAGES)
    for group in [] if flags.FLAGS.table else flags.FLAGS.groups:
        for seed in map(int, flags.FLAGS.seeds):
            for label, (network, changes) in MATRIX[group].items():
                name = f"{group}/{label}/{seed}"
                if name in load():
                    continue
                line = run(data, network, changes, seed)
                # Read again: another process may have added lines meanwhile.
                RESULTS.write_text(json.dumps({**load(), name: line}, indent=1) + "\n")
                print(name, line, flush=True)
    TABLE.write_text(table(load()))
    print(table(load()))


if __name__ == "__main__":
    app.run(main)
