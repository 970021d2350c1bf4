"""TensorFlow without tracing."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def run_eagerly() -> Iterator[None]:
    """For runs of few steps, which take less time than tracing them."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)
