"""The trained networks that `benchmarks/compress.py` compresses, and their data."""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable

import keras
import numpy as np
from keras import layers as kl

from benchmarks.compare.tasks import unpacked_cifar
from benchmarks.data import Arrays
from benchmarks.harness import SHARED
from udc_tf.models import ds_cnn, mobilenet_v1, resnet8
from udc_tf.models.data import cifar, fashion_mnist

CACHE = pathlib.Path(tempfile.gettempdir(), "udc_tf_compress")
_VALIDATION = 2_000


@dataclasses.dataclass(frozen=True)
class Case:
    """A network, its data, and how long it is trained."""

    name: str
    build: Callable[[], keras.Model]
    data: Callable[[], tuple[Arrays, Arrays, Arrays]]  # train, validation, test
    epochs: int

    def trained(self) -> keras.Model:
        """The float network; trained when it is first asked for, then kept in `CACHE`."""
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
        return keras.models.load_model(path, compile=False)


@functools.cache
def _images(name: str, count: int) -> tuple[Arrays, Arrays, Arrays]:
    unpacked = CACHE / "fashion-mnist"  # the four files, where Debian's package is not installed
    if name == "fashion":
        found = fashion_mnist(unpacked if unpacked.is_dir() else None)
    else:
        found = cifar("cifar10", unpacked_cifar(CACHE))
    limits = {"train": count, "validation": _VALIDATION, "test": None}
    train, *others = (found.arrays(part, limit) for part, limit in limits.items())
    mirrored = np.concatenate([train[0], train[0][:, :, ::-1]])
    return (mirrored, np.tile(train[1], 2)), *others


@functools.cache
def _speech(mfcc: bool, count: int) -> tuple[Arrays, Arrays, Arrays]:
    """Spoken digits by speaker; as ten cepstral coefficients or as forty bands."""
    with np.load(SHARED / "data" / "spoken_digits.npz") as file:
        x, y, speaker = (file[key] for key in ("logmel", "label", "speaker"))
    x = (x.astype(np.float32) - 128) / 64
    if mfcc:
        bands, orders = np.arange(x.shape[-1]), np.arange(10)
        cosines = np.cos(np.pi / x.shape[-1] * (bands[:, None] + 0.5) * orders)
        x = (x @ (cosines / 10).astype(np.float32))[..., None]
    parts = []
    for low, high, most in ((1, 48, count), (49, 54, _VALIDATION), (55, 60, None)):
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


CASES = {
    case.name: case
    for case in (
        Case("resnet8_cifar", resnet8, lambda: _images("cifar", 20_000), 6),
        Case(
            "ds_cnn_speech",
            lambda: ds_cnn((49, 10, 1), classes=10),
            lambda: _speech(True, 8_000),
            6,
        ),
        Case(
            "mobilenet_fashion",
            lambda: mobilenet_v1((28, 28, 1), classes=10),
            lambda: _images("fashion", 20_000),
            6,
        ),
        Case("conv1d_speech", conv1d, lambda: _speech(False, 8_000), 6),
    )
}

if __name__ == "__main__":
    for case in CASES.values():
        case.trained()
