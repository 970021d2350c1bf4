"""Training curves: one line of JSON per epoch in a file, one line of text on the terminal."""

from typing import Any

import keras

from udc_tf.cli.usage import Say


class EpochLines(keras.callbacks.Callback):
    """One line per epoch on the terminal, instead of Keras' bars: logs stay readable in a file."""

    def __init__(self, step: str, epochs: int, say: Say = print):
        super().__init__()
        self._step, self._epochs, self._say = step, epochs, say

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = logs or {}
        shown = [f"{label} {float(logs[n]):.4g}" for n, label in _SHOWN if n in logs]
        self._say(f"  {self._step} {epoch + 1}/{self._epochs}: {', '.join(shown)}")


_SHOWN = (
    ("stage", "stage"),
    ("loss", "loss"),
    ("accuracy", "accuracy"),
    ("val_accuracy", "validation"),
    ("mean_squared_error", "mse"),
    ("val_mean_squared_error", "validation mse"),
    ("psnr", "PSNR"),
    ("val_psnr", "validation PSNR"),
    ("argmax_ratio", "size/budget"),
    ("entropy", "entropy"),
)
