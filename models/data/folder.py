"""A user's own images: a folder with one folder per class."""

import os
import pathlib

import numpy as np
import tensorflow as tf

from udc_tf.models.data.class_folders import ClassFolders
from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Dataset, Split

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def from_folder(
    path: str | os.PathLike,
    image_size: tuple[int, int] = (96, 96),
    channels: int = 3,
    seed: int = 0,
) -> Dataset:
    """Images in `path/<class>/*.png` (or .jpg, .bmp, .gif), resized to `image_size`.

    `ClassFolders` says how the parts are found. All images are held in memory, as bytes.
    """
    folders = image_folders(path, seed)

    def read(files: list[str], labels: list[int]) -> Split:
        images = np.stack([read_image(f, image_size, channels) for f in files])
        return Split(images, np.asarray(labels, np.int32))

    return Dataset(pathlib.Path(path).name, *folders.splits(read), class_names=folders.names)


def image_folders(path: str | os.PathLike, seed: int = 0) -> ClassFolders:
    return ClassFolders(path, ENDINGS, "images", seed)


def read_image(path: str, size: tuple[int, int], channels: int) -> np.ndarray:
    """An image as bytes, resized with antialiasing."""
    try:
        image = tf.io.decode_image(tf.io.read_file(path), channels, expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        raise DataError(f"{path} is not an image that can be read.") from error
    if tuple(image.shape[:2]) != tuple(size):
        image = tf.image.resize(image, size, antialias=True)
    return np.clip(np.rint(image.numpy()), 0, 255).astype(np.uint8)
