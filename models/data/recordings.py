"""A user's own recordings: a folder with one folder of WAV files per class, as TFLM hears them.

The features are those of TFLite Micro's audio front end (`microfrontend`): filter banks, noise
reduction, automatic gain and a logarithm, all in integers. TensorFlow carries the library as an
operation, so a network is trained on what firmware computes with the same C code,
`tensorflow/lite/experimental/microfrontend/lib`, and the settings of `FRONT_END`. (Its fixed-point
FFT, kissfft, comes in versions that round differently, which weak bands show.)
"""

import os
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from udc_tf.models.data.class_folders import ClassFolders
from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Dataset, Split

ENDINGS = (".wav",)
RATE = 16_000
# As in TFLM's example micro_speech; what is not named here is as FrontendFillConfigWithDefaults
# has it.
FRONT_END = {
    "sample_rate": RATE,
    "window_size": 30,
    "window_step": 20,
    "num_channels": 40,
    "lower_band_limit": 125.0,
    "upper_band_limit": 7500.0,
    "smoothing_bits": 10,
    "even_smoothing": 0.025,
    "odd_smoothing": 0.06,
    "min_signal_remaining": 0.05,
    "enable_pcan": True,
    "pcan_strength": 0.95,
    "pcan_offset": 80.0,
    "gain_bits": 21,
    "enable_log": True,
    "scale_shift": 6,
}
_LOUDEST = 666  # micro_speech's scale: about the largest value that the front end gives
_LONGEST = 60  # seconds of a clip


def from_recordings(path: str | os.PathLike, seconds: float = 1.0, seed: int = 0) -> Dataset:
    """WAV files (16 bits, mono, 16 kHz) in `path/<class>/*.wav` as frames of 40 filter banks.

    `ClassFolders` says how the parts are found. A recording is cut to `seconds`, or filled up with
    silence; each is heard by a front end that has heard nothing before.

    Args:
        path: of the folder.
        seconds: length of a clip; a second becomes 49 frames.
        seed: of order and splits.
    """
    if not 0.03 <= seconds <= _LONGEST:
        raise DataError(
            f"A clip has from 0.03 to {_LONGEST} seconds (--clip_seconds). Received: {seconds}"
        )
    folders = ClassFolders(path, ENDINGS, "recordings", seed)
    length = round(seconds * RATE)

    def read(files: list[str], labels: list[int]) -> Split:
        heard = np.stack([features(read_wave(f, length)) for f in files])
        return Split(heard, np.asarray(labels, np.int32))

    splits, name = folders.splits(read), pathlib.Path(path).name
    return Dataset(name, *splits, class_names=folders.names, front_end=FRONT_END)


def features(wave: np.ndarray) -> np.ndarray:
    """Filter banks of a wave of 16-bit integers, as bytes [frames, 40].

    Minus 128 they are the int8 that micro_speech's firmware makes: (value * 256 + 333) / 666 - 128.

    >>> loud = (8000 * np.sin(np.arange(16000) / 8)).astype(np.int16)
    >>> features(loud).shape, features(loud * 0).max()
    ((49, 40), np.uint8(0))
    """
    banks = _microfrontend()(tf.constant(wave, tf.int16), **FRONT_END).numpy().astype(np.int64)
    return np.clip((banks * 256 + _LOUDEST // 2) // _LOUDEST, 0, 255).astype(np.uint8)


def read_wave(path: str, length: int) -> np.ndarray:
    """The first `length` samples of a WAV file as 16-bit integers; what is missing is silence."""
    try:
        audio, rate = tf.audio.decode_wav(tf.io.read_file(path), 1, length)
    except tf.errors.OpError as error:
        raise DataError(f"{path} is not a 16-bit WAV file.") from error
    if int(rate) != RATE:
        raise DataError(
            f"{path} should have {RATE:,} samples per second; convert it, such as with "
            f"`sox IN.wav -r 16000 OUT.wav`. Received: {int(rate):,}"
        )
    return np.rint(audio.numpy()[:, 0] * 32768).astype(np.int16)


def _microfrontend() -> Callable[..., tf.Tensor]:
    try:
        from tensorflow.lite.experimental.microfrontend.python.ops import audio_microfrontend_op
    except (ImportError, tf.errors.NotFoundError) as error:
        raise DataError(
            f"This TensorFlow ({tf.__version__}) comes without the audio front end of TFLite Micro "
            "that WAV files need; take the one that requirements.txt names."
        ) from error
    return audio_microfrontend_op.audio_microfrontend
