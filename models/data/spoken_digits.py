"""Spoken digits (AudioMNIST) as log-mel frames, split by speaker."""

import itertools
import pathlib
from collections.abc import Mapping

import numpy as np

from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Dataset, Split

KEYS = {"logmel", "label", "speaker"}
_FIRST_TO_VALIDATE, _FIRST_TO_TEST = 49, 55  # of 60 speakers


def spoken_digits(content: Mapping[str, np.ndarray], path: pathlib.Path, seed: int = 0) -> Dataset:
    """The data set of an .npz with `logmel` (bytes, [n, frames, bands]), `label` and `speaker`.

    Speakers 1 to 48 train, 49 to 54 validate, 55 to 60 test: nobody is heard in two parts.

    Args:
        content: of the file.
        path: of the file, for messages.
        seed: of the order, in which speakers and digits are mixed.
    """
    x, y, speaker = (content[key] for key in ("logmel", "label", "speaker"))
    if x.dtype != np.uint8 or x.ndim != 3 or y.shape != x.shape[:1] or speaker.shape != y.shape:
        raise DataError(
            f"{path} should hold `logmel`, bytes [n, frames, bands], and n of `label` and "
            f"`speaker`. Received: {x.dtype} {x.shape}, {y.shape}, {speaker.shape}"
        )
    if y.dtype.kind not in "iu" or not 0 <= y.min(initial=0) <= y.max(initial=0) < 10:
        raise DataError(f"`label` of {path} must be digits. Received: {y.dtype}, {y.max()}")
    order = np.random.default_rng(seed).permutation(len(x))

    def part(first: float, end: float) -> Split:
        chosen = order[(speaker[order] >= first) & (speaker[order] < end)]
        return Split(x[chosen], y[chosen].astype(np.int32))

    ends = (-np.inf, _FIRST_TO_VALIDATE, _FIRST_TO_TEST, np.inf)
    train, validation, test = (part(*pair) for pair in itertools.pairwise(ends))
    names = tuple(str(digit) for digit in range(10))
    return Dataset("spoken_digits", train, validation, test, names)
