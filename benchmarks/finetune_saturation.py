"""Why sparse training fails with ranges that lag behind: kept weights that get no gradient.

    python -m benchmarks.finetune_saturation

A weight beyond its layer's range is clipped and has no gradient. Pruning keeps the largest weights,
so these are the first to be beyond it. For each epoch: the share of kept weights beyond the range,
how many pruned weights came back, and the training accuracy.
"""

import json
import pathlib

import keras
import numpy as np
import tensorflow as tf
from absl import app

from benchmarks.finetune_data import compact, fashion_mnist_14, resnet8
from udc_tf.finetune.run import finetune
from udc_tf.finetune.stages import Stages
from udc_tf.layers.inventory import kernel_layers

RESULT = pathlib.Path(__file__).with_name("finetune_saturation.json")
RUNS = {
    "Q^, ranges fitted": {},
    "Q^, ranges learned": {"ranges": "learned"},
    "Q, ranges learned": {"ranges": "learned", "number_format": "plain"},
}


class Watch(keras.callbacks.Callback):
    def __init__(self, network):
        super().__init__()
        self._layers = kernel_layers(network)[1:-1]
        self._mask, self._returned, self.epochs = None, 0, []

    def on_train_batch_end(self, batch, logs=None):
        mask = np.concatenate([layer.mask.numpy().ravel() for layer in self._layers])
        if self._mask is not None:
            self._returned += int(np.sum(mask > self._mask))
        self._mask = mask

    def on_epoch_end(self, epoch, logs=None):
        beyond = [self._beyond(layer) for layer in self._layers]
        self.epochs.append(
            {
                "kept": int(self._mask.sum()),
                "kept_without_gradient": round(float(np.sum(beyond) / self._mask.sum()), 3),
                "returned": self._returned,
                "train_accuracy": round(float(logs["accuracy"]), 3),
            }
        )
        self._returned = 0

    def _beyond(self, layer):
        kept = np.abs(layer.theta.numpy())[layer.mask.numpy() > 0]
        return np.sum(kept > layer.range + layer.beta.numpy())


def main(_):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    train, _ = fashion_mnist_14(8_000)
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for label, changes in RUNS.items():
        if label in results:
            continue
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        tiny = compact(resnet8(0.5), 4, 0.15)
        watch = Watch(tiny)
        stages = Stages(epochs=6, **changes)
        finetune(tiny, train, stages=stages, batch_size=64, callbacks=[watch], verbose=0)
        results[label] = watch.epochs
        RESULT.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
