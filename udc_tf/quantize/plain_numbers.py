"""Numbers as users give them: Python's own and NumPy's alike, never truth values."""

import math
import numbers
from typing import Any

import numpy as np


def is_number(value: Any) -> bool:
    """Whether `value` is a finite real number.

    >>> is_number(np.float32(0.5)), is_number(float("inf")), is_number(True), is_number("1")
    (True, False, False, False)
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    return real and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether `value` is an integer.

    >>> is_whole(np.int64(4)), is_whole(4.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.bool_))


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's, inside tuples and lists too: JSON knows no others.

    >>> plain((np.int64(3), 0.5)), plain("text")
    ((3, 0.5), 'text')
    """
    if isinstance(value, (tuple, list)):
        return tuple(plain(v) for v in value)
    return value.item() if isinstance(value, np.generic) else value
