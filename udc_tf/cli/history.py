"""Training curves as one line of JSON an epoch, which a resumed run continues."""

import json
import pathlib

import keras

from udc_tf.files import replaced_atomically
from udc_tf.report.readers import read_history


class EpochLog(keras.callbacks.Callback):
    """Appends each epoch's numbers to a file; an epoch that is done again replaces its line."""

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self._path = path

    def on_epoch_end(self, epoch, logs=None):
        rows = [row for row in read_history(self._path) if row["epoch"] < epoch]
        rows.append({"epoch": epoch, **{k: float(v) for k, v in (logs or {}).items()}})
        with replaced_atomically(self._path) as partial:
            partial.write_text("".join(json.dumps(row) + "\n" for row in rows))


class EpochLines(keras.callbacks.Callback):
    """One line an epoch on the terminal, instead of Keras' bars: logs stay readable in a file."""

    def __init__(self, step: str, epochs: int, say=print):
        super().__init__()
        self._step, self._epochs, self._say = step, epochs, say

    def on_epoch_end(self, epoch, logs=None):
        shown = []
        for name, label in _SHOWN:
            if name in (logs or {}):
                shown.append(f"{label} {float(logs[name]):.4g}")
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
