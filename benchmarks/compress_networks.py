"""The trained networks that `benchmarks/compress.py` compresses, and their data."""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers as kl

from benchmarks.compare.tasks import unpacked_cifar
from benchmarks.data import Arrays, mlperf_tiny
from benchmarks.harness import SHARED
from udc_tf.models import ds_cnn, mobilenet_v1, resnet8
from udc_tf.models.data import cifar, fashion_mnist

CACHE = pathlib.Path(tempfile.gettempdir(), "udc_tf_compress")
_IMAGES, _SPOKEN = 10_000, 8_000  # of the training set; images once more as in a mirror
_VALIDATION = 2_000
_FASHION = (28, 28, 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, its data, and how long it is trained."""

    name: str
    build: Callable[[], keras.Model]
    data: Callable[[], tuple[Arrays, Arrays, Arrays]]  # train, validation, test
    epochs: int  # 0: it comes trained

    def trained(self) -> keras.Model:
        """The float network; trained when it is first asked for, then kept in `CACHE`."""
        if not self.epochs:
            return self.build()
        path = CACHE / f"{self.name}.keras"
        if not path.is_file():
            keras.utils.set_random_seed(0)
            model, (train, validation, _) = self.build(), self.data()
            steps = -(-len(train[0]) // 64) * self.epochs
            rate = keras.optimizers.schedules.CosineDecay(
                2e-3, steps, warmup_target=4e-3, warmup_steps=steps // 10
            )
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
            backup = keras.callbacks.BackupAndRestore(CACHE / f"{self.name}_training")
            model.fit(
                *train,
                batch_size=64,
                epochs=self.epochs,
                validation_data=validation,
                callbacks=[backup],
                verbose=2,
            )
            model.save(path)
        return keras.models.load_model(path)  # its loss says that the outputs are logits


@functools.cache
def _images(name: str) -> tuple[Arrays, Arrays, Arrays]:
    unpacked = CACHE / "fashion-mnist"  # the four files, where Debian's package is not installed
    if name == "fashion":
        found = fashion_mnist(unpacked if unpacked.is_dir() else None)
    else:
        found = cifar("cifar10", unpacked_cifar(CACHE))
    limits = {"train": _IMAGES, "validation": _VALIDATION, "test": None}
    train, *others = (found.arrays(part, limit) for part, limit in limits.items())
    mirrored = np.concatenate([train[0], train[0][:, :, ::-1]])
    return (mirrored, np.tile(train[1], 2)), *others


@functools.cache
def _speech(mfcc: bool) -> tuple[Arrays, Arrays, Arrays]:
    """Spoken digits by speaker; as ten cepstral coefficients or as forty bands."""
    with np.load(SHARED / "data" / "spoken_digits.npz") as file:
        x, y, speaker = (file[key] for key in ("logmel", "label", "speaker"))
    x = (x.astype(np.float32) - 128) / 64
    if mfcc:
        bands, orders = np.arange(x.shape[-1]), np.arange(10)
        cosines = np.cos(np.pi / x.shape[-1] * (bands[:, None] + 0.5) * orders)
        x = (x @ (cosines / 10).astype(np.float32))[..., None]
    parts = []
    for low, high, most in ((1, 48, _SPOKEN), (49, 54, _VALIDATION), (55, 60, None)):
        chosen = np.flatnonzero((speaker >= low) & (speaker <= high))
        chosen = np.random.default_rng(0).permutation(chosen)[:most]
        parts.append((x[chosen], y[chosen].astype(np.int32)))
    return tuple(parts)


def conv1d() -> keras.Model:
    """Convolutions along time, without batch norm behind the last of them."""
    x = inputs = keras.Input((49, 40), name="bands")
    for number, (filters, strides) in enumerate(((48, 1), (64, 2), (96, 2)), start=1):
        x = kl.Conv1D(
            filters, 5, strides=strides, padding="same", use_bias=False, name=f"conv{number}"
        )(x)
        x = kl.BatchNormalization(name=f"norm{number}")(x)
        x = kl.ReLU(name=f"relu{number}")(x)
    x = kl.Conv1D(96, 3, padding="same", activation="relu", name="conv4")(x)
    x = kl.GlobalAveragePooling1D(name="mean")(x)
    return keras.Model(inputs, kl.Dense(10, name="head")(x), name="conv1d")


def mlperf_resnet8() -> keras.Model:
    """MLPerf Tiny's trained ResNet8, its int8 weights as floats; batch norms are folded in them."""
    interpreter = tf.lite.Interpreter(str(mlperf_tiny()["resnet8_cifar10_int8"]))
    details = {d["index"]: d for d in interpreter.get_tensor_details()}

    def constant(index: int) -> np.ndarray:
        scales = details[index]["quantization_parameters"]["scales"]
        values = interpreter.get_tensor(index).astype(np.float32)
        shape = (-1, *[1] * (values.ndim - 1)) if scales.size > 1 else (1,) * values.ndim
        return values * scales.reshape(shape)

    weights = [
        [constant(int(i)) for i in op["inputs"][1:]]
        for op in interpreter._get_ops_details()
        if op["op_name"] in ("CONV_2D", "FULLY_CONNECTED")
    ]
    x = inputs = keras.Input((32, 32, 3), name="image")
    model = keras.Model(inputs, _folded_resnet8(x), name="mlperf_resnet8")
    kernels = [layer for layer in model.layers if layer.weights]
    for layer in kernels:
        kernel, bias = weights[int(layer.name.rpartition("_")[2])]
        layer.set_weights([kernel.T if kernel.ndim == 2 else kernel.transpose(1, 2, 3, 0), bias])
    return model


def _folded_resnet8(x):
    """Layers are numbered as the file's operators with weights are."""
    number = iter(range(10))

    def conv(x, filters: int, size: int = 3, strides: int = 1, activation: str | None = None):
        name = f"conv_{next(number)}"
        return kl.Conv2D(
            filters, size, strides=strides, padding="same", activation=activation, name=name
        )(x)

    x = conv(x, 16, activation="relu")
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        y = conv(conv(x, filters, strides=strides, activation="relu"), filters)
        short = x if strides == 1 else conv(x, filters, 1, strides)
        x = kl.ReLU()(kl.Add()([short, y]))
    return kl.Dense(10, activation="softmax", name="head_9")(kl.GlobalAveragePooling2D()(x))


@functools.cache
def _bytes_of_cifar() -> tuple[Arrays, Arrays, Arrays]:
    """As MLPerf's network takes them: 0 to 255."""
    with np.load(unpacked_cifar(CACHE) / "cifar10.npz") as file:
        parts = [(file[f"x_{part}"], file[f"y_{part}"].ravel()) for part in ("train", "test")]
    (x, y), test = ((x.astype(np.float32), y.astype(np.int32)) for x, y in parts)
    return (x[:20_000], y[:20_000]), (x[-_VALIDATION:], y[-_VALIDATION:]), test


CASES = {
    case.name: case
    for case in (
        Case("conv1d_speech", conv1d, lambda: _speech(False), 6),
        Case("ds_cnn_speech", lambda: ds_cnn((49, 10, 1), classes=10), lambda: _speech(True), 6),
        Case("ds_cnn_fashion", lambda: ds_cnn(_FASHION, classes=10), lambda: _images("fashion"), 4),
        Case(
            "mobilenet_fashion",
            lambda: mobilenet_v1(_FASHION, classes=10),
            lambda: _images("fashion"),
            6,
        ),
        Case("resnet8_fashion", lambda: resnet8(_FASHION), lambda: _images("fashion"), 4),
        Case("resnet8_cifar", resnet8, lambda: _images("cifar"), 6),
        Case("mlperf_resnet8", mlperf_resnet8, _bytes_of_cifar, 0),
    )
}

if __name__ == "__main__":
    for case in CASES.values():
        case.trained()
