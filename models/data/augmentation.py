"""Augmentation of image batches, from seeds alone, so that a resumed run repeats itself."""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What is done to a batch of training images, which are scaled already.

    Attributes:
        flip: mirror half of the images.
        shift: pad by so many pixels on all sides, then crop at random.
        cutout: set a square of this side at a random place to 0 (DeVries and Taylor, 2017).

    Example:

    >>> images = tf.zeros([2, 32, 32, 3])
    >>> images, labels = Augmentation(flip=True, shift=4)(images, tf.constant([0, 1]), [0, 1])
    >>> tuple(images.shape)
    (2, 32, 32, 3)
    """

    flip: bool = False
    shift: int = 0
    cutout: int = 0

    def __call__(self, images, labels, seed):
        seeds = tf.unstack(tf.random.split(tf.cast(seed, tf.int32), 3))
        if self.flip:
            images = _flip(images, seeds[0])
        if self.shift:
            images = _shift(images, self.shift, seeds[1])
        if self.cutout:
            images = _cutout(images, self.cutout, seeds[2])
        return images, labels


@dataclasses.dataclass(frozen=True)
class Turning:
    """Turns and mirrors image and target alike: augmentation for super resolution."""

    def __call__(self, images, targets, seed):
        seeds = tf.unstack(tf.random.split(tf.cast(seed, tf.int32), 3))
        for axis, one in ((1, seeds[0]), (2, seeds[1])):
            chosen = _coin(images, one)
            images = tf.where(chosen, tf.reverse(images, [axis]), images)
            targets = tf.where(chosen, tf.reverse(targets, [axis]), targets)
        chosen = _coin(images, seeds[2])
        images = tf.where(chosen, tf.transpose(images, [0, 2, 1, 3]), images)
        return images, tf.where(chosen, tf.transpose(targets, [0, 2, 1, 3]), targets)


def _coin(images, seed):
    chosen = tf.random.stateless_uniform([tf.shape(images)[0]], seed) < 0.5
    return chosen[:, None, None, None]


def _flip(images, seed):
    return tf.where(_coin(images, seed), tf.reverse(images, [2]), images)


def _shift(images, pixels, seed):
    count, height, width = tf.shape(images)[0], images.shape[1], images.shape[2]
    # Reflected rather than blank: the border then looks like the image it belongs to.
    around = [[0, 0], [pixels, pixels], [pixels, pixels], [0, 0]]
    padded = tf.pad(images, around, mode="REFLECT")
    begin = tf.random.stateless_uniform([2, count, 1], seed, 0, 2 * pixels + 1, tf.int32)
    rows, columns = begin[0] + tf.range(height), begin[1] + tf.range(width)
    return tf.gather(tf.gather(padded, rows, batch_dims=1), columns, axis=2, batch_dims=1)


def _cutout(images, side, seed):
    count, height, width = tf.shape(images)[0], images.shape[1], images.shape[2]
    place = tf.random.stateless_uniform([2, count, 1], seed)
    rows = _covered(place[0], height, side)[:, :, None, None]
    columns = _covered(place[1], width, side)[:, None, :, None]
    return tf.where(rows & columns, tf.zeros_like(images), images)


def _covered(place, extent, side):
    middle = tf.floor(place * float(extent))
    begin = middle - side // 2
    at = tf.range(float(extent))
    return (at >= begin) & (at < begin + side)
