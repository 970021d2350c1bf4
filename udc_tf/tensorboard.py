"""The documented name of `udc_tf.training.tensorboard_log`."""

from udc_tf.training.tensorboard_log import (
    TensorBoard,
    decision_images,
    write_image,
    write_scalar,
)

__all__ = [
    "TensorBoard",
    "decision_images",
    "write_image",
    "write_scalar",
]
