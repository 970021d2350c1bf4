"""The documented name of `udc_tf.training.image_augmentation`."""

from udc_tf.training.image_augmentation import (
    Augmentation,
    cutout,
    pad_and_crop,
    random_flip,
)

__all__ = [
    "Augmentation",
    "cutout",
    "pad_and_crop",
    "random_flip",
]
