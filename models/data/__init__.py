"""Data sets by name, and a user's own by path.

>>> load("digits").describe()
'digits: 1,258 train, 180 validation, 359 test examples of 8x8x1, 10 classes'
"""

import os
import pathlib

from udc_tf.models.data.arrays import from_npz
from udc_tf.models.data.augmentation import Turning
from udc_tf.models.data.cifar import cifar
from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Dataset, Scaling, Split, in_three, split_off
from udc_tf.models.data.digits import digits
from udc_tf.models.data.fashion_mnist import fashion_mnist
from udc_tf.models.data.folder import from_folder
from udc_tf.models.data.imagenet import FileDataset, imagenet
from udc_tf.models.data.speech_commands import speech_commands
from udc_tf.models.data.super_resolution import super_resolution

__all__ = [
    "DataError",
    "Dataset",
    "FileDataset",
    "Scaling",
    "Split",
    "Turning",
    "cifar",
    "digits",
    "fashion_mnist",
    "from_folder",
    "from_npz",
    "imagenet",
    "in_three",
    "load",
    "speech_commands",
    "split_off",
    "super_resolution",
]

# Name -> where it comes from.
ABOUT = {
    "digits": "handwritten digits, 8x8, inside scikit-learn",
    "fashion_mnist": "clothing, 28x28; Debian's dataset-fashion-mnist, or downloaded by Keras",
    "cifar10": "photographs, 32x32; downloaded by Keras, or --data_dir",
    "cifar100": "the same with 100 classes",
    "speech_commands": "spoken words; --data_dir with the unpacked speech_commands_v0.02",
    "imagenet": "photographs; --data_dir with train/<class>/ and val/<class>/",
    "super_resolution": "pairs of images; --data_dir with train/ (or DIV2K_train_HR/) and set5/",
}
NAMES = tuple(ABOUT)


def load(
    name: str,
    data_dir: str | os.PathLike | None = None,
    image_size: tuple[int, int] | None = None,
    channels: int = 3,
    seed: int = 0,
    download: bool = True,
) -> Dataset | FileDataset:
    """A data set.

    Args:
        name: one of the names above, the path of an .npz, or of a folder with one folder of
            images per class.
        data_dir: where the files of a named set are, if not where it looks by itself.
        image_size, channels: of the images of a folder.
        seed: of the splits.
        download: whether Keras may fetch what is not on this machine.

    Raises:
        DataError: the data are not there; the message says how to get them.
    """
    if name == "digits":
        return digits(seed)
    if name == "fashion_mnist":
        return fashion_mnist(data_dir, seed, download)
    if name in ("cifar10", "cifar100"):
        return cifar(name, data_dir, seed, download)
    if name == "speech_commands":
        return speech_commands(data_dir, seed)
    if name == "imagenet":
        return imagenet(data_dir, (image_size or (224, 224))[0], seed)
    if name == "super_resolution":
        return super_resolution(data_dir, seed=seed)
    path = pathlib.Path(name)
    if path.suffix == ".npz":
        return from_npz(path, seed)
    if path.is_dir():
        return from_folder(path, image_size or (96, 96), channels, seed)
    raise DataError(
        f"Data are one of {', '.join(NAMES)}, an .npz file, or a folder with one folder of images "
        f"per class. Received: {name!r}"
    )
