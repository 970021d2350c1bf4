"""Speech commands as MLPerf Tiny's keyword spotting hears them: 49 x 10 features per second."""

import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from udc_tf.files import read_arrays, replaced_atomically
from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Dataset, Scaling, Split

WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
CLASSES = (*WORDS, "silence", "unknown")
_RATE = 16000
_CACHE = "udc_tf_features.npz"
_PARTS = ("train", "validation", "test")


def speech_commands(data_dir: str | os.PathLike | None = None, seed: int = 0) -> Dataset:
    """Ten words, silence and unknown words.

    Args:
        data_dir: the unpacked speech_commands_v0.02: one folder per word, `_background_noise_`,
            `validation_list.txt` and `testing_list.txt`, which say the parts. Features are
            computed once and kept there.
        seed: of the choice of unknown words and of the places of silence.
    """
    if data_dir is None:
        raise DataError(
            "Speech commands need --data_dir=FOLDER with the unpacked archive "
            "download.tensorflow.org/data/speech_commands_v0.02.tar.gz"
        )
    folder = pathlib.Path(data_dir)
    for name in ("validation_list.txt", "testing_list.txt"):
        if not (folder / name).is_file():
            raise DataError(f"There is no {folder / name}: {folder} is not speech_commands_v0.02.")
    cache = folder / _CACHE
    if not cache.is_file():
        arrays = _features(folder, np.random.default_rng(seed))
        try:
            with replaced_atomically(cache) as partial, open(partial, "wb") as file:
                np.savez(file, **dict[str, Any](arrays))
        except OSError:
            pass  # a folder that cannot be written to is no reason to stop
    else:
        arrays = read_arrays(cache, "remove it, and it is made anew")
    train, validation, test = (Split(arrays[f"x_{p}"], arrays[f"y_{p}"]) for p in _PARTS)
    scaling = Scaling(float(train.x.mean()), float(2 * train.x.std() or 1))
    return Dataset("speech_commands", train, validation, test, CLASSES, scaling)


def features(waves: tf.Tensor) -> tf.Tensor:
    """Ten mel-frequency cepstral coefficients of windows of 40 ms, every 20 ms.

    >>> tuple(features(tf.zeros([2, 16000])).shape)
    (2, 49, 10, 1)
    """
    spectra = tf.abs(tf.signal.stft(waves, frame_length=640, frame_step=320, fft_length=1024))
    mel = tf.signal.linear_to_mel_weight_matrix(40, spectra.shape[-1], _RATE, 20.0, 4000.0)
    logs = tf.math.log(tf.tensordot(spectra, mel, 1) + 1e-6)
    return tf.signal.mfccs_from_log_mel_spectrograms(logs)[..., :10, None]


def _features(folder: pathlib.Path, rng: np.random.Generator) -> dict[str, np.ndarray]:
    listed = {
        "validation": set((folder / "validation_list.txt").read_text().split()),
        "test": set((folder / "testing_list.txt").read_text().split()),
    }
    known: dict[str, list[tuple[str, int]]] = {p: [] for p in _PARTS}
    unknown: dict[str, list[tuple[str, int]]] = {p: [] for p in _PARTS}
    for word in sorted(d for d in folder.iterdir() if d.is_dir() and d.name[0] != "_"):
        for file in sorted(word.glob("*.wav")):
            name = f"{word.name}/{file.name}"
            part = next((p for p, names in listed.items() if name in names), "train")
            kind = known if word.name in WORDS else unknown
            kind[part].append((str(file), CLASSES.index(word.name) if kind is known else 11))
    if not known["train"]:
        raise DataError(f"There are no recordings of {', '.join(WORDS)} below {folder}.")
    noises = [_wave(str(f), None) for f in sorted((folder / "_background_noise_").glob("*.wav"))]
    arrays = {}
    for part in _PARTS:
        # A class of its own has about a tenth of all words.
        share = max(1, len(known[part]) // len(WORDS))
        order = rng.permutation(len(unknown[part]))[:share]
        chosen = known[part] + [unknown[part][i] for i in sorted(order)]
        waves = (_wave(file, _RATE) for file, _ in chosen)
        silent = (_cut(noises, rng) for _ in range(share))
        arrays[f"x_{part}"] = np.concatenate([_in_batches(waves), _in_batches(silent)])
        labels = [label for _, label in chosen] + [CLASSES.index("silence")] * share
        arrays[f"y_{part}"] = np.asarray(labels, np.int32)
    return arrays


def _in_batches(waves: Iterable[np.ndarray], size: int = 256) -> np.ndarray:
    done, batch = [np.zeros((0, 49, 10, 1), np.float32)], []
    for wave in waves:
        batch.append(wave)
        if len(batch) == size:
            done.append(features(tf.constant(np.stack(batch))).numpy())
            batch = []
    if batch:
        done.append(features(tf.constant(np.stack(batch))).numpy())
    return np.concatenate(done)


def _wave(path: str, length: int | None) -> np.ndarray:
    try:
        wave = tf.audio.decode_wav(tf.io.read_file(path), desired_channels=1).audio[:, 0].numpy()
    except tf.errors.InvalidArgumentError as error:
        raise DataError(f"{path} is not a 16-bit WAV file.") from error
    if length is None:
        return wave
    return np.pad(wave[:length], (0, max(0, length - len(wave))))


def _cut(noises: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """A second of background noise, at a random loudness."""
    long_enough = [n for n in noises if len(n) > _RATE]
    if not long_enough:
        return np.zeros(_RATE, np.float32)
    noise = long_enough[rng.integers(len(long_enough))]
    begin = rng.integers(len(noise) - _RATE)
    return (noise[begin : begin + _RATE] * rng.random()).astype(np.float32)
