"""What a network's compiled file takes, without writing anything but to a temporary folder."""

import dataclasses
import pathlib
import tempfile
from collections.abc import Mapping, Sequence

import keras
import numpy as np

from udc_tf.export import size_truth, vela
from udc_tf.export.int8 import to_int8


@dataclasses.dataclass(frozen=True)
class CompiledSizes:
    """What Vela says.

    Attributes:
        flash_bytes: of the file.
        sram_bytes: of working memory.
        cycles: of one inference, as estimated.
        stored: each layer's encoded weights, by the name of the layer.
    """

    flash_bytes: int
    sram_bytes: int
    cycles: int
    stored: Mapping[str, int]


def compiled_sizes(
    network: keras.Model,
    samples: Sequence[np.ndarray],
    system: vela.System | str,
    allow_cpu: bool = False,
) -> CompiledSizes:
    """Compiles a network for a system, or for the default one of an accelerator."""
    system = vela.System(system) if isinstance(system, str) else system
    exact = to_int8(network, list(samples))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        path.write_bytes(exact.content)
        settings = dataclasses.asdict(system)
        compiled = vela.compile_with_vela(path, folder, **settings, allow_cpu_operators=allow_cpu)
    stored: dict[str, int] = {}
    for size in size_truth.layer_sizes(exact.network, compiled):
        stored[size.layer] = stored.get(size.layer, 0) + (size.vela_bytes or 0)
    return CompiledSizes(compiled.flash_bytes, compiled.sram_bytes, compiled.cycles, stored)
