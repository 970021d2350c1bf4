"""From a trained network to the bytes in flash, and to running them before a board exists."""

import importlib

# Name -> the module that has it: imported on first use, since some bring all of TensorFlow.
_LAZY = {
    "calibrate": "udc_tf.export.size_fit",  # deprecated name of `fit_size_model`
    "compile_with_vela": "udc_tf.export.vela",
    "export": "udc_tf.export.pipeline",
    "fit_size_model": "udc_tf.export.size_fit",
    "run": "udc_tf.export.runners",
}


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *_LAZY})
