"""The UDC paper's first figure: compiled size of MobileNetV2 over bits and non-zeros.

    python -m benchmarks.size_mobilenet_v2

MobileNetV2 (1.0, 224, 1000 classes), all layers with the same bits and fraction of non-zeros,
weights bell-shaped as trained ones are (not as the initializer's, which are uniform), compiled for
ethos-u55-128. The int8 original is the same network with plain Keras layers, quantized after
training. A table (.md) and a picture (.png) go beside the rows.
"""

import functools
import itertools
import pathlib
import tempfile
from collections.abc import Mapping

import keras
import numpy as np

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, picture, table, write
from udc_tf import models
from udc_tf.export import vela
from udc_tf.export.int8 import to_int8
from udc_tf.export.lowering import lower
from udc_tf.graph.layer_rules import kernel_kind
from udc_tf.layers.activation_quantizer import ActivationQuantizer

BITS = (1, 2, 4, 8)
NONZEROS = (1.0, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01)
ORIGINAL = "int8 original"
_PAPER = 9.3  # times smaller, at 1 bit and 1%


def compiled_bytes(model: keras.Model, data=None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        path.write_bytes(to_int8(model, data).content)
        return vela.compile_with_vela(path, folder, "ethos-u55-128").flash_bytes


def bell_shaped() -> keras.Model:
    keras.utils.set_random_seed(0)
    model, rng = models.mobilenet_v2(), np.random.default_rng(0)
    for layer in model.layers:
        if kernel_kind(layer) is not None:
            kernel = layer.trainable_weights[0]
            kernel.assign(rng.normal(scale=0.05, size=kernel.shape))
    return model


def original() -> int:
    model = bell_shaped()
    return compiled_bytes(
        model, np.random.default_rng(0).normal(size=(1, *lower(model).input_shapes()[0]))
    )


class Cells:
    """One compact network whose layers are given new bits and masks for each cell."""

    def __init__(self):
        self._model = udc_tf.compact(bell_shaped())
        for layer in self._model.layers:
            if isinstance(layer, ActivationQuantizer) and layer.fixed_range is None:
                layer.set_range(-4.0, 4.0)  # ranges do not matter to the size

    def size(self, bits: int, nonzeros: float) -> int:
        for layer in self._model.layers:
            if hasattr(layer, "integer_kernel"):
                layer.bits, layer.nonzeros = bits, nonzeros
                layer.initialize_range()
                # Pruned layers as finetuning leaves them: no code is spent on the pruned zone.
                layer.refresh_mask(shifted=nonzeros < 1.0)
                layer.fit_range()
        return compiled_bytes(self._model)


def key_of(bits: int, nonzeros: float) -> str:
    return f"{bits} bits, {nonzeros:.0%}"


def report(rows: Mapping[str, Row]) -> str:
    sizes = {key: row["bytes"] for key, row in rows.items()}
    base = sizes[ORIGINAL]
    lines = [
        (bits, *(f"{n:,} ({base / n:.2f}x)" for n in (sizes[key_of(bits, s)] for s in NONZEROS)))
        for bits in BITS
    ]
    size, smallest = min((size, key) for key, size in sizes.items())
    return (
        "# Compiled size of MobileNetV2 (1.0, 224)\n\n"
        "Made by `python -m benchmarks.size_mobilenet_v2`; ethos-u55-128, Vela's own system. "
        "Weights are bell-shaped, not trained. Bytes of the compiled file, and how many times "
        f"smaller than the int8 original ({base:,} bytes).\n\n"
        f"{table(('bits', *(f'{s:.0%} non-zeros' for s in NONZEROS)), lines)}\n"
        f"The smallest, {smallest} non-zeros, is {base / size:.2f} times smaller than the int8 "
        f"original; the paper's figure goes to {_PAPER}x, at 1 bit and 1%.\n"
    )


def draw(rows: Mapping[str, Row], axes: np.ndarray) -> None:
    axis = axes[0, 0]
    for bits in BITS:
        axis.plot(
            [100 * s for s in NONZEROS],
            [rows[key_of(bits, s)]["bytes"] / 1e6 for s in NONZEROS],
            marker="o",
            label=f"{bits} bit" + "s" * (bits > 1),
        )
    axis.axhline(rows[ORIGINAL]["bytes"] / 1e6, color="grey", linestyle="--", label=ORIGINAL)
    axis.set(xscale="log", xlabel="non-zeros, %", ylabel="compiled file, MB")
    axis.set_title("MobileNetV2 (1.0, 224) after Vela, ethos-u55-128")
    axis.set_ylim(bottom=0)
    axis.legend()


def run(rows: Rows) -> str:
    cells = functools.cache(Cells)
    rows.once(ORIGINAL, lambda: {"bytes": original()})
    for bits, nonzeros in itertools.product(BITS, NONZEROS):
        rows.once(
            key_of(bits, nonzeros),
            lambda bits=bits, nonzeros=nonzeros: {"bytes": cells().size(bits, nonzeros)},
        )
    found = rows.read()
    picture(rows.path.with_suffix(".png"), functools.partial(draw, found), height=3.8)
    return write(rows.path.with_suffix(".md"), report(found))


if __name__ == "__main__":
    harness.main(run, "size_mobilenet_v2")
