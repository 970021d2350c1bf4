"""Fashion-MNIST: 70,000 articles of clothing, 28x28."""

import gzip
import os
import pathlib

import keras
import numpy as np

from udc_tf.models.data.data_errors import DataError, require_download
from udc_tf.models.data.dataset import Dataset, Split, split_off

DEBIAN = pathlib.Path("/usr/share/datasets/fashion-mnist")
_NAMES = (
    *("t-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "boot"),
)


def fashion_mnist(
    data_dir: str | os.PathLike | None = None, seed: int = 0, download: bool = True
) -> Dataset:
    """60,000 images, a tenth of them to validate, and 10,000 to test.

    Args:
        data_dir: where the four files of the original are; by default Debian's package, and else
            what Keras downloads.
        seed: of the split.
        download: whether Keras may fetch what it has not kept from before.
    """
    folder = pathlib.Path(data_dir) if data_dir is not None else DEBIAN
    if data_dir is None and not folder.is_dir():
        if not download:
            require_download("fashion_mnist", "fashion-mnist/t10k-images*")
        train, test = _downloaded()
    else:
        train, test = _part(folder, "train"), _part(folder, "t10k")
    train, validation = split_off(train, 0.1, seed)
    return Dataset("fashion_mnist", train, validation, test, _NAMES)


def _part(folder: pathlib.Path, name: str) -> Split:
    return Split(
        read_idx(folder / f"{name}-images-idx3-ubyte.gz")[..., None],
        read_idx(folder / f"{name}-labels-idx1-ubyte.gz").astype(np.int32),
    )


def read_idx(path: pathlib.Path) -> np.ndarray:
    """An array in MNIST's own format (type and rank in a magic number, sizes, bytes)."""
    if not path.is_file():
        raise DataError(
            f"There is no {path}. Fashion-MNIST is Debian's package dataset-fashion-mnist, or "
            "the four .gz files of github.com/zalandoresearch/fashion-mnist in one folder."
        )
    with gzip.open(path) as file:
        content = file.read()
    rank = content[3]
    shape = np.frombuffer(content, ">i4", rank, offset=4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if content[2] != 8 or values.size != np.prod(shape):
        raise DataError(f"{path} is damaged: {values.size} values for the shape {tuple(shape)}.")
    return values.reshape(shape)


def _downloaded() -> tuple[Split, Split]:
    try:
        parts = keras.datasets.fashion_mnist.load_data()
    except Exception as error:  # whatever the download raises
        raise DataError(
            "Fashion-MNIST could not be downloaded. Offline: apt-get install "
            f"dataset-fashion-mnist, or --data_dir=FOLDER with its four .gz files. ({error})"
        ) from error
    train, test = (Split(x[..., None], y.astype(np.int32)) for x, y in parts)
    return train, test
