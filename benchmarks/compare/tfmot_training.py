"""Prunes and quantizes with TFMOT. A process of its own: TFMOT knows the old Keras alone.

    TF_USE_LEGACY_KERAS=1 python -m benchmarks.compare.tfmot_training SPEC.json

The specification names an .npz with x and y, the network's `input_shape`, `filters` and `sparsity`,
`epochs` and `batch_size`, three `stages` in epochs, the learning `rates` (first, last, steps) and
where to write the int8 .tflite. Stage 1 trains, stage 2 prunes, stage 3 is pruning-preserving
quantization-aware training: the stages of `udc_tf.Stages`, with what TFMOT has for them.
"""

import json
import os
import pathlib
import sys

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras
from tf_keras import layers

PRUNED_BY = 0.5  # of stage 2
UPDATE_EVERY = 16  # steps


class RateTable(tf_keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of every step, from `begin` on."""

    def __init__(self, table: np.ndarray, begin: int):
        self._table = tf.constant(table[begin:], tf.float32)

    def __call__(self, step):
        return tf.gather(self._table, tf.minimum(tf.cast(step, tf.int32), len(self._table) - 1))

    def get_config(self):
        return {}


def rate_table(pieces) -> np.ndarray:
    """Half cosines one after the other."""
    return np.concatenate(
        [
            last + (first - last) * 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))
            for first, last, steps in pieces
        ]
    )


def resnet8(input_shape, filters):
    """The counterpart of `udc_tf.models.resnet8`, with channels of its own for each layer.

    Args:
        filters: by the name of the layer.
    """

    def conv_bn(x, size, name, strides=1, relu=True):
        conv = layers.Conv2D(
            filters[name], size, strides, padding="same", use_bias=False, name=name
        )
        x = layers.BatchNormalization(name=f"{name}_bn")(conv(x))
        return layers.ReLU(name=f"{name}_relu")(x) if relu else x

    inputs = layers.Input(input_shape, name="image")
    x = conv_bn(inputs, 3, "stem")
    for block in ("block1", "block2", "block3"):
        strides = 1 if block == "block1" else 2
        y = conv_bn(x, 3, f"{block}_conv1", strides)
        y = conv_bn(y, 3, f"{block}_conv2", relu=False)
        if (name := f"{block}_shortcut") in filters:
            x = layers.Conv2D(filters[name], 1, strides, padding="same", name=name)(x)
        x = layers.ReLU(name=f"{block}_relu")(layers.Add(name=f"{block}_add")([x, y]))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return tf_keras.Model(inputs, layers.Dense(filters["head"], name="head")(x))


def main(path: str) -> None:
    spec = json.loads(pathlib.Path(path).read_text())
    tf_keras.utils.set_random_seed(spec["seed"])
    with np.load(spec["data"]) as arrays:
        x, y = arrays["x"], arrays["y"]
    batch_size = spec["batch_size"]
    steps = -(-len(x) // batch_size)
    first, second, third = spec["stages"]
    rates = rate_table(spec["rates"])
    model = resnet8(spec["input_shape"], spec["filters"])
    schedule = tfmot.sparsity.keras.PolynomialDecay(
        0.0,
        spec["sparsity"],
        begin_step=first * steps,
        end_step=round((first + PRUNED_BY * second) * steps),
        frequency=UPDATE_EVERY,
    )

    def pruned(layer):
        # As everywhere in the comparison: first and last layer stay dense.
        if isinstance(layer, layers.Conv2D) and layer.name != "stem":
            return tfmot.sparsity.keras.prune_low_magnitude(layer, pruning_schedule=schedule)
        return layer

    def fit(network, epochs, begin, callbacks=()):
        if epochs:
            optimizer = tf_keras.optimizers.SGD(RateTable(rates, begin), momentum=0.9)
            loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            network.compile(optimizer, loss)
            network.fit(
                x, y, batch_size, epochs, verbose=0, callbacks=list(callbacks), shuffle=True
            )

    pruning = tf_keras.models.clone_model(model, clone_function=pruned)
    fit(pruning, first + second, 0, [tfmot.sparsity.keras.UpdatePruningStep()])
    stripped = tfmot.sparsity.keras.strip_pruning(pruning)
    annotated = tfmot.quantization.keras.quantize_annotate_model(stripped)
    quantized = tfmot.quantization.keras.quantize_apply(
        annotated, tfmot.experimental.combine.Default8BitPrunePreserveQuantizeScheme()
    )
    fit(quantized, third, (first + second) * steps)
    converter = tf.lite.TFLiteConverter.from_keras_model(quantized)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    pathlib.Path(spec["tflite"]).write_bytes(converter.convert())


if __name__ == "__main__":
    main(sys.argv[1])
