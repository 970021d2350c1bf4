"""A read-only flatbuffer walker that treats every offset as hostile.

The generated TFLite reader trusts its input and needs TensorFlow; this one needs the struct
module, checks each offset against the buffer, and never follows more than it was asked to.
"""

from __future__ import annotations

import struct

import numpy as np

from udc_tf.export.npu.faults import ContainerError

_TEXT_LIMIT = 4096  # bytes of a name that are kept


class Table:
    """One flatbuffer table: fields are numbered as in the schema, absent ones give the default.

    Example:
        >>> import struct
        >>> # root offset 12; vtable at 4 (8 bytes, table of 8, field 0 at 4); table at 12.
        >>> data = struct.pack("<IHHHxx", 12, 6, 8, 4) + struct.pack("<iI", 8, 7)
        >>> Table.root(data).scalar(0, "<I", 0)
        7
    """

    def __init__(self, data: bytes, position: int, what: str):
        self._data = data
        self._position = position
        self._what = what
        self._vtable = position - self._unpack("<i", position)
        self._vtable_size = self._unpack("<H", self._vtable)
        if self._vtable_size < 4 or self._vtable + self._vtable_size > len(data):
            raise self._damaged(f"a vtable of {self._vtable_size} bytes at {self._vtable}")

    @classmethod
    def root(cls, data: bytes, what: str = "model") -> Table:
        """The root table of `data`."""
        if len(data) < 8:
            raise ContainerError(f"a TFLite file has at least 8 bytes. Received: {len(data)} bytes")
        return cls(data, struct.unpack_from("<I", data, 0)[0], what)

    def scalar(self, field: int, code: str, default: int | float) -> int | float:
        """The number in `field`, read with struct code `code`."""
        where = self._field(field)
        return default if where is None else self._unpack(code, where)

    def table(self, field: int, what: str) -> Table | None:
        """The sub-table in `field`, or None."""
        where = self._field(field)
        return None if where is None else Table(self._data, self._follow(where), what)

    def tables(self, field: int, what: str) -> list[Table]:
        """The vector of tables in `field`; empty if absent."""
        start, count = self._vector(field, 4)
        return [Table(self._data, self._follow(start + 4 * i), f"{what} {i}") for i in range(count)]

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
            raise self._damaged(f"a vector of {count} items at byte {start}")
        return start + 4, count

    def _follow(self, where: int) -> int:
        return where + self._unpack("<I", where)

    def _unpack(self, code: str, where: int) -> int:
        if where < 0 or where + struct.calcsize(code) > len(self._data):
            raise self._damaged(f"an offset to byte {where}")
        return struct.unpack_from(code, self._data, where)[0]

    def _damaged(self, found: str) -> ContainerError:
        return ContainerError(
            f"the TFLite file is damaged: its {self._what} has {found}, "
            f"outside the file's {len(self._data)} bytes"
        )
