"""The examples in the docstrings run."""

import doctest
import importlib
import pathlib
import pkgutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf

_NAMES = {"keras": keras, "np": np, "tf": tf, "udc_tf": udc_tf}
_MODULES = sorted(m.name for m in pkgutil.walk_packages(udc_tf.__path__, "udc_tf."))


class TestDocstrings:
    @pytest.mark.parametrize("name", _MODULES)
    def test_examples(self, name):
        module = importlib.import_module(name)
        path = pathlib.Path(module.__file__)
        if ">>>" not in path.read_text():
            return
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        names = {**_NAMES, **vars(module)}
        assert doctest.testmod(module, globs=names, optionflags=flags).failed == 0
