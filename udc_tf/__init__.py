"""Unified differentiable search for compressible networks on Arm Ethos-U.

    search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("32KiB"))
    search.compile(loss=..., metrics=[...])
    search.fit(train, validation_data=val, epochs=30)
    tiny = search.architecture().build()
    udc_tf.finetune(tiny, train, validation_data=val)
    result = udc_tf.export.export(tiny, "out/", target=udc_tf.Flash("32KiB"), calibration=train)
"""

import importlib

# Name -> the module that has it. Imported on first use: running a compiled network
# (`udc_tf.export.npu`) needs numpy alone, and TensorFlow takes seconds.
_PUBLIC = {
    "Architecture": "architecture",
    "Augmentation": "augment",
    "Choice": "layers.choice",
    "Cosine": "stages",
    "CosineOverRun": "schedules",
    "Flash": "cost",
    "Macs": "cost",
    "PaperSize": "cost",
    "SearchModel": "search",
    "SearchSettings": "settings",
    "SearchSpace": "space",
    "SizeModel": "cost",
    "Stages": "stages",
    "UDCConv2D": "layers.searchable",
    "UDCConv2DTranspose": "layers.searchable",
    "UDCDense": "layers.searchable",
    "UDCDepthwiseConv2D": "layers.searchable",
    "finetune": "finetuning",
    "make_searchable": "searchable",
    "summary_bits": "weight_summary",
}
_PACKAGES = ("export", "models")

__all__ = sorted(_PUBLIC)


def __getattr__(name: str):
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
        globals()[name] = value
        return value
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_PACKAGES})
