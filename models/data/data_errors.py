"""What goes wrong with data."""

import os
import pathlib


class DataError(ValueError):
    """Data are missing or not as they should be; the message says how to get or mend them."""


def require_download(name: str, files: str) -> None:
    """Raises unless Keras has kept what it downloaded once: `files`, a pattern."""
    home = pathlib.Path(os.environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras")
    if not any((home / "datasets").glob(files)):
        raise DataError(
            f"{name} is not on this machine yet: a run would download it, or takes it from "
            "--data_dir=FOLDER"
        )
