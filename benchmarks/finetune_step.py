"""What a step of finetuning costs beside a plain training step of the same network.

    python -m benchmarks.finetune_step

Blocks of steps of the two alternate; each pair of blocks gives one ratio of processor time. Masks
and ranges are refreshed every 16 steps.
"""

import functools
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from benchmarks import harness
from benchmarks.harness import Row, Rows, interleaved, table
from benchmarks.networks import resnet8_14, uniform_compact
from udc_tf.finetune.losses import Crossentropy
from udc_tf.finetune.preparation import prepare
from udc_tf.finetune.pruning import fit_ranges, refresh_masks
from udc_tf.finetune.stages import Stages
from udc_tf.finetune.step import Finetuner
from udc_tf.layers.compact_kernels import WeightTraining
from udc_tf.layers.inventory import activation_quantizers, kernel_layers

CASES = ((1.0, 1.0), (1.0, 0.8), (0.5, 1.0))  # width, alpha


def plain_step(width: float):
    model = resnet8_14(width)
    sgd = keras.optimizers.SGD(0.01, momentum=0.9)
    loss = "sparse_categorical_crossentropy"
    model.compile(sgd, loss, metrics=["accuracy"], jit_compile=False)
    return model.train_on_batch


def finetuning_step(width: float, alpha: float):
    tiny = uniform_compact(resnet8_14(width), 4, 0.2)
    prepare(tiny)
    for layer in kernel_layers(tiny):
        layer.weight_training = WeightTraining(random_quantization=alpha < 1)
        layer.alpha.assign(alpha)
    for quantizer in activation_quantizers(tiny):
        quantizer.enabled.assign(1.0)
    finetuner = Finetuner(tiny, Stages(epochs=1))
    sgd = keras.optimizers.SGD(0.01, momentum=0.9)
    adam = keras.optimizers.Adam(1e-3)
    finetuner.compile(sgd, Crossentropy(), metrics=["accuracy"], range_optimizer=adam)
    steps = 0

    def step(x, y):
        nonlocal steps
        if steps % 16 == 0:
            refresh_masks(tiny, 1.0, Stages())
            fit_ranges(tiny)
        steps += 1
        return finetuner.train_on_batch(x, y)

    return step


def measure(width: float, alpha: float, blocks: int, steps: int, batch: int) -> Row:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, 14, 14, 1)).astype("float32")
    y = rng.integers(0, 10, batch)

    def block(step) -> None:
        for _ in range(steps):
            step(x, y)

    kinds = {"plain": plain_step(width), "ours": finetuning_step(width, alpha)}
    times = interleaved({k: functools.partial(block, step) for k, step in kinds.items()}, blocks)
    plain, ours = (times[kind][:, 0] for kind in kinds)
    return {
        "ratio": round(float(np.median(ours / plain)), 3),
        "quartiles": [round(float(q), 3) for q in np.percentile(ours / plain, (25, 75))],
        "plain_ms": round(1000 * float(np.median(plain)) / steps, 1),
    }


def report(rows: Mapping[str, Row]) -> str:
    lines = [
        (name, row["ratio"], ", ".join(map(str, row["quartiles"]))) for name, row in rows.items()
    ]
    return table(("network", "finetuning / plain, processor time", "quartiles"), lines)


def run(rows: Rows) -> str:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    given = flags.FLAGS
    for width, alpha in CASES:
        case = functools.partial(measure, width, alpha, given.blocks, given.steps, given.batch)
        rows.once(f"width {width}, alpha {alpha}", case)
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_integer("blocks", 12, "Pairs of blocks.")
    flags.DEFINE_integer("steps", 16, "Steps of a block.")
    flags.DEFINE_integer("batch", 128, "Images of a step.")
    harness.main(run, "finetune_step")
