"""Handwritten digits, 8x8, from scikit-learn's own files: no download."""

import numpy as np

from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Dataset, Scaling, Split, in_three


def digits(seed: int = 0) -> Dataset:
    """1,797 digits: 70% to train, 10% to validate, 20% to test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("The digits come with scikit-learn: pip install scikit-learn.") from error
    loaded = load_digits()
    whole = Split(loaded.images.astype(np.uint8)[..., None], loaded.target.astype(np.int32))
    names = tuple(str(name) for name in loaded.target_names)
    # Stored as 0..16.
    parts = in_three(whole, 0.1, 0.2, seed)
    return Dataset("digits", *parts, class_names=names, scaling=Scaling(8.0, 8.0))
