"""A read-only flatbuffer walker that treats every offset as hostile.

The generated TFLite reader trusts its input and needs TensorFlow; this one needs the struct
module, checks each offset against the buffer, and never follows more than it was asked to. A few
bytes can be named a million times over, by vectors of offsets that all lead to one place; so what
is read in all is bounded by the size of the file.
"""

from __future__ import annotations

import struct

import numpy as np

from udc_tf.export.npu.faults import ContainerError

_TEXT_LIMIT = 4096  # bytes of a name that are kept
_TABLES_LIMIT = 1 << 16  # of one vector: tensors or operators of a graph
_TABLE_BYTES = 8  # no table takes less, with the offset that leads to it
_READS = 4  # times a sound file may be read over: writers share few things, empty names above all
_SLACK = 4096  # bytes: in a tiny file sharing counts for more


class _Source:
    """The bytes of a file, and how many more of them may be read."""

    def __init__(self, data: bytes):
        self.data = data
        self._left = _READS * len(data) + _SLACK

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ContainerError(
                "the TFLite file is damaged: its tables lead to the same bytes over and over, "
                f"more than {_READS} times the file's {len(self.data)} bytes"
            )


class Table:
    """One flatbuffer table: fields are numbered as in the schema, absent ones give the default.

    Example:
        >>> import struct
        >>> # root offset 12; vtable at 4 (8 bytes, table of 8, field 0 at 4); table at 12.
        >>> data = struct.pack("<IHHHxx", 12, 6, 8, 4) + struct.pack("<iI", 8, 7)
        >>> Table.root(data).scalar(0, "<I", 0)
        7
    """

    def __init__(self, source: _Source, position: int, what: str):
        source.spend(_TABLE_BYTES)
        self._source = source
        self._data = data = source.data
        self._position = position
        self._what = what
        self._vtable = position - self._unpack("<i", position)
        self._vtable_size = self._unpack("<H", self._vtable)
        if self._vtable_size < 4 or self._vtable + self._vtable_size > len(data):
            raise self._damaged(
                f"a vtable of {self._vtable_size} bytes at {self._vtable}, " + self._outside
            )

    @classmethod
    def root(cls, data: bytes, what: str = "model") -> Table:
        """The root table of `data`."""
        if len(data) < 8:
            raise ContainerError(f"a TFLite file has at least 8 bytes. Received: {len(data)} bytes")
        return cls(_Source(data), struct.unpack_from("<I", data, 0)[0], what)

    def scalar(self, field: int, code: str, default: int | float) -> int | float:
        """The number in `field`, read with struct code `code`."""
        where = self._field(field)
        return default if where is None else self._unpack(code, where)

    def table(self, field: int, what: str) -> Table | None:
        """The sub-table in `field`, or None."""
        where = self._field(field)
        return None if where is None else Table(self._source, self._follow(where), what)

    def tables(self, field: int, what: str) -> list[Table]:
        """The vector of tables in `field`; empty if absent."""
        start, count = self._vector(field, 4)
        if count > _TABLES_LIMIT:
            raise self._damaged(f"{count} times a {what}; at most {_TABLES_LIMIT}")
        return [
            Table(self._source, self._follow(start + 4 * i), f"{what} {i}") for i in range(count)
        ]

    def array(self, field: int, dtype: str) -> np.ndarray:
        """The vector of numbers in `field` as a read-only array; empty if absent."""
        kind = np.dtype(dtype)
        start, count = self._vector(field, kind.itemsize)
        return np.frombuffer(self._data, kind, count, start)

    def string(self, field: int) -> str:
        """The text in `field`; empty if absent."""
        return self.array(field, "u1")[:_TEXT_LIMIT].tobytes().decode("utf-8", "replace")

    def _field(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._vtable_size:
            return None
        offset = self._unpack("<H", self._vtable + slot)
        return self._position + offset if offset else None

    def _vector(self, field: int, item_size: int) -> tuple[int, int]:
        where = self._field(field)
        if where is None:
            return 0, 0
        start = self._follow(where)
        count = self._unpack("<I", start)
        if start + 4 + count * item_size > len(self._data):
            raise self._damaged(f"a vector of {count} items at byte {start}, {self._outside}")
        self._source.spend(count * item_size)
        return start + 4, count

    def _follow(self, where: int) -> int:
        return where + self._unpack("<I", where)

    def _unpack(self, code: str, where: int) -> int:
        if where < 0 or where + struct.calcsize(code) > len(self._data):
            raise self._damaged(f"an offset to byte {where}, {self._outside}")
        return struct.unpack_from(code, self._data, where)[0]

    @property
    def _outside(self) -> str:
        return f"outside the file's {len(self._data)} bytes"

    def _damaged(self, found: str) -> ContainerError:
        return ContainerError(f"the TFLite file is damaged: its {self._what} has {found}")
