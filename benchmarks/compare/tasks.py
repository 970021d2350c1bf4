"""The tasks of the comparison: images, a network for them, and budgets of compiled flash."""

import dataclasses
import io
import itertools
import pathlib
from collections.abc import Callable

import keras
import numpy as np
from PIL import Image

from benchmarks.harness import SHARED
from udc_tf.files import replaced_atomically
from udc_tf.models import data as data_sets
from udc_tf.models import ds_cnn, resnet8

CACHE = "~/.cache/udc_tf/compare"  # by default
CIFAR_JPEG = SHARED / "data" / "cifar10_jpeg.npz"  # all of CIFAR-10, each image a JPEG
VALIDATION_IMAGES = 5_000

Arrays = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned, by which network, within which budgets.

    Attributes:
        train, validation, test: inputs and classes. What is chosen is chosen by `validation`.
        budgets: bytes of the compiled file, the tightest first.
        model: makes the network, from an input shape, a number of classes and `filters`.
    """

    name: str
    train: Arrays
    validation: Arrays
    test: Arrays
    budgets: tuple[int, ...]
    model: Callable[..., keras.Model] = resnet8
    filters: tuple[int, ...] | int = (16, 32, 64)
    batch_size: int = 64

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.train[0].shape[1:]

    def network(self) -> keras.Model:
        return self.model(self.input_shape, 10, self.filters)


# In the tightest, int8 by width alone has few channels (the space ends at some 6,300 bytes). The
# largest is a third of what int8 takes at full width.
BUDGETS = {
    "fashion": (7_000, 9_000, 26_000),
    "cifar": (8_000, 12_000, 26_000),
    "cifar_ds_cnn": (9_000, 14_000),  # another network, which nothing was tuned on
    "digits": (6_500, 7_500, 9_000),
}
NAMES = tuple(BUDGETS)
_TRAINING_IMAGES = {"fashion": 54_000, "cifar": 45_000, "cifar_ds_cnn": 45_000, "digits": 1_258}


def training_images(name: str, images: int) -> int:
    """How many of the `images` that are asked for there are."""
    return min(images, _TRAINING_IMAGES[name])


def load(name: str, images: int, cache: pathlib.Path) -> Task:
    """A task with at most `images` to train on.

    Raises:
        DataError: the data are not on this machine.
    """
    if name == "fashion":
        found = data_sets.fashion_mnist()
    elif name in ("cifar", "cifar_ds_cnn"):
        found = data_sets.cifar("cifar10", unpacked_cifar(cache))
    elif name == "digits":
        parts = data_sets.digits().limited(images)
        arrays = [parts.arrays(part) for part in ("train", "validation", "test")]
        return Task(name, *arrays, BUDGETS[name], filters=(8, 12, 16), batch_size=32)
    else:
        raise ValueError(f"The tasks are {', '.join(NAMES)}. Received: {name!r}")
    limits = {"train": images, "validation": VALIDATION_IMAGES, "test": None}
    arrays = [
        (found.scaling(halved(found.part(p).x[:n])), np.asarray(found.part(p).y[:n], np.int32))
        for p, n in limits.items()
    ]
    network = {"model": ds_cnn, "filters": 64} if name == "cifar_ds_cnn" else {}
    return Task(name, *arrays, BUDGETS[name], **network)


def halved(images: np.ndarray) -> np.ndarray:
    """Images of half the size: each pixel the mean of four.

    >>> halved(np.arange(16).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
    [[2.5, 4.5], [10.5, 12.5]]
    """
    count, height, width, channels = images.shape
    fours = images.reshape(count, height // 2, 2, width // 2, 2, channels)
    return fours.mean((2, 4), dtype=np.float32)


def has_cifar(cache: pathlib.Path) -> bool:
    return (cache / "cifar10.npz").is_file() or CIFAR_JPEG.is_file()


def unpacked_cifar(cache: pathlib.Path) -> pathlib.Path:
    """The folder with cifar10.npz, unpacked from the JPEG files when it is first asked for."""
    path = cache / "cifar10.npz"
    if not path.is_file():
        if not CIFAR_JPEG.is_file():
            raise data_sets.DataError(f"There is no {CIFAR_JPEG.name} in {SHARED.name}/data/.")
        with np.load(CIFAR_JPEG) as pack:
            x_train, y_train = _decoded(pack, "train")
            x_test, y_test = _decoded(pack, "test")
        with replaced_atomically(path) as partial, open(partial, "wb") as file:
            np.savez(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return cache


def _decoded(pack, part: str) -> Arrays:
    files, bounds = pack[f"{part}_bytes"], pack[f"{part}_offsets"]
    images = [
        np.asarray(Image.open(io.BytesIO(files[start:end].tobytes())).convert("RGB"))
        for start, end in itertools.pairwise(bounds)
    ]
    return np.stack(images), pack[f"{part}_labels"].astype(np.int32)
