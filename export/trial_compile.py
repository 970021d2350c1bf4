"""What a network's compiled file takes, without writing anything but to a temporary folder."""

import pathlib
import tempfile
from collections.abc import Sequence

import keras
import numpy as np

from udc_tf.export import size_truth, vela
from udc_tf.export.int8 import to_int8


def compiled_sizes(
    network: keras.Model,
    samples: Sequence[np.ndarray],
    accelerator: str,
    allow_cpu: bool = False,
) -> tuple[int, dict[str, int]]:
    """Bytes of the file, and of each layer's encoded weights, by the name of the layer."""
    exact = to_int8(network, list(samples))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        path.write_bytes(exact.content)
        compiled = vela.compile_with_vela(path, folder, accelerator, allow_cpu_operators=allow_cpu)
    stored: dict[str, int] = {}
    for size in size_truth.layer_sizes(exact.network, compiled):
        stored[size.layer] = stored.get(size.layer, 0) + (size.vela_bytes or 0)
    return compiled.flash_bytes, stored
