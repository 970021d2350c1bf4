"""CIFAR-10 and CIFAR-100: 60,000 photographs, 32x32, of 10 or 100 classes."""

import os
import pathlib

import keras
import numpy as np

from udc_tf.models.data.arrays import from_npz
from udc_tf.models.data.data_errors import DataError, require_download
from udc_tf.models.data.dataset import Dataset, Split, split_off
from udc_tf.models.data.pickles import read_pickle

_FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
_TRAIN = {"cifar10": [f"data_batch_{n}" for n in range(1, 6)], "cifar100": ["train"]}
_TEST = {"cifar10": ["test_batch"], "cifar100": ["test"]}
_LABELS = {"cifar10": b"labels", "cifar100": b"fine_labels"}
_TEN = "airplane automobile bird cat deer dog frog horse ship truck"
_NAMES = {
    "cifar10": tuple(name for name in _TEN.split(" ")),
    "cifar100": tuple(str(n) for n in range(100)),
}


def cifar(
    name: str, data_dir: str | os.PathLike | None = None, seed: int = 0, download: bool = True
) -> Dataset:
    """50,000 images, a tenth of them to validate, and 10,000 to test.

    Args:
        name: "cifar10" or "cifar100".
        data_dir: with the unpacked "python version", or with `cifar10.npz` (x_train, y_train,
            x_test, y_test); by default what Keras downloads.
        seed: of the split.
        download: whether Keras may fetch what it has not kept from before.
    """
    if data_dir is None:
        if not download:
            require_download(name, f"{_FOLDERS[name]}*")
        train, test = _downloaded(name)
    else:
        folder = pathlib.Path(data_dir)
        if (folder / f"{name}.npz").is_file():
            return from_npz(folder / f"{name}.npz", seed, name=name, class_names=_NAMES[name])
        if (folder / _FOLDERS[name]).is_dir():
            folder = folder / _FOLDERS[name]
        train = _unpickled(folder, _TRAIN[name], _LABELS[name], name)
        test = _unpickled(folder, _TEST[name], _LABELS[name], name)
    train, validation = split_off(train, 0.1, seed)
    return Dataset(name, train, validation, test, _NAMES[name])


def _downloaded(name: str) -> tuple[Split, Split]:
    try:
        parts = getattr(keras.datasets, name).load_data()
    except Exception as error:  # whatever the download raises
        raise DataError(
            f"{name} could not be downloaded. Offline: get its 'python version' from "
            f"cs.toronto.edu/~kriz/cifar.html, unpack it and pass --data_dir=FOLDER. ({error})"
        ) from error
    train, test = (Split(x, y[:, 0].astype(np.int32)) for x, y in parts)
    return train, test


def _unpickled(folder: pathlib.Path, files: list[str], labels: bytes, name: str) -> Split:
    images, classes = [], []
    for file in files:
        path = folder / file
        if not path.is_file():
            raise DataError(
                f"There is no {path}. --data_dir must hold the unpacked 'python version' of "
                f"{name} ({_FOLDERS[name]}) or {name}.npz."
            )
        content = read_pickle(path)
        try:
            images.append(np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32))
            classes.append(np.asarray(content[labels], np.int32))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is not a batch of {name}: {error}") from error
    planes = np.concatenate(images)
    return Split(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.concatenate(classes))
