"""A user's own arrays: one .npz."""

import os
import pathlib

import numpy as np

from udc_tf.models.data import spoken_digits
from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import PARTS, Dataset, Scaling, Split, in_three, split_off
from udc_tf.models.data.windows import standardized

_WANTED = "arrays x and y, or x_train, y_train, x_test, y_test (and x_validation, y_validation)"
_MOST_CLASSES = 100_000  # a larger number is an identifier, or damage


def from_npz(
    path: str | os.PathLike,
    seed: int = 0,
    name: str | None = None,
    class_names: tuple[str, ...] = (),
    windows: bool = False,
) -> Dataset:
    """A data set from an .npz with x and y, or with them for each part.

    Whatever part is missing is split off deterministically: a tenth of the training data to
    validate, a fifth of the whole to test. Inputs of 8 bits are taken for pixels and scaled to
    [-1, 1); all others are taken as they are. Whole-numbered y are classes; without y the
    inputs are their own targets (an autoencoder).

    Args:
        path: of the file. One with `logmel`, `label` and `speaker` holds spoken digits.
        seed: of the splits.
        name: of the data set; that of the file by default.
        class_names: if there are better ones than numbers.
        windows: x is [n, steps, channels] of sensor data, not images without channels. Each channel
            is then scaled to mean 0 and standard deviation 1, unless it has 8 bits.
    """
    path = pathlib.Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            content = {key: file[key] for key in file.files}
    except FileNotFoundError as error:
        raise DataError(f"There is no {path}. A data file is an .npz with {_WANTED}.") from error
    except Exception as error:  # whatever is inside the file
        raise DataError(
            f"{path} cannot be read as .npz ({error}): write it anew with numpy.savez."
        ) from error
    if content.keys() >= spoken_digits.KEYS:
        return spoken_digits.spoken_digits(content, path, seed)
    train, validation, test = (_part(content, f"_{p}", path, windows) for p in PARTS)
    if train is None:
        whole = _part(content, "", path, windows)
        if whole is None:
            found = ", ".join(content) or "nothing"
            raise DataError(f"{path} must hold {_WANTED}. Received: {found}")
        train, validation, test = in_three(whole, 0.1, 0.2, seed)
    if test is None:
        train, test = split_off(train, 0.2, seed)
    if validation is None:
        train, validation = split_off(train, 0.1, seed)
    scaling = Scaling() if train.x.dtype == np.uint8 else Scaling(0.0, 1.0)
    if windows and train.x.dtype != np.uint8:
        scaling = standardized(train.x)
    own_targets = train.y is train.x or train.y.shape == train.x.shape
    if not class_names and np.issubdtype(train.y.dtype, np.integer) and train.y.ndim == 1:
        class_names = tuple(str(n) for n in range(int(train.y.max()) + 1))
    return Dataset(
        name or path.stem,
        train,
        validation,
        test,
        class_names,
        scaling,
        target_scaling=scaling if own_targets else None,
    )


def _part(
    content: dict[str, np.ndarray], ending: str, path: pathlib.Path, windows: bool
) -> Split | None:
    x = content.get(f"x{ending}")
    if x is None:
        return None
    if x.dtype.kind not in "buif" or x.ndim < 2:
        raise DataError(
            f"x{ending} of {path} must be numbers, the first axis the examples. Received: "
            f"{x.dtype} of shape {x.shape}"
        )
    x = x if x.dtype == np.uint8 else x.astype(np.float32)
    if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
        raise DataError(f"x{ending} of {path} contains NaN or infinite values.")
    if windows and x.ndim != 3:
        raise DataError(
            f"x{ending} of {path} must be windows, [n, steps, channels]. Received: shape {x.shape}"
        )
    if x.ndim == 3 and not windows:
        x = x[..., None]  # images without a channel axis
    y = content.get(f"y{ending}", x)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if np.issubdtype(y.dtype, np.integer) and y.ndim == 1:
        _check_class_numbers(y, f"y{ending} of {path}")
    if np.issubdtype(y.dtype, np.integer) and y.dtype != np.uint8:
        y = y.astype(np.int32)
    if y.dtype == np.uint8 and y.ndim <= 2 and x.ndim > 2:
        y = y.astype(np.int32)
    return Split(x, y)


def _check_class_numbers(y: np.ndarray, what: str) -> None:
    if y.size and not 0 <= y.min() <= y.max() < _MOST_CLASSES:
        raise DataError(
            f"{what} must be class numbers, from 0 upwards. Received: {y.min()} to {y.max()}"
        )
