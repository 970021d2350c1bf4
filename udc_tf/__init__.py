"""Unified differentiable search for compressible networks on Arm Ethos-U.

search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("32KiB"))
search.compile(loss=..., metrics=[...])
search.fit(train, validation_data=val, epochs=30)
tiny = search.architecture().build()
udc_tf.finetune(tiny, train, validation_data=val)
result = udc_tf.export.export(tiny, "out/", target=udc_tf.Flash("32KiB"), calibration=train)
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

# All of it now, not on first use: `keras.saving.load_model` finds only layers that are imported.
from udc_tf.compact.architecture import Architecture
from udc_tf.compact.summary import summary_bits
from udc_tf.compact.uniform import compact  # the call, not the room that has it
from udc_tf.compress.compress_settings import CompressSettings
from udc_tf.compress.compression import compress, compress_front  # the call, not its room
from udc_tf.cost.boards import Board
from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.device_targets import Cycles, Latency, Sram
from udc_tf.cost.flash import SizeModel
from udc_tf.cost.targets import Flash, Macs, PaperSize, register_target
from udc_tf.finetune.run import finetune
from udc_tf.finetune.stages import Cosine, Stages
from udc_tf.layers.choice import Choice
from udc_tf.layers.searchable_kernels import (
    UDCConv1D,
    UDCConv1DTranspose,
    UDCConv2D,
    UDCConv2DTranspose,
    UDCDense,
    UDCDepthwiseConv1D,
    UDCDepthwiseConv2D,
)
from udc_tf.network_check import check
from udc_tf.search.front import search_front
from udc_tf.search.make import make_searchable
from udc_tf.search.model import SearchModel
from udc_tf.search.settings import SearchSettings
from udc_tf.search.space import SearchSpace
from udc_tf.training.image_augmentation import Augmentation
from udc_tf.training.schedules import CosineOverRun
from udc_tf.version import __version__

if TYPE_CHECKING:  # what type checkers see in place of `__getattr__`
    from udc_tf import export as export
    from udc_tf import models as models

__all__ = [
    "Architecture",
    "Augmentation",
    "Board",
    "Choice",
    "CompressSettings",
    "Cosine",
    "CosineOverRun",
    "Cycles",
    "DeviceModel",
    "Flash",
    "Latency",
    "Macs",
    "PaperSize",
    "SearchModel",
    "SearchSettings",
    "SearchSpace",
    "SizeModel",
    "Sram",
    "Stages",
    "UDCConv1D",
    "UDCConv1DTranspose",
    "UDCConv2D",
    "UDCConv2DTranspose",
    "UDCDense",
    "UDCDepthwiseConv1D",
    "UDCDepthwiseConv2D",
    "__version__",
    "check",
    "compact",
    "compress",
    "compress_front",
    "finetune",
    "make_searchable",
    "register_target",
    "search_front",
    "summary_bits",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """`udc_tf.models` and `udc_tf.export` on first use: the core needs neither."""
        if name in ("models", "export"):
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
