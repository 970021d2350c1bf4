"""What a search does, for TensorBoard: `tensorboard --logdir=...`.

Written with TensorFlow's own writer, so that TensorBoard itself need not be installed where the
search runs.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_GROUPS = {
    "loss": "loss/task",
    "size_loss": "loss/size",
    "argmax_ratio": "size/most_likely_to_budget",
    "expected_ratio": "size/expected_to_budget",
    "entropy": "decisions/entropy",
    "tau": "schedules/tau",
    "xi": "schedules/xi",
    "vartheta": "schedules/vartheta",
}


class TensorBoard(keras.callbacks.Callback):
    """Task and size loss, E/e*, entropy and schedules as curves, the decisions as images.

    Args:
        log_dir: what `tensorboard --logdir` is given.
        image_every: epochs between two images of the decisions.

    Example:

    ```python
    search.fit(train, epochs=30, callbacks=[udc_tf.tensorboard.TensorBoard("logs")])
    ```
    """

    def __init__(self, log_dir: str | os.PathLike, image_every: int = 1):
        super().__init__()
        if image_every < 1:
            raise ValueError(f"`image_every` must be at least 1. Received: {image_every}")
        self._log_dir, self._image_every = os.fspath(log_dir), image_every
        self._writer: Any = None  # made when training begins

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._log_dir)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        with self._full_disk_told(), self._writer.as_default():
            for name, value in (logs or {}).items():
                write_scalar(_GROUPS.get(name, f"epoch/{name}"), float(value), epoch)
            if hasattr(self.model, "probabilities") and epoch % self._image_every == 0:
                for kind, image in decision_images(self.model.probabilities()).items():
                    write_image(f"decisions/{kind}", image, epoch)
            self._writer.flush()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        with self._full_disk_told():
            self._writer.flush()

    @contextlib.contextmanager
    def _full_disk_told(self) -> Iterator[None]:
        """As Python's own files tell of it."""
        try:
            yield
        except tf.errors.ResourceExhaustedError as error:
            reason = os.strerror(errno.ENOSPC)
            raise OSError(errno.ENOSPC, reason, self._log_dir) from error


def write_scalar(tag: str, value: float, step: int) -> None:
    """A point of a curve, to the writer in use."""
    tf.summary.write(tag, tf.constant(value, tf.float32), step=step, metadata=_metadata("scalars"))


def write_image(tag: str, image: np.ndarray, step: int) -> None:
    """An image of bytes, [height, width, 1 or 3], to the writer in use."""
    height, width = image.shape[:2]
    content = tf.stack([str(width), str(height), tf.io.encode_png(image)])
    tf.summary.write(tag, content, step=step, metadata=_metadata("images"))


def decision_images(
    probabilities: Mapping[str, Mapping[float, float]], cell: int = 12
) -> dict[str, np.ndarray]:
    """One image per kind of decision: a row per decision, a column per option, dark where likely.

    >>> images = decision_images({"bits/conv": {4: 0.25, 8: 0.75}}, cell=1)
    >>> images["bits"][0, :, 0].tolist()
    [191, 64]
    """
    rows: dict[str, list[list[float]]] = {}
    for name, options in probabilities.items():
        rows.setdefault(name.split("/")[0], []).append(list(options.values()))
    images = {}
    for kind, values in rows.items():
        columns = max(len(row) for row in values)
        # Where a decision has fewer options, the paper stays white.
        table = np.array([row + [0.0] * (columns - len(row)) for row in values])
        grey = np.rint(255 * (1 - table)).astype(np.uint8)
        images[kind] = np.kron(grey, np.ones((cell, cell), np.uint8))[..., None]
    return images


def _metadata(plugin: str) -> Any:
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    return metadata
