"""One folder per class, of files of some kind, perhaps below folders of the three parts."""

import os
import pathlib
from collections.abc import Callable, Collection

import numpy as np

from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import PARTS, Split, in_three, split_off

_NAMES = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}


class ClassFolders:
    """Files in `path/<class>/`; hidden folders and files, whose names begin with a dot, are not.

    If `path` has folders `train`, `validation` or `val`, and `test` with the classes below them,
    these are the parts; what is missing is split off.

    Args:
        path: of the folder.
        endings: of the files' names, in small letters.
        what: the files are, for messages: "images".
        seed: of order and splits.
    """

    def __init__(self, path: str | os.PathLike, endings: Collection[str], what: str, seed: int = 0):
        self.path, self.what, self.seed = pathlib.Path(path), what, seed
        self._endings = tuple(endings)
        if not self.path.is_dir():
            raise DataError(
                f"There is no folder {self.path}: it should hold one folder of {what} per class."
            )
        self._parts = {
            part: next((self.path / n for n in names if (self.path / n).is_dir()), None)
            for part, names in _NAMES.items()
        }
        self._refuse_parts_without_train()
        self.names = self.class_names(self._parts["train"] or self.path)

    def splits(self, read: Callable[[list[str], list[int]], Split]) -> tuple[Split, Split, Split]:
        """Train, validation and test part.

        What is split off is split by files, so that no two parts hold pieces of one file.

        Args:
            read: makes examples of files and the numbers of their classes.
        """
        base = self._parts["train"]
        if base is None:
            pieces = dict(
                zip(PARTS, in_three(self._listed(self.path), 0.1, 0.2, self.seed), strict=True)
            )
        else:
            given = {p: f for p in PARTS if (f := self._parts[p]) is not None}
            pieces = {part: self._listed(folder) for part, folder in given.items()}
            for part, share in (("test", 0.2), ("validation", 0.1)):
                if part not in pieces:
                    pieces["train"], pieces[part] = split_off(pieces["train"], share, self.seed)
        train, validation, test = (read(list(pieces[p].x), list(pieces[p].y)) for p in PARTS)
        return train, validation, test

    def class_names(self, folder: pathlib.Path) -> tuple[str, ...]:
        """Names of the folders that hold such files, sorted."""
        names = self._class_folders(folder)
        if len(names) < 2:
            raise DataError(
                f"{folder} should hold one folder of {self.what} ({', '.join(self._endings)}) for "
                f"each of at least two classes. Received: {', '.join(names) or 'none'}"
            )
        return names

    def files(self, folder: pathlib.Path) -> tuple[list[str], list[int]]:
        """All files below `folder` with the numbers of their classes, in an order that mixes them.

        Else the first examples, which are taken for trials and to verify, would be of one class.
        """
        strange = [name for name in self._class_folders(folder) if name not in self.names]
        if strange:
            raise DataError(
                f"{folder} holds {self.what} of a class that the training {self.what} lack. "
                f"Received: {', '.join(strange)} beside {', '.join(self.names)}"
            )
        files, labels = [], []
        for label, name in enumerate(self.names):
            found = self._files(folder / name)
            if not found:
                raise DataError(
                    f"There are no {self.what} of the class {name!r} in {folder / name}."
                )
            files += found
            labels += [label] * len(found)
        order = np.random.default_rng(self.seed).permutation(len(files))
        return [files[i] for i in order], [labels[i] for i in order]

    def _listed(self, folder: pathlib.Path) -> Split:
        files, labels = self.files(folder)
        return Split(np.asarray(files), np.asarray(labels, np.int32))

    def _refuse_parts_without_train(self) -> None:
        """Files set apart to test must not be overlooked."""
        if self._parts["train"] is not None:
            return
        for folder in filter(None, self._parts.values()):
            if not self._files(folder) and self._class_folders(folder):
                raise DataError(
                    f"{folder} holds classes, and so {self.path / 'train'} should. Received: "
                    f"{self.path} without a folder `train`"
                )

    def _files(self, folder: pathlib.Path) -> list[str]:
        return files_in(folder, self._endings)

    def _class_folders(self, folder: pathlib.Path) -> tuple[str, ...]:
        found = (d for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))
        return tuple(sorted(d.name for d in found if self._files(d)))


def files_in(folder: pathlib.Path, endings: Collection[str]) -> list[str]:
    """Files directly in a folder whose names end so, sorted; none if there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(
        str(f)
        for f in folder.iterdir()
        if f.suffix.lower() in endings and not f.name.startswith(".")
    )


def kinds_below(path: pathlib.Path) -> set[str]:
    """Endings of the files in the folders of classes, which may be below those of parts.

    >>> kinds_below(pathlib.Path("/there/is/no/such/folder"))
    set()
    """
    found = (
        f
        for pattern in ("*/*", "*/*/*")
        for f in path.glob(pattern)
        if not any(part.startswith(".") for part in f.relative_to(path).parts)
    )
    return {f.suffix.lower() for f in found if f.is_file()}
