"""A short compression, where how well it does is not what is tested."""

import dataclasses

import pytest

from udc_tf.compress import compression
from udc_tf.compress.compress_settings import CompressSettings


@dataclasses.dataclass(frozen=True)
class FewSteps(CompressSettings):
    """The settings, with a few steps of gradient descent instead of some hundred."""

    steps: int = 4


def compress_in_few_steps(patch: pytest.MonkeyPatch) -> None:
    """From now on this is what `udc_tf.compress` does where it is given no settings."""
    patch.setattr(compression, "CompressSettings", FewSteps)
