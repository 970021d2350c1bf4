"""Pickled data sets, read without running what a pickle may ask for."""

import os
import pickle
from typing import Any, Literal

import numpy as np

from udc_tf.models.data.data_errors import DataError


def read_pickle(path: str | os.PathLike) -> Any:
    """Numbers, bytes, strings, lists, dictionaries and numpy arrays of a pickle; text as bytes.

    Numpy's own functions are not called either: what a pickle hands them could be forged. Stand-ins
    take the same arguments and keep the numbers.

    Raises:
        DataError: it asks for anything else, or is damaged.
    """
    try:
        with open(path, "rb") as file:
            return _plain(_DataUnpickler(file, encoding="bytes").load())
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path} cannot be read as pickled arrays: {error}") from error


class _DType:
    """What a pickle says of a `numpy.dtype`: a code such as "u1", and a byte order."""

    def __init__(self, code: str | bytes, *_: Any):
        self._code = code.decode("ascii") if isinstance(code, bytes) else str(code)
        self._order: Any = "="

    def __setstate__(self, state: tuple) -> None:
        order = state[1]
        self._order = order.decode("ascii") if isinstance(order, bytes) else str(order)

    def numpy(self) -> np.dtype:
        if self._code[:1] not in "biuf" or not self._code[1:].isdigit():
            raise pickle.UnpicklingError(f"an array of {self._code!r} instead of numbers")
        return np.dtype(self._code).newbyteorder(self._order)


class _Array:
    """What a pickle says of a `numpy.ndarray`."""

    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.value = _array(raw, dtype, shape, "F" if is_fortran else "C")


def _array(
    raw: bytes, dtype: _DType, shape: tuple[int, ...], order: Literal["C", "F"]
) -> np.ndarray:
    return np.frombuffer(raw, dtype.numpy()).reshape(shape, order=order)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(
    raw: bytes, dtype: _DType, shape: tuple[int, ...], order: Literal["C", "F"], *_: Any
) -> _Array:
    array = _Array()
    array.value = _array(raw, dtype, shape, order)
    return array


def _encode(text: str, *_: Any) -> bytes:
    return text.encode("latin1")  # how old protocols write bytes


_STAND_INS = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no data")
        return _STAND_INS[module, name]


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
