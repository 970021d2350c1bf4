"""Which sample of the decisions the layers of a searchable network are to follow right now.

A search step evaluates several samples on one network. The layers find the sample through a
thread-local stack (one thread per replica under `tf.distribute`), so that the network is an
ordinary functional model.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Protocol

import tensorflow as tf


class Sample(Protocol):
    """One configuration, soft or not, of all decisions."""

    def kernel_of(self, layer: Any) -> tf.Tensor:
        """The kernel that `layer` applies under this sample."""

    def weights_of(self, decision: str) -> tf.Tensor:
        """z of the decision, [options]."""


_active = threading.local()


def current_sample() -> Sample | None:
    stack = getattr(_active, "stack", None)
    return stack[-1] if stack else None


@contextlib.contextmanager
def following(sample: Sample) -> Iterator[None]:
    """Layers called inside follow `sample`."""
    stack = _active.__dict__.setdefault("stack", [])
    stack.append(sample)
    try:
        yield
    finally:
        stack.pop()
