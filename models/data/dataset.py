"""A data set in three parts: train, validation, and a test part that nothing is chosen by."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import tensorflow as tf

from udc_tf.models.data.augmentation import Turning
from udc_tf.models.data.data_errors import DataError
from udc_tf.training.epochs import shuffled_indices
from udc_tf.training.image_augmentation import Augmentation

PARTS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Split:
    """One part of a data set: inputs as they are stored, and their labels or targets."""

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise DataError(
                f"Inputs and labels must be equally many. Received: {len(self.x)} and {len(self.y)}"
            )

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: slice | np.ndarray) -> "Split":
        return Split(self.x[indices], self.y[indices])


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Stored numbers to what the network sees: (x - offset) / scale.

    The default turns a pixel p into (p - 128) / 128, which an int8 network with scale 1/128 and
    zero point 0 sees as the integer p - 128: firmware subtracts 128 and is done. Sensor data have
    an offset and a scale for each channel.
    """

    offset: float | tuple[float, ...] = 128.0
    scale: float | tuple[float, ...] = 128.0

    def __call__(self, x: Any) -> Any:
        offset, scale = (np.asarray(n, np.float32) for n in (self.offset, self.scale))
        if tf.is_tensor(x):
            return (tf.cast(x, tf.float32) - offset) / scale
        return (np.asarray(x, np.float32) - offset) / scale


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Train, validation and test data.

    Attributes:
        name: as given to `load`.
        train, validation, test: the three parts; the test part is never trained or chosen by.
        class_names: one per class; empty if this is not a classification.
        scaling: from stored numbers to the network's.
        target_scaling: the same for targets, where they are images; None leaves them alone.
        front_end: what makes the stored numbers of a recording, with its settings; None if nothing.

    Example:

    >>> from udc_tf.models import data
    >>> digits = data.load("digits")
    >>> digits.input_shape, len(digits.train), len(digits.validation), len(digits.test)
    ((8, 8, 1), 1258, 180, 359)
    """

    name: str
    train: Split
    validation: Split
    test: Split
    class_names: tuple[str, ...] = ()
    scaling: Scaling = Scaling()
    target_scaling: Scaling | None = None
    front_end: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in PARTS:
            part = self.part(name)
            if not len(part):
                raise DataError(f"The {name} part of {self.name} has no examples.")
            for what in ("x", "y"):
                shape, first = (getattr(p, what).shape[1:] for p in (part, self.train))
                if shape != first:
                    raise DataError(
                        f"All parts of {self.name} must have {what} of one shape. Received: "
                        f"{shape} in the {name} part, {first} in the train part"
                    )
            if self.class_names:
                _check_labels(part.y, self.classes, f"The {name} part of {self.name}")
        if self.class_names and len(np.unique(self.train.y)) < 2:
            raise DataError(
                f"A classification needs at least two classes in the train part of {self.name}. "
                f"Received: {len(self.train):,} examples of the class {self.train.y[0]}"
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def part(self, name: str) -> Split:
        if name not in PARTS:
            raise DataError(f"A data set has the parts {', '.join(PARTS)}. Received: {name!r}")
        return getattr(self, name)

    def arrays(self, part: str, limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of a part, scaled, in memory."""
        split = self.part(part)
        y = np.asarray(split.y[:limit])
        if self.target_scaling is not None:
            y = self.target_scaling(y)
        return self.scaling(split.x[:limit]), y

    def batches(self, part: str, batch_size: int) -> tf.data.Dataset:
        """A part in its own order, scaled and batched."""
        split = self.part(part)
        data = tf.data.Dataset.from_tensor_slices((split.x, split.y)).batch(batch_size)
        return data.map(self._scaled).prefetch(2)

    def training_batches(
        self,
        batch_size: int,
        augmentation: Augmentation | Turning | None = None,
        seed: int = 0,
        epoch: Callable[[], int] | None = None,
    ) -> tf.data.Dataset:
        """The train part, shuffled and augmented.

        Order and augmentation depend on nothing but `seed` and the epoch, so that a run which is
        interrupted and resumed sees what it would have seen.

        Args:
            batch_size: of all batches but the last.
            augmentation: what is done to the images; nothing by default.
            seed: of order and augmentation.
            epoch: tells the epoch when a pass begins; by default passes are counted.
        """
        x, y = tf.constant(self.train.x), tf.constant(self.train.y)

        def gather(indices: tf.Tensor, batch_seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            images, labels = self._scaled(tf.gather(x, indices), tf.gather(y, indices))
            if augmentation is None:
                return images, labels
            if getattr(augmentation, "changes_targets", False):
                return cast(Turning, augmentation)(images, labels, batch_seed)
            return cast(Augmentation, augmentation)(images, batch_seed), labels

        indices = shuffled_indices(len(self.train), batch_size, seed, epoch)
        return indices.map(gather, num_parallel_calls=2, deterministic=True).prefetch(2)

    def _scaled(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if self.target_scaling is not None:
            y = self.target_scaling(y)
        return self.scaling(x), y

    def fingerprint(self) -> str:
        """A short digest of all examples: equal for the same data, wherever they are kept."""
        return digest(a for p in PARTS for a in (self.part(p).x, self.part(p).y))

    def limited(self, examples: int | None) -> "Dataset":
        """The same with at most so many examples per part, for trials."""
        if examples is None:
            return self
        train, validation, test = (self.part(p).take(slice(0, examples)) for p in PARTS)
        return dataclasses.replace(self, train=train, validation=validation, test=test)

    def with_channel(self) -> "Dataset":
        """The same with a last axis of size one, as networks for images want it."""
        train, validation, test = (Split(p.x[..., None], p.y) for p in map(self.part, PARTS))
        return dataclasses.replace(self, train=train, validation=validation, test=test)

    def describe(self) -> str:
        sizes = ", ".join(f"{len(self.part(p)):,} {p}" for p in PARTS)
        shape = "x".join(map(str, self.input_shape))
        classes = f", {self.classes} classes" if self.classes else ""
        return f"{self.name}: {sizes} examples of {shape}{classes}"


def _check_labels(y: np.ndarray, classes: int, what: str) -> None:
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise DataError(
            f"{what} must have one whole number for each example, its class. Received: labels of "
            f"{y.dtype} and of shape {y.shape}"
        )
    if not 0 <= y.min() <= y.max() < classes:
        raise DataError(
            f"{what} must have labels from 0 to {classes - 1}, as there are {classes} classes. "
            f"Received: {y.min()} to {y.max()}"
        )


def digest(arrays: Iterable[np.ndarray]) -> str:
    """16 hexadecimal digits that differ where an array does.

    >>> digest([np.arange(3)]) == digest([np.arange(3)]), digest([np.arange(4)]) == digest([])
    (True, False)
    """
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()[:16]


def split_off(split: Split, share: float, seed: int = 0) -> tuple[Split, Split]:
    """Splits deterministically into (the rest, `share` of it), by a seeded permutation.

    >>> rest, part = split_off(Split(np.arange(10), np.arange(10)), 0.2)
    >>> len(rest), len(part)
    (8, 2)
    """
    if not 0 < share < 1:
        raise DataError(f"A share is between 0 and 1. Received: {share}")
    order = np.random.default_rng(seed).permutation(len(split))
    count = max(1, round(share * len(split)))
    if count >= len(split):
        raise DataError(f"Too few examples to split: {len(split)}.")
    return split.take(np.sort(order[count:])), split.take(np.sort(order[:count]))


def in_three(
    split: Split, validation: float, test: float, seed: int = 0
) -> tuple[Split, Split, Split]:
    """(train, validation, test) of data that come as one; shares are of the whole."""
    rest, tested = split_off(split, test, seed)
    train, validated = split_off(rest, validation / (1 - test), seed + 1)
    return train, validated, tested
