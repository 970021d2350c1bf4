"""Data sets by name, and a user's own by path.

>>> load("digits").describe()
'digits: 1,258 train, 180 validation, 359 test examples of 8x8x1, 10 classes'
"""

import os
import pathlib

from udc_tf.models.data import folder, recordings, windows
from udc_tf.models.data.arrays import from_npz
from udc_tf.models.data.augmentation import Turning
from udc_tf.models.data.cifar import cifar
from udc_tf.models.data.class_folders import kinds_below
from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Dataset, Scaling, Split, in_three, split_off
from udc_tf.models.data.digits import digits
from udc_tf.models.data.fashion_mnist import fashion_mnist
from udc_tf.models.data.folder import from_folder
from udc_tf.models.data.imagenet import FileDataset, imagenet
from udc_tf.models.data.recordings import from_recordings
from udc_tf.models.data.speech_commands import speech_commands
from udc_tf.models.data.super_resolution import super_resolution
from udc_tf.models.data.windows import from_window_folders, from_window_lines

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
    "from_recordings",
    "from_window_folders",
    "from_window_lines",
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
    *,
    rank: int | None = None,
    clip_seconds: float = 1.0,
    window: int = 128,
) -> Dataset | FileDataset:
    """A data set.

    Args:
        name: one of the names above, or a path: of an .npz, of a table with one window per line
            (.csv, .tsv, .txt), or of a folder with one folder of images, of recordings (.wav) or of
            tables (.csv) per class.
        data_dir: where the files of a named set are, if not where it looks by itself.
        image_size, channels: of the images of a folder.
        seed: of the splits.
        download: whether Keras may fetch what is not on this machine.
        rank: how many axes an example has for the network: 2 (steps and channels) takes the arrays
            of an .npz for windows, 3 gives frames and windows a last axis; None leaves them.
        clip_seconds: length of recordings.
        window: steps of the windows that tables of a folder are cut into.

    Raises:
        DataError: the data are not there; the message says how to get them.
    """
    if name in NAMES:
        return _named(name, data_dir, image_size, seed, download)
    loaded = _own(pathlib.Path(name), image_size, channels, seed, rank, clip_seconds, window)
    return loaded.with_channel() if rank == 3 and len(loaded.input_shape) == 2 else loaded


def _named(
    name: str,
    data_dir: str | os.PathLike | None,
    image_size: tuple[int, int] | None,
    seed: int,
    download: bool,
) -> Dataset | FileDataset:
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
    return super_resolution(data_dir, seed=seed)


def _own(
    path: pathlib.Path,
    image_size: tuple[int, int] | None,
    channels: int,
    seed: int,
    rank: int | None,
    clip_seconds: float,
    window: int,
) -> Dataset:
    if path.suffix == ".npz":
        return from_npz(path, seed, windows=rank == 2)
    if path.suffix in windows.ENDINGS and not path.is_dir():
        return from_window_lines(path, seed)
    if not path.is_dir():
        raise DataError(
            f"Data are one of {', '.join(NAMES)}, an .npz file, a .csv with one window per line, "
            "or a folder with one folder of images, recordings (.wav) or tables (.csv) per class. "
            f"Received: {str(path)!r}"
        )
    images, waves, tables = (
        not kinds_below(path).isdisjoint(kind.ENDINGS) for kind in (folder, recordings, windows)
    )
    if images and waves:
        raise DataError(f"{path} should hold files of one kind. Received: images and recordings")
    if waves:
        return from_recordings(path, clip_seconds, seed)
    if tables and not images:
        return from_window_folders(path, window, seed)
    return from_folder(path, image_size or (96, 96), channels, seed)
