"""The documented name of `udc_tf.search.start`."""

from udc_tf.search.start import (
    first_guess,
    harm,
    harms_of,
)

__all__ = [
    "first_guess",
    "harm",
    "harms_of",
]
