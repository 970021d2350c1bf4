"""Fixtures of many tests."""

import pytest

from tests.support.eager import run_eagerly


@pytest.fixture
def eagerly():
    """For runs of few steps, which take less time than tracing them."""
    with run_eagerly():
        yield
