"""A user's own images: a folder with one folder per class."""

import os
import pathlib

import numpy as np
import tensorflow as tf

from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import PARTS, Dataset, Split, in_three, split_off

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
_PARTS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}


def from_folder(
    path: str | os.PathLike,
    image_size: tuple[int, int] = (96, 96),
    channels: int = 3,
    seed: int = 0,
) -> Dataset:
    """Images in `path/<class>/*.png` (or .jpg, .bmp, .gif), resized to `image_size`.

    If `path` has folders `train`, `validation` or `val`, and `test` with the classes below them,
    these are the parts; what is missing is split off. All images are held in memory, as bytes.
    Hidden folders and files, whose names begin with a dot, are left out.
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        raise DataError(f"There is no folder {path}: it should hold one image folder per class.")
    folders = {
        part: next((path / n for n in names if (path / n).is_dir()), None)
        for part, names in _PARTS.items()
    }
    base = folders["train"] or path
    _refuse_parts_without_train(folders, path)
    names = class_names(base)

    def read(folder: pathlib.Path) -> Split:
        files, labels = image_files(folder, names, seed)
        images = np.stack([read_image(f, image_size, channels) for f in files])
        return Split(images, np.asarray(labels, np.int32))

    if folders["train"] is None:
        return Dataset(path.name, *in_three(read(path), 0.1, 0.2, seed), class_names=names)
    train = read(base)
    validation, test = (None if (f := folders[p]) is None else read(f) for p in PARTS[1:])
    if test is None:
        train, test = split_off(train, 0.2, seed)
    if validation is None:
        train, validation = split_off(train, 0.1, seed)
    return Dataset(path.name, train, validation, test, names)


def _refuse_parts_without_train(
    folders: dict[str, pathlib.Path | None], path: pathlib.Path
) -> None:
    """Images set apart to test must not be overlooked."""
    if folders["train"] is not None:
        return
    for folder in filter(None, folders.values()):
        if not _images(folder) and _class_folders(folder):
            raise DataError(
                f"{folder} holds classes, and so {path / 'train'} should. Received: "
                f"{path} without a folder `train`"
            )


def class_names(folder: pathlib.Path) -> tuple[str, ...]:
    """Names of the folders that hold images, sorted."""
    names = _class_folders(folder)
    if len(names) < 2:
        raise DataError(
            f"{folder} should hold one folder of images ({', '.join(_ENDINGS)}) for each of at "
            f"least two classes. Received: {', '.join(names) or 'none'}"
        )
    return names


def image_files(
    folder: pathlib.Path, names: tuple[str, ...], seed: int = 0
) -> tuple[list[str], list[int]]:
    """All images below `folder` with the numbers of their classes, in an order that mixes them.

    Else the first examples, which are taken for trials and to verify, would be of one class.
    """
    strange = [name for name in _class_folders(folder) if name not in names]
    if strange:
        raise DataError(
            f"{folder} holds images of a class that the training images lack. Received: "
            f"{', '.join(strange)} beside {', '.join(names)}"
        )
    files, labels = [], []
    for label, name in enumerate(names):
        found = _images(folder / name)
        if not found:
            raise DataError(f"There are no images of the class {name!r} in {folder / name}.")
        files += found
        labels += [label] * len(found)
    order = np.random.default_rng(seed).permutation(len(files))
    return [files[i] for i in order], [labels[i] for i in order]


def read_image(path: str, size: tuple[int, int], channels: int) -> np.ndarray:
    """An image as bytes, resized with antialiasing."""
    try:
        image = tf.io.decode_image(tf.io.read_file(path), channels, expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        raise DataError(f"{path} is not an image that can be read.") from error
    if tuple(image.shape[:2]) != tuple(size):
        image = tf.image.resize(image, size, antialias=True)
    return np.clip(np.rint(image.numpy()), 0, 255).astype(np.uint8)


def _images(folder: pathlib.Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(
        str(f)
        for f in folder.iterdir()
        if f.suffix.lower() in _ENDINGS and not f.name.startswith(".")
    )


def _class_folders(folder: pathlib.Path) -> tuple[str, ...]:
    found = (d for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))
    return tuple(sorted(d.name for d in found if _images(d)))
