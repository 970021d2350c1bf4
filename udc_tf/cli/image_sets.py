"""PSNR of super resolution on whole images, beside bicubic enlargement."""

import pathlib
from typing import Any

import keras
import numpy as np

from udc_tf.models.data import Scaling
from udc_tf.models.data.super_resolution import (
    bicubic,
    enlarge_by_tiles,
    image_files,
    psnr,
    read_pair,
)

SETS = ("set5", "set14")


def score_sets(network: keras.Model, data_dir: str | None) -> dict[str, dict[str, Any]]:
    """Mean PSNR on Y, 4 pixels of border cropped, of each set that is there.

    Example:

    ```python
    score_sets(tiny, "data/super_resolution")["set5"]["psnr"]
    ```
    """
    if data_dir is None:
        return {}
    found = {}
    for name in SETS:
        folder = pathlib.Path(data_dir) / name
        if folder.is_dir():
            found[name] = _score(network, folder)
    return found


def _score(network: keras.Model, folder: pathlib.Path) -> dict[str, Any]:
    tile = int(network.input_shape[1])
    ours, theirs = [], []
    for path in image_files(folder):
        small, large = read_pair(path)
        enlarged = enlarge_by_tiles(lambda tiles: run_on_bytes(network, tiles), small, tile)
        ours.append(psnr(enlarged, large))
        theirs.append(psnr(bicubic(small), large))
    return {
        "images": len(ours),
        "psnr": round(float(np.mean(ours)), 3),
        "bicubic": round(float(np.mean(theirs)), 3),
    }


def run_on_bytes(network: keras.Model, tiles: np.ndarray, batch: int = 8) -> np.ndarray:
    """Enlarged brightness of tiles, bytes to bytes."""
    scaling = Scaling()
    parts = [
        np.asarray(network(scaling(tiles[i : i + batch]), training=False))
        for i in range(0, len(tiles), batch)
    ]
    pixels = np.concatenate(parts) * scaling.scale + scaling.offset
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
