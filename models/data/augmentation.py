"""Augmentation for super resolution (classification: `udc_tf.training.image_augmentation`)."""

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Turning:
    """Turns and mirrors image and target alike, from a seed alone.

    Example:

    >>> images, targets = Turning()(tf.zeros([2, 8, 8, 1]), tf.zeros([2, 32, 32, 1]), [0, 1])
    >>> tuple(targets.shape)
    (2, 32, 32, 1)
    """

    changes_targets = True

    def __call__(
        self, images: tf.Tensor, targets: tf.Tensor, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        seeds = tf.unstack(tf.random.split(tf.cast(seed, tf.int32), 3))
        for axis, one in ((1, seeds[0]), (2, seeds[1])):
            chosen = _coin(images, one)
            images = tf.where(chosen, tf.reverse(images, [axis]), images)
            targets = tf.where(chosen, tf.reverse(targets, [axis]), targets)
        chosen = _coin(images, seeds[2])
        images = tf.where(chosen, tf.transpose(images, [0, 2, 1, 3]), images)
        return images, tf.where(chosen, tf.transpose(targets, [0, 2, 1, 3]), targets)


def _coin(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    chosen = tf.random.stateless_uniform([tf.shape(images)[0]], seed) < 0.5
    return chosen[:, None, None, None]
