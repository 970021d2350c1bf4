"""Run by finetuning_test.py in a process of its own: finetunes a small network.

python finetuning_run.py WORKDIR RESULT [KILL_EPOCH KILL_BATCH]   may be killed on the way
python finetuning_run.py --mirrored                               on two devices
"""

import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import layers as kl

import udc_tf
from udc_tf.finetune.run import finetune
from udc_tf.finetune.stages import Stages
from udc_tf.training.image_augmentation import Augmentation

STAGES = Stages(epochs=(2, 3, 2), alpha=(0.7, 0.7, 1.0), pruned_gradient=0.5, refresh_every=3)


def network():
    x = keras.Input((8, 8, 1))
    y = kl.Conv2D(6, 3, padding="same", use_bias=False, name="conv")(x)
    y = kl.ReLU()(kl.BatchNormalization()(y))
    y = kl.Dropout(0.1)(kl.GlobalAveragePooling2D()(y))
    model = keras.Model(x, kl.Dense(3, activation="softmax", name="head")(y))
    head = {"bits": 2, "nonzeros": 0.7}
    return udc_tf.compact(model, bits=4, nonzeros=0.4, layers={"head": head})


def data():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(96, 8, 8, 1)).astype("float32"), np.arange(96) % 3
    x[..., 0] += y[:, None, None]
    return x, y


class Kill(keras.callbacks.Callback):
    def __init__(self, epoch, batch):
        super().__init__()
        self._when, self._epoch = (epoch, batch), None

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self._epoch, batch) == self._when:
            os.kill(os.getpid(), signal.SIGKILL)


def resumable(workdir, result, kill):
    tf.config.experimental.enable_op_determinism()
    tiny = network()
    train = tf.data.Dataset.from_tensor_slices(data()).shuffle(96, seed=5).batch(16)
    train = Augmentation(crop=1, seed=7).apply(train)
    callbacks = [Kill(*kill)] if kill else []
    history = finetune(
        tiny, train, stages=STAGES, workdir=workdir, callbacks=callbacks, verbose=0
    ).history
    np.savez(result, *(w.numpy() for w in tiny.weights), losses=history["loss"])


def mirrored():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        tiny = network()
    stages = Stages(epochs=3, alpha=0.7)
    history = finetune(tiny, data(), stages=stages, batch_size=16, verbose=0).history
    head = tiny.get_layer("head")
    assert head.integer_kernel().nonzeros == head.target_nonzeros
    assert len(history["loss"]) == 3
    assert history["loss"][-1] < history["loss"][0]


if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    if sys.argv[1] == "--mirrored":
        mirrored()
    else:
        resumable(sys.argv[1], sys.argv[2], [int(a) for a in sys.argv[3:]])
