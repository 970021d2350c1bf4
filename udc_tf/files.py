"""Files of a run: written so that no half of one is ever seen, read as data and nothing else."""

import contextlib
import io
import json
import math
import os
import secrets
import shutil
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


class DamagedFileError(ValueError):
    """A file does not hold what its name says; the message names it and what to do."""

    def __init__(self, path: str | os.PathLike, reason: Exception | str, remedy: str):
        super().__init__(f"{path} is damaged ({first_line(reason)}): {remedy}.")


def first_line(reason: Exception | str) -> str:
    """What an error says, in one line.

    >>> first_line(KeyError("layers"))
    "KeyError: 'layers'"
    """
    text = next((line.strip() for line in str(reason).splitlines() if line.strip()), "")
    if isinstance(reason, str | ValueError | OSError) and text:
        return text
    return f"{type(reason).__name__}: {text}" if text else type(reason).__name__


@contextlib.contextmanager
def replaced_atomically(path: Path) -> Iterator[Path]:
    """Gives a temporary name beside `path`; on success it becomes `path`, on failure it goes.

    What has become `path` is on the disk: a machine that loses its power then does not lose it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.partial{path.suffix}")
    # Made here and by no one before: a link that waits under this name is not followed.
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield partial
        _flush(partial)
        os.replace(partial, path)
        with contextlib.suppress(OSError):  # not every file system can flush a folder
            _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def is_partial(path: Path) -> bool:
    """Whether a killed process left this name.

    >>> is_partial(Path(".run.0a1b2c3d.partial.json")), is_partial(Path("run.json"))
    (True, False)
    """
    return path.name.startswith(".") and ".partial" in path.name


def refuse_links_out_of(folder: str | os.PathLike) -> None:
    """Raises if anything below a folder leads out of it, or is neither a file nor a folder.

    Whoever made the folder could otherwise have us write anywhere.
    """
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue  # another process is at work here
            if stat.S_ISLNK(mode):
                end = os.path.realpath(path)
                if os.path.commonpath([root, end]) != root:
                    raise ValueError(
                        f"{path} is a link out of its folder, to {end}: nothing is written through "
                        "such links. Remove it, or put what it leads to in its place."
                    )
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise ValueError(f"{path} is neither a file nor a folder: remove it.")


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DamagedFileError: it holds something else; `remedy` says what to do then.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(path, error, remedy) from error
    if not isinstance(content, dict):
        raise DamagedFileError(path, f"{type(content).__name__} instead of an object", remedy)
    return content


def read_json_lines(path: Path, remedy: str) -> list[dict[str, Any]]:
    """The objects in a file that has one per line.

    Raises:
        DamagedFileError: it holds something else; `remedy` says what to do then.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(path, error, remedy) from error
    if not all(isinstance(row, dict) for row in rows):
        raise DamagedFileError(path, "a line that is no object", remedy)
    return rows


def read_arrays(path: Path, remedy: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz as `np.savez` writes it, by name, read-only.

    Unlike `np.load` it builds numbers and nothing else, and allocates nothing that the file does
    not hold: the size in an array's header is compared with the bytes that follow it.

    Raises:
        DamagedFileError: it is damaged, compressed, or holds something else than numbers;
            `remedy` says what to do then.
    """
    try:
        content = path.read_bytes()
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > len(content):
                raise ValueError("its parts are larger than the file: it is compressed")
            return {
                member.filename.removesuffix(".npy"): _array(archive.read(member))
                for member in members
            }
    except Exception as error:  # zip, deflate and numpy each have their own
        raise DamagedFileError(path, error, remedy) from error


def remove_partials(folder: Path) -> None:
    """Removes what a killed process was writing; for the one process that writes there."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for left in filter(is_partial, folder.iterdir()):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _array(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"an array of version {version}")
    shape, by_column, dtype = readers[version](file)
    if dtype.kind not in "biuf":
        raise ValueError(f"an array of {dtype}")
    count, start = math.prod(shape), file.tell()
    if min(shape, default=0) < 0 or start + count * dtype.itemsize > len(content):
        raise ValueError(f"an array of shape {shape} in {len(content)} bytes")
    flat = np.frombuffer(content, dtype, count, start)
    return flat.reshape(shape, order="F" if by_column else "C")
