"""What a step of finetuning costs beside a plain training step of the same network.

    python -m benchmarks.finetune_step

Blocks of steps of the two alternate, so that whatever else the machine does hits both alike; each
pair of blocks gives one ratio of processor time. Masks and ranges are refreshed every 16 steps.
"""

import json
import pathlib
import time

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from benchmarks.finetune_data import compact, resnet8
from udc_tf.finetune.losses import Crossentropy
from udc_tf.finetune.run import fit_ranges, prepare, refresh_masks
from udc_tf.finetune.stages import Stages
from udc_tf.finetune.step import Finetuner
from udc_tf.layers.compact_kernels import WeightTraining
from udc_tf.layers.inventory import activation_quantizers, kernel_layers

RESULT = pathlib.Path(__file__).with_name("finetune_step.json")
flags.DEFINE_integer("blocks", 12, "Pairs of blocks.")
flags.DEFINE_integer("steps", 16, "Steps of a block.")
flags.DEFINE_integer("batch", 128, "Images of a step.")


def plain_step(width: float):
    model = resnet8(width)
    sgd = keras.optimizers.SGD(0.01, momentum=0.9)
    loss = "sparse_categorical_crossentropy"
    model.compile(sgd, loss, metrics=["accuracy"], jit_compile=False)
    return model.train_on_batch


def finetuning_step(width: float, alpha: float):
    tiny = compact(resnet8(width), 4, 0.2)
    prepare(tiny)
    for layer in kernel_layers(tiny):
        layer.weight_training = WeightTraining(random_quantization=alpha < 1)
        layer.alpha.assign(alpha)
    for quantizer in activation_quantizers(tiny):
        quantizer.enabled.assign(1.0)
    finetuner = Finetuner(tiny, Stages(epochs=1))
    sgd = keras.optimizers.SGD(0.01, momentum=0.9)
    finetuner.compile(sgd, keras.optimizers.Adam(1e-3), Crossentropy(), ["accuracy"])
    steps = 0

    def step(x, y):
        nonlocal steps
        if steps % 16 == 0:
            refresh_masks(tiny, 1.0, "shifted")
            fit_ranges(tiny)
        steps += 1
        return finetuner.train_on_batch(x, y)

    return step


def timed(step, batch, count) -> float:
    began = time.process_time()
    for _ in range(count):
        step(*batch)
    return time.process_time() - began


def main(_):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    args, results = flags.FLAGS, {}
    rng = np.random.default_rng(0)
    x = rng.normal(size=(args.batch, 14, 14, 1)).astype("float32")
    batch = (x, rng.integers(0, 10, args.batch))
    for width, alpha in ((1.0, 1.0), (1.0, 0.8), (0.5, 1.0)):
        plain, ours = plain_step(width), finetuning_step(width, alpha)
        timed(plain, batch, 3), timed(ours, batch, 3)
        pairs = [
            (timed(plain, batch, args.steps), timed(ours, batch, args.steps))
            for _ in range(args.blocks)
        ]
        ratios = [b / a for a, b in pairs]
        results[f"width {width}, alpha {alpha}"] = {
            "ratio": round(float(np.median(ratios)), 3),
            "quartiles": [round(float(q), 3) for q in np.percentile(ratios, (25, 75))],
            "plain_ms": round(1000 * float(np.median([a for a, _ in pairs])) / args.steps, 1),
        }
        print(results, flush=True)
    RESULT.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
