"""Unified differentiable search for compressible networks on Arm Ethos-U.

search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("32KiB"))
search.compile(loss=..., metrics=[...])
search.fit(train, validation_data=val, epochs=30)
tiny = search.architecture().build()
"""

from udc_tf.architecture import Architecture
from udc_tf.cost import Flash, Macs, PaperSize, SizeModel
from udc_tf.layers.choice import Choice
from udc_tf.layers.searchable import (
    UDCConv2D,
    UDCConv2DTranspose,
    UDCDense,
    UDCDepthwiseConv2D,
)
from udc_tf.schedules import CosineOverRun
from udc_tf.search import SearchModel
from udc_tf.searchable import make_searchable
from udc_tf.settings import SearchSettings
from udc_tf.space import SearchSpace

__all__ = [
    "Architecture",
    "Choice",
    "CosineOverRun",
    "Flash",
    "Macs",
    "PaperSize",
    "SearchModel",
    "SearchSettings",
    "SearchSpace",
    "SizeModel",
    "UDCConv2D",
    "UDCConv2DTranspose",
    "UDCDense",
    "UDCDepthwiseConv2D",
    "make_searchable",
]
