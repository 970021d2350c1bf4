"""Windows of sensor data: recordings as CSV in one folder per class, or one window per line.

walking/monday.csv          running/tuesday.csv          rows are steps, columns are channels
FordA_TRAIN.tsv             FordA_TEST.tsv               label, then the steps of one channel
"""

import os
import pathlib
import warnings

import numpy as np

from udc_tf.models.data.class_folders import ClassFolders
from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Dataset, Scaling, Split, in_three, split_off

ENDINGS = (".csv", ".tsv", ".txt")
_PARTS = ("TRAIN", "TEST")  # ends of names, as the UCR archive has them
_MOST_CLASSES = 1000  # more different labels are measurements, not classes


def from_window_folders(path: str | os.PathLike, window: int = 128, seed: int = 0) -> Dataset:
    """CSV files in `path/<class>/*.csv`, cut into windows of so many steps, one after the other.

    Rows are steps and columns are channels; a first line of names is left out. Steps that do not
    fill a window are dropped. `ClassFolders` says how the parts are found; they are split by files,
    so that no two parts hold pieces of one recording.
    """
    if window < 1:
        raise DataError(f"A window has at least one step (--window). Received: {window}")
    folders = ClassFolders(path, ENDINGS, "recordings", seed)
    channels: dict[int, str] = {}

    def read(files: list[str], labels: list[int]) -> Split:
        x, y = [], []
        for file, label in zip(files, labels, strict=True):
            table = read_table(file)
            channels.setdefault(table.shape[1], file)
            if len(channels) > 1:
                (first, one), (second, other) = channels.items()
                raise DataError(
                    "All recordings must have the same channels. Received: "
                    f"{first} in {one}, {second} in {other}"
                )
            count = len(table) // window
            if not count:
                raise DataError(
                    f"{file} should have at least the {window} steps of one window (--window). "
                    f"Received: {len(table)}"
                )
            x.append(table[: count * window].reshape(count, window, -1))
            y += [label] * count
        # Windows of one recording are much alike: mixed, as the first of them serve for trials.
        order = np.random.default_rng(seed).permutation(len(y))
        return Split(np.concatenate(x)[order], np.asarray(y, np.int32)[order])

    splits = folders.splits(read)
    scaling = standardized(splits[0].x)
    return Dataset(pathlib.Path(path).name, *splits, class_names=folders.names, scaling=scaling)


def from_window_lines(path: str | os.PathLike, seed: int = 0) -> Dataset:
    """One window per line: its label, then its steps; one channel.

    The format of the UCR archive: with NAME_TRAIN.tsv there may be a NAME_TEST.tsv, which is the
    test part then. Labels are any whole numbers. What is missing is split off.
    """
    path = pathlib.Path(path)
    partner = path.with_name(path.name.replace(*_PARTS))
    train, labels = _labelled(path)
    test = None
    if partner != path and partner.is_file():
        test, others = _labelled(partner)
        if strange := set(others) - set(labels):
            raise DataError(
                f"{partner} has labels that {path} lacks. Received: {sorted(strange)[:5]}"
            )
    values = sorted(set(labels))
    whole = Split(train, np.searchsorted(values, labels).astype(np.int32))
    if test is None:
        splits = in_three(whole, 0.1, 0.2, seed)
    else:
        rest, validation = split_off(whole, 0.1, seed)
        splits = rest, validation, Split(test, np.searchsorted(values, others).astype(np.int32))
    names = tuple(str(value) for value in values)
    name = path.stem.removesuffix(f"_{_PARTS[0]}")
    return Dataset(name, *splits, class_names=names, scaling=standardized(splits[0].x))


def standardized(x: np.ndarray) -> Scaling:
    """Each channel of the training windows to mean 0 and standard deviation 1.

    >>> standardized(np.array([[[0.0, 5.0], [2.0, 5.0]]]))
    Scaling(offset=(1.0, 5.0), scale=(1.0, 1.0))
    """
    axes = tuple(range(x.ndim - 1))
    mean, deviation = x.mean(axes, np.float64), x.std(axes, dtype=np.float64)
    usual = np.where(deviation > 0, deviation, 1.0)
    return Scaling(*(tuple(values.astype(np.float32).tolist()) for values in (mean, usual)))


def read_table(path: str | os.PathLike) -> np.ndarray:
    """The numbers of a text file, [lines, columns], split at commas, semicolons or white space."""
    try:
        with open(path, encoding="utf-8") as file:
            first = file.readline()
        delimiter = next((d for d in ",;" if d in first), None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file, which is refused below
            table = np.loadtxt(
                path,
                np.float32,
                delimiter=delimiter,
                skiprows=0 if _is_numbers(first, delimiter) else 1,
                ndmin=2,
                encoding="utf-8",
            )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} is not a table of numbers ({reason}).") from error
    if not table.size or not np.isfinite(table).all():
        what = "numbers that are not finite" if table.size else "no numbers"
        raise DataError(f"{path} should be a table of finite numbers. Received: {what}")
    return table


def _is_numbers(line: str, delimiter: str | None) -> bool:
    try:
        [float(text) for text in line.split(delimiter)]
    except ValueError:
        return False
    return True


def _labelled(path: pathlib.Path) -> tuple[np.ndarray, list[int]]:
    table = read_table(path)
    labels = table[:, 0]
    if table.shape[1] < 2 or (labels != np.rint(labels)).any():
        raise DataError(
            f"Each line of {path} should be a whole number, the label of a window, and its steps. "
            f"Received: {', '.join(f'{v:g}' for v in table[0, :4])}, ..."
        )
    if len(set(labels.tolist())) > _MOST_CLASSES:
        raise DataError(
            f"{path} should have at most {_MOST_CLASSES:,} different labels, in its first column. "
            f"Received: {len(set(labels.tolist())):,}"
        )
    return table[:, 1:, None], [int(label) for label in labels]
