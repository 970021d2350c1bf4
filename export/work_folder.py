"""Folders that a step works in beside its results, and what killed steps left of theirs.

A file in it is locked for as long as its process lives; the system gives the lock back even after a
`kill -9`. So a folder whose file can be locked belongs to nobody, and the next step removes it.
"""

import contextlib
import fcntl
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from udc_tf.export.errors import ExportError

_SUFFIX = ".partial"
_ALIVE = ".alive"
_OWN = os.O_RDWR | os.O_NOFOLLOW  # a link could lead anywhere


@contextlib.contextmanager
def work_folder(out_dir: str | os.PathLike, prefix: str) -> Iterator[pathlib.Path]:
    """A new folder in `out_dir`, which is made if need be; gone at the end.

    It lies beside the results, so that they only have to be renamed.

    Args:
        prefix: of its name, such as ".export-"; dead folders of that prefix are removed.

    Raises:
        ExportError: `out_dir` cannot be written to.
    """
    out_dir = pathlib.Path(out_dir)
    with contextlib.ExitStack() as held:
        try:
            out_dir.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as briefly:
                # Nobody may take a folder for dead between its making and its locking.
                with contextlib.suppress(OSError):  # a file system without locks
                    _lock(briefly, out_dir, os.O_RDONLY | os.O_DIRECTORY, wait=True)
                _remove_dead(out_dir, prefix)
                folder = tempfile.mkdtemp(prefix=prefix, suffix=_SUFFIX, dir=out_dir)
                held.callback(shutil.rmtree, folder, ignore_errors=True)
                with contextlib.suppress(OSError):
                    _lock(held, pathlib.Path(folder, _ALIVE), _OWN | os.O_CREAT)
        except OSError as error:
            raise ExportError(f"Cannot write to the folder {out_dir}: {error}") from error
        yield pathlib.Path(folder)


def _remove_dead(out_dir: pathlib.Path, prefix: str) -> None:
    for folder in out_dir.glob(f"{prefix}*{_SUFFIX}"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        with contextlib.suppress(OSError), contextlib.ExitStack() as briefly:
            if (folder / _ALIVE).exists():
                _lock(briefly, folder / _ALIVE, _OWN)
            shutil.rmtree(folder, ignore_errors=True)


def _lock(held: contextlib.ExitStack, path: pathlib.Path, flags: int, wait: bool = False) -> None:
    """Locks a file or folder until `held` ends, or raises an `OSError`."""
    descriptor = os.open(path, flags)
    held.callback(os.close, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
