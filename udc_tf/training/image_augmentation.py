"""Image augmentation as functions of a batch and a seed, for `tf.data`.

UDC's CIFAR settings are flip, pad-and-crop by 4, cutout of 18. All randomness comes from the seed,
so that a run which resumes sees the images it would have seen.
"""

import dataclasses

import tensorflow as tf


def random_flip(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Mirrors each image of a batch left to right with probability 1/2."""
    mirrored = tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 1], seed) < 0.5
    return tf.where(mirrored, tf.reverse(images, [2]), images)


def pad_and_crop(images: tf.Tensor, padding: int, seed: tf.Tensor) -> tf.Tensor:
    """Pads with zeros on all sides and cuts the old size out at a random place."""
    shape = tf.shape(images)
    widths = [[0, 0], [padding, padding], [padding, padding], [0, 0]]
    padded = tf.pad(images, widths)
    corners = tf.random.stateless_uniform([shape[0], 2], seed, 0, 2 * padding + 1, tf.int32)
    rows = corners[:, :1] + tf.range(shape[1])[None]
    columns = corners[:, 1:] + tf.range(shape[2])[None]
    cut = tf.gather(padded, rows, axis=1, batch_dims=1)
    cut = tf.gather(cut, columns, axis=2, batch_dims=1)
    return tf.ensure_shape(cut, images.shape)


def cutout(images: tf.Tensor, size: int, seed: tf.Tensor, fill: float = 0.0) -> tf.Tensor:
    """Fills a square around a random point of each image; it may reach over the border."""
    shape = tf.shape(images)
    extent = tf.stack([shape[1], shape[2]])
    centre = tf.random.stateless_uniform([shape[0], 2], seed) * tf.cast(extent, tf.float32)
    first = tf.cast(centre, tf.int32) - size // 2
    inside = []
    for axis in (0, 1):
        away = tf.range(extent[axis])[None] - first[:, axis : axis + 1]
        inside.append((away >= 0) & (away < size))
    hole = inside[0][:, :, None] & inside[1][:, None, :]
    return tf.where(hole[..., None], tf.cast(fill, images.dtype), images)


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Flip, crop and cutout of a batched data set of `(images, ...)`; 0 leaves one out.

    Example:

    >>> images = tf.data.Dataset.from_tensors((tf.ones([2, 32, 32, 3]), tf.constant([0, 1])))
    >>> x, y = next(iter(Augmentation(crop=4, cutout=18).apply(images)))
    >>> x.shape, bool(tf.reduce_min(x) == 0)
    (TensorShape([2, 32, 32, 3]), True)
    """

    flip: bool = True
    crop: int = 4
    cutout: int = 0
    seed: int = 0

    @classmethod
    def cifar(cls, seed: int = 0) -> "Augmentation":
        """UDC's settings for CIFAR-100 (appendix F)."""
        return cls(flip=True, crop=4, cutout=18, seed=seed)

    def __call__(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Augments one batch with a seed of two integers."""
        if self.flip:
            images = random_flip(images, seed)
        if self.crop:
            images = pad_and_crop(images, self.crop, seed + 1)
        if self.cutout:
            images = cutout(images, self.cutout, seed + 2)
        return images

    def apply(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Augments every batch, differently in every pass."""
        seeds = tf.data.Dataset.random(seed=self.seed, rerandomize_each_iteration=True).batch(2)

        def augmented(batch: tuple[tf.Tensor, ...], seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return (self(batch[0], seed), *batch[1:])

        pairs = tf.data.Dataset.zip((dataset, seeds))
        return pairs.map(augmented, num_parallel_calls=tf.data.AUTOTUNE)
