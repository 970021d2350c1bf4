"""ImageNet and other sets too large for memory: read from files while training."""

import dataclasses
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Scaling, digest
from udc_tf.models.data.folder import image_folders
from udc_tf.training.epochs import shuffled_indices


@dataclasses.dataclass(frozen=True)
class FileSplit:
    """Names of image files, and their classes."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)


@dataclasses.dataclass(frozen=True)
class FileDataset:
    """As `Dataset`, but of files; the standard ImageNet pipeline.

    Training images are random crops (8% to 100% of the area, aspect 3/4 to 4/3), mirrored half of
    the time; all others the middle of the image, scaled so that its shorter side is 8/7 of the
    crop.
    """

    name: str
    train: FileSplit
    validation: FileSplit
    test: FileSplit
    class_names: tuple[str, ...]
    image_size: int = 224
    scaling: Scaling = dataclasses.field(default_factory=Scaling)
    target_scaling: Scaling | None = None

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return (self.image_size, self.image_size, 3)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def part(self, name: str) -> FileSplit:
        return getattr(self, name)

    def arrays(self, part: str, limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The first images of a part, in memory."""
        split = self.part(part)
        images = [self._middle(path) for path in split.x[:limit]]
        return self.scaling(np.stack(images)), np.asarray(split.y[:limit])

    def batches(self, part: str, batch_size: int) -> tf.data.Dataset:
        split = self.part(part)
        data = tf.data.Dataset.from_tensor_slices((split.x, split.y))
        data = data.map(lambda path, y: (self._middle(path), y), tf.data.AUTOTUNE)
        return data.batch(batch_size).map(lambda x, y: (self.scaling(x), y)).prefetch(2)

    def training_batches(
        self,
        batch_size: int,
        augmentation: Any = None,
        seed: int = 0,
        epoch: Callable[[], int] | None = None,
    ) -> tf.data.Dataset:
        """As `Dataset.training_batches`; crops and mirroring take the place of `augmentation`."""
        paths, labels = tf.constant(self.train.x), tf.constant(self.train.y)

        def one_by_one(indices: tf.Tensor, batch_seed: tf.Tensor) -> tf.data.Dataset:
            seeds = tf.stack([tf.fill(tf.shape(indices), batch_seed[0]), indices], axis=1)
            return tf.data.Dataset.from_tensor_slices((indices, seeds))

        def read(i: tf.Tensor, image_seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return self._random_crop(paths[i], image_seed), labels[i]

        indices = shuffled_indices(len(self.train), batch_size, seed, epoch)
        data = indices.flat_map(one_by_one).map(read, tf.data.AUTOTUNE, deterministic=True)
        data = data.batch(batch_size).map(lambda x, y: (self.scaling(x), y))
        return data.apply(tf.data.experimental.assert_cardinality(len(indices))).prefetch(2)

    def fingerprint(self) -> str:
        """A digest of the files' names and classes; reading a million images would take hours."""
        parts = [self.part(p) for p in ("train", "validation", "test")]
        names = [["/".join(pathlib.Path(f).parts[-3:]) for f in part.x] for part in parts]
        return digest([*map(np.char.encode, names), *(part.y for part in parts)])

    def limited(self, examples: int | None) -> "FileDataset":
        if examples is None:
            return self
        train, validation, test = (
            FileSplit(part.x[:examples], part.y[:examples])
            for part in (self.train, self.validation, self.test)
        )
        return dataclasses.replace(self, train=train, validation=validation, test=test)

    def describe(self) -> str:
        sizes = (
            f"{len(self.train):,} train, {len(self.validation):,} validation, {len(self.test):,}"
        )
        return f"{self.name}: {sizes} test images, {self.classes} classes"

    def _middle(self, path: tf.Tensor) -> tf.Tensor:
        image = tf.image.decode_image(tf.io.read_file(path), 3, expand_animations=False)
        shape = tf.cast(tf.shape(image)[:2], tf.float32)
        larger = self.image_size * 8 / 7
        size = tf.cast(tf.math.ceil(shape * larger / tf.reduce_min(shape)), tf.int32)
        image = tf.image.resize(image, size, antialias=True)
        image = tf.image.resize_with_crop_or_pad(image, self.image_size, self.image_size)
        return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)

    def _random_crop(self, path: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        seeds = tf.unstack(tf.random.split(tf.cast(seed, tf.int32), 2))
        image = tf.image.decode_image(tf.io.read_file(path), 3, expand_animations=False)
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.shape(image),
            tf.zeros([0, 0, 4]),
            seeds[0],
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            use_image_if_no_bounding_boxes=True,
        )
        image = tf.slice(image, begin, size)
        image = tf.image.resize(image, [self.image_size] * 2, antialias=True)
        image = tf.image.stateless_random_flip_left_right(image, seeds[1])
        return tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)


def imagenet(
    data_dir: str | os.PathLike | None = None, image_size: int = 224, seed: int = 0
) -> FileDataset:
    """Images in `data_dir/train/<class>/` and `data_dir/val/<class>/`.

    The labelled validation images of ImageNet are the test part, as everyone reports; to validate,
    one in fifty training images is kept back.
    """
    if data_dir is None:
        raise DataError(
            "ImageNet needs --data_dir=FOLDER with FOLDER/train/<class>/ and FOLDER/val/<class>/ "
            "from image-net.org/download (registration needed)."
        )
    folder = pathlib.Path(data_dir)
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise DataError(f"There is no {folder / part}: it should hold one folder per class.")
    folders = image_folders(folder, seed)
    files, labels = (np.asarray(a) for a in folders.files(folder / "train"))
    order = np.random.default_rng(seed).permutation(len(files))
    held = max(1, len(files) // 50)
    validation, train = np.sort(order[:held]), np.sort(order[held:])
    test = [np.asarray(a) for a in folders.files(folder / "val")]
    return FileDataset(
        "imagenet",
        FileSplit(files[train], labels[train].astype(np.int32)),
        FileSplit(files[validation], labels[validation].astype(np.int32)),
        FileSplit(test[0], test[1].astype(np.int32)),
        folders.names,
        image_size,
    )
