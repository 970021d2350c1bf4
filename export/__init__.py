"""From a trained network to the bytes in flash, and to running them before a board exists."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers see in place of `__getattr__`
    from udc_tf.export.pipeline import export as export
    from udc_tf.export.runners import run as run
    from udc_tf.export.size_fit import calibrate as calibrate
    from udc_tf.export.size_fit import fit_size_model as fit_size_model
    from udc_tf.export.vela import compile_with_vela as compile_with_vela

# Name -> the module that has it: imported on first use, since some bring all of TensorFlow.
_LAZY = {
    "calibrate": "udc_tf.export.size_fit",  # deprecated name of `fit_size_model`
    "compile_with_vela": "udc_tf.export.vela",
    "export": "udc_tf.export.pipeline",
    "fit_size_model": "udc_tf.export.size_fit",
    "run": "udc_tf.export.runners",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(importlib.import_module(_LAZY[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
