"""Memory as the NPU sees it: numbered regions over a few byte stores, read and written in shapes.

A `FeatureMap` says how a tensor lies in a region: strides, up to four tiles, plain (NHWC) or in
bricks of 16 channels (NHCWB16). `pieces` breaks it into strided boxes; every access, every check
and every mask of bytes goes through these boxes, so that they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from udc_tf.export.npu.faults import MemoryAccessError

BRICK = 16


@dataclasses.dataclass(frozen=True)
class Region:
    """A region number's place: `size` bytes at `offset` of byte store `store`."""

    name: str
    store: str
    offset: int
    size: int
    writable: bool


@dataclasses.dataclass(frozen=True)
class Piece:
    """A strided box of a feature map: [y, x, channel block, channel] at a store's `address`."""

    rows: slice
    columns: slice
    channels: slice
    address: int
    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]

    def span(self, itemsize: int) -> tuple[int, int]:
        """First byte touched and the one after the last."""
        reach = [(n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)]
        low = self.address + sum(r for r in reach if r < 0)
        return low, self.address + sum(r for r in reach if r > 0) + itemsize


@dataclasses.dataclass(frozen=True)
class FeatureMap:
    """A tensor in memory: IFM, IFM2 or OFM of one operation.

    Attributes:
        shape: height, width, depth.
        bases: addresses of the tiles: top left, top right, bottom left, bottom right.
        tile: HEIGHT0, HEIGHT1 and WIDTH0, where the tiles meet.
        strides: bytes from row to row, column to column, and channel block to channel block.
    """

    name: str
    region: Region
    shape: tuple[int, int, int]
    dtype: np.dtype
    brick: bool
    bases: tuple[int, int, int, int]
    tile: tuple[int, int, int]
    strides: tuple[int, int, int]
    zero_point: int

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements."""
        return self.elements * self.dtype.itemsize

    def pieces(self) -> Iterator[Piece]:
        """The strided boxes that make up the tensor, with addresses relative to the store."""
        height, width, _ = self.shape
        height0, height1, width0 = self.tile
        for base, (y0, y1), (x0, x1) in (
            (self.bases[0], (0, min(height0, height)), (0, min(width0, width))),
            (self.bases[1], (0, min(height1, height)), (width0, width)),
            (self.bases[2], (height0, height), (0, min(width0, width))),
            (self.bases[3], (height1, height), (width0, width)),
        ):
            if y0 < y1 and x0 < x1:
                yield from self._tile_pieces(base + self.region.offset, (y0, y1), (x0, x1))

    def _tile_pieces(
        self, address: int, rows: tuple[int, int], columns: tuple[int, int]
    ) -> Iterator[Piece]:
        depth = self.shape[2]
        size = self.dtype.itemsize
        stride_y, stride_x, stride_c = self.strides
        y, x = slice(*rows), slice(*columns)
        extent = (rows[1] - rows[0], columns[1] - columns[0])
        if not self.brick:
            strides = (stride_y, stride_x, 0, size)
            yield Piece(y, x, slice(0, depth), address, (*extent, 1, depth), strides)
            return
        strides = (stride_y, BRICK * size, stride_c, size)
        blocks, rest = divmod(depth, BRICK)
        if blocks:
            channels = slice(0, blocks * BRICK)
            yield Piece(y, x, channels, address, (*extent, blocks, BRICK), strides)
        if rest:
            channels = slice(blocks * BRICK, depth)
            last = address + blocks * stride_c
            yield Piece(y, x, channels, last, (*extent, 1, rest), strides)

    def check_inside(self) -> None:
        """Raises if any element lies outside the region."""
        low, high = self.region.offset, self.region.offset + self.region.size
        for piece in self.pieces():
            first, end = piece.span(self.dtype.itemsize)
            if first < low or end > high:
                raise MemoryAccessError(
                    f"{self.name} of shape {self.shape} takes bytes {first - low} to {end - low} "
                    f"of {self.region.name}, which has {self.region.size}"
                )

    def span(self) -> tuple[int, int]:
        """First byte of the store touched, and the one after the last."""
        spans = [piece.span(self.dtype.itemsize) for piece in self.pieces()]
        return min(low for low, _ in spans), max(high for _, high in spans)

    def same_place(self, other: FeatureMap) -> bool:
        """True if both lie in the same bytes element by element."""
        return (
            self.region.store == other.region.store
            and self.shape == other.shape
            and self.dtype.itemsize == other.dtype.itemsize
            and list(self.pieces()) == list(other.pieces())
        )


def view(store: np.ndarray, piece: Piece, dtype: np.dtype) -> np.ndarray:
    """The piece as an array [batch, y, x, channel block, channel] over `store` [batch, bytes]."""
    return np.ndarray(
        (store.shape[0], *piece.shape),
        dtype,
        store,
        piece.address,
        (store.strides[0], *piece.strides),
    )


def read(store: np.ndarray, feature_map: FeatureMap) -> np.ndarray:
    """Copies a feature map out of `store` [batch, bytes] as [batch, y, x, channel]."""
    batch = store.shape[0]
    pieces = list(feature_map.pieces())
    if len(pieces) == 1:
        box = view(store, pieces[0], feature_map.dtype)
        return np.reshape(box, (batch, *feature_map.shape), copy=True)
    out = np.empty((batch, *feature_map.shape), feature_map.dtype)
    for piece in pieces:
        target = out[:, piece.rows, piece.columns, piece.channels]
        target[...] = view(store, piece, feature_map.dtype).reshape(target.shape)
    return out


def write(store: np.ndarray, feature_map: FeatureMap, values: np.ndarray) -> None:
    """Puts [batch, y, x, channel] `values` into `store` [batch, bytes]."""
    for piece in feature_map.pieces():
        box = view(store, piece, feature_map.dtype)
        part = values[:, piece.rows, piece.columns, piece.channels]
        box[...] = part.reshape((values.shape[0], *piece.shape))


def mark(mask: np.ndarray, feature_map: FeatureMap) -> None:
    """Sets the bytes of a feature map in `mask`, a boolean array over the store."""
    for box in _byte_boxes(mask, feature_map):
        box[...] = True


def all_marked(mask: np.ndarray, feature_map: FeatureMap) -> bool:
    """True if every byte of a feature map is set in `mask`."""
    return all(bool(box.all()) for box in _byte_boxes(mask, feature_map))


def any_marked(mask: np.ndarray, feature_map: FeatureMap) -> bool:
    """True if some byte of a feature map is set in `mask`."""
    return any(bool(box.any()) for box in _byte_boxes(mask, feature_map))


def overlaps_itself(feature_map: FeatureMap, store_size: int) -> bool:
    """True if two elements share a byte."""
    pieces = list(feature_map.pieces())
    if len(pieces) == 1 and _is_nested(pieces[0], feature_map.dtype.itemsize):
        return False
    if feature_map.nbytes > store_size:
        return True
    mask = np.zeros(store_size, bool)
    mark(mask, feature_map)
    return int(mask.sum()) != feature_map.nbytes


def _is_nested(piece: Piece, itemsize: int) -> bool:
    """True if each stride steps over all the smaller ones: a plain layout, surely disjoint."""
    reach = itemsize
    pairs = zip(piece.strides, piece.shape, strict=True)
    for stride, count in sorted((abs(s), n) for s, n in pairs if n > 1):
        if stride < reach:
            return False
        reach = stride * (count - 1) + reach
    return True


def _byte_boxes(mask: np.ndarray, feature_map: FeatureMap) -> Iterator[np.ndarray]:
    size = feature_map.dtype.itemsize
    for piece in feature_map.pieces():
        yield np.ndarray((*piece.shape, size), bool, mask, piece.address, (*piece.strides, 1))
