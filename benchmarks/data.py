"""The data of the small benchmarks; those of the comparison are in `compare/tasks.py`."""

import functools
import pathlib

import keras
import numpy as np

from benchmarks.harness import SHARED
from udc_tf.models.data import digits
from udc_tf.models.data.fashion_mnist import DEBIAN, read_idx

Arrays = tuple[np.ndarray, np.ndarray]


@functools.cache
def fashion_mnist_14(train_images: int) -> tuple[Arrays, Arrays]:
    """Pooled to 14x14: the first images of the training set, and the whole test set."""
    if DEBIAN.is_dir():
        kinds = ("images-idx3", "labels-idx1")
        sets = [
            [read_idx(DEBIAN / f"{part}-{kind}-ubyte.gz") for kind in kinds]
            for part in ("train", "t10k")
        ]
    else:
        sets = keras.datasets.fashion_mnist.load_data()

    def pooled(images: np.ndarray, labels: np.ndarray) -> Arrays:
        small = images.reshape(-1, 14, 2, 14, 2).mean((2, 4), dtype=np.float32)[..., None]
        return (small / 255 - 0.286) / 0.33, labels.astype(np.int32)

    (x, y), test = (pooled(*arrays) for arrays in sets)
    return (x[:train_images], y[:train_images]), test


def scaled_digits(part: str, count: int | None = None) -> Arrays:
    """The embedded digits, 8x8, from 0 to 1."""
    found = digits().part(part)
    x, y = np.asarray(found.x, "float32")[:count], np.asarray(found.y)[:count]
    return x / max(1.0, x.max()), y


def mlperf_tiny() -> dict[str, pathlib.Path]:
    """MLPerf Tiny's trained int8 networks, where they are on this machine."""
    folder = SHARED / "anchors" / "mlperf_tiny"
    return {path.stem: path for path in sorted(folder.glob("*.tflite"))}
