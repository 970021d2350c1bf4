"""Pairs of small and large images for super resolution, and the field's way to measure it."""

import os
import pathlib
from collections.abc import Callable, Iterable

import numpy as np

from udc_tf.models.data.data_errors import DataError
from udc_tf.models.data.dataset import Dataset, Scaling, Split, split_off

SCALE = 4
_ENDINGS = (".png", ".bmp", ".jpg", ".jpeg", ".tif")


def super_resolution(
    data_dir: str | os.PathLike | None = None,
    patch: int = 64,
    patches_an_image: int = 8,
    seed: int = 0,
) -> Dataset:
    """Patches of the brightness of photographs: `patch` pixels per side, and four times as many.

    Args:
        data_dir: with the training images below `train`, or DIV2K's `DIV2K_train_HR`. A tenth of
            the images validates; those below `set5`, if it is there, test.
        patch: side of the small image.
        patches_an_image: cut from each image, at places that depend on the seed.
        seed: of split and places.
    """
    if data_dir is None:
        raise DataError(
            "Super resolution needs --data_dir=FOLDER with images below FOLDER/train (or "
            "FOLDER/DIV2K_train_HR from data.vision.ee.ethz.ch/cvl/DIV2K) and FOLDER/set5."
        )
    folder = pathlib.Path(data_dir)
    found = next((folder / n for n in ("train", "DIV2K_train_HR") if (folder / n).is_dir()), None)
    if found is None:
        raise DataError(f"There is neither {folder / 'train'} nor {folder / 'DIV2K_train_HR'}.")
    files = np.asarray(image_files(found))
    train, validation = split_off(Split(files, files), 0.1, seed)
    rng = np.random.default_rng(seed)
    tested = image_files(folder / "set5") if (folder / "set5").is_dir() else validation.x
    first, second, third = (
        _patches(part, patch, patches_an_image, rng) for part in (train.x, validation.x, tested)
    )
    return Dataset("super_resolution", first, second, third, target_scaling=Scaling())


def image_files(folder: pathlib.Path) -> list[str]:
    """All images at any depth below `folder`, sorted."""
    found = sorted(str(f) for f in folder.rglob("*") if f.suffix.lower() in _ENDINGS)
    if not found:
        raise DataError(f"There are no images ({', '.join(_ENDINGS)}) below {folder}.")
    return found


def read_pair(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Brightness of the image made four times smaller, and of the image, as bytes."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("Reading images needs Pillow: pip install pillow.") from error
    with Image.open(path) as file:
        image = file.convert("RGB")
    width, height = (side // SCALE * SCALE for side in image.size)
    image = image.crop((0, 0, width, height))
    small = image.resize((width // SCALE, height // SCALE), Image.Resampling.BICUBIC)
    return brightness(np.asarray(small)), brightness(np.asarray(image))


def bicubic(small: np.ndarray) -> np.ndarray:
    """A small brightness image enlarged as everyone's baseline does, as bytes."""
    from PIL import Image

    height, width = small.shape
    enlarged = Image.fromarray(small).resize(
        (width * SCALE, height * SCALE), Image.Resampling.BICUBIC
    )
    return np.asarray(enlarged)


def brightness(rgb: np.ndarray) -> np.ndarray:
    """Y of BT.601 in studio swing, 16 to 235, which PSNR is measured on in this field.

    >>> brightness(np.array([[[0, 0, 0], [255, 255, 255]]], np.uint8)).tolist()
    [[16, 235]]
    """
    y = 16 + rgb.astype(np.float64) @ np.array([65.481, 128.553, 24.966]) / 255
    return np.clip(np.rint(y), 0, 255).astype(np.uint8)


def psnr(actual: np.ndarray, expected: np.ndarray, border: int = SCALE) -> float:
    """Peak signal-to-noise ratio in dB of 8-bit images, without `border` pixels on each side.

    >>> flat = np.zeros((16, 16), np.uint8)
    >>> round(psnr(flat, flat + 1), 2)
    48.13
    """
    if actual.shape != expected.shape:
        raise DataError(f"Images must be of one size. Received: {actual.shape}, {expected.shape}")
    inside = np.s_[border:-border, border:-border] if border else np.s_[:, :]
    difference = actual[inside].astype(np.float64) - expected[inside].astype(np.float64)
    error = float(np.mean(difference**2))
    return float("inf") if error == 0 else float(10 * np.log10(255.0**2 / error))


def enlarge_by_tiles(
    run: Callable[[np.ndarray], np.ndarray], small: np.ndarray, tile: int = 64, margin: int = 12
) -> np.ndarray:
    """Enlarges an image of any size with a network of fixed size, tile by tile.

    Tiles overlap by `margin` on each side, more than the network looks around a pixel, so that
    the seams do not show; this is also how a device would do it.

    Args:
        run: from brightness, [n, tile, tile, 1] of bytes, to the enlarged images as bytes.
        small: [height, width] of bytes.
        tile: side of what `run` takes.
        margin: at most a quarter of a tile.
    """
    margin = min(margin, tile // 4)
    height, width = small.shape
    around = [(0, max(0, tile - side)) for side in (height, width)]
    padded = np.pad(small, around, mode="reflect" if min(small.shape) > tile // 2 else "edge")
    places = [
        (row, column)
        for row in _begins(padded.shape[0], tile, margin)
        for column in _begins(padded.shape[1], tile, margin)
    ]
    tiles = np.stack([padded[r : r + tile, c : c + tile] for r, c in places])[..., None]
    enlarged = np.asarray(run(tiles))
    result = np.zeros([side * SCALE for side in padded.shape], np.uint8)
    for (row, column), image in zip(places, enlarged, strict=True):
        # A tile's margin is not written, except where the image ends.
        top, left = (margin if begin else 0 for begin in (row, column))
        rows = slice((row + top) * SCALE, (row + tile) * SCALE)
        columns = slice((column + left) * SCALE, (column + tile) * SCALE)
        result[rows, columns] = image[top * SCALE :, left * SCALE :, 0]
    return result[: height * SCALE, : width * SCALE]


def _begins(extent: int, tile: int, margin: int) -> list[int]:
    """Where tiles begin, so that each pixel is well inside one of them.

    >>> _begins(128, 64, 12)
    [0, 40, 64]
    """
    step = tile - 2 * margin
    return sorted({*range(0, extent - tile, step), extent - tile})


def _patches(files: Iterable[str], patch: int, count: int, rng: np.random.Generator) -> Split:
    small, large = [], []
    for path in files:
        x, y = read_pair(path)
        if min(x.shape) < patch:
            continue
        for _ in range(count):
            r, c = (rng.integers(0, side - patch + 1) for side in x.shape)
            small.append(x[r : r + patch, c : c + patch])
            r, c, side = r * SCALE, c * SCALE, patch * SCALE
            large.append(y[r : r + side, c : c + side])
    if not small:
        raise DataError(f"No image is large enough for patches of {patch * SCALE} pixels.")
    return Split(np.stack(small)[..., None], np.stack(large)[..., None])
