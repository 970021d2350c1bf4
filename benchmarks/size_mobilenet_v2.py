"""The UDC paper's first figure: compiled size of MobileNetV2 over bits and non-zeros.

    python benchmarks/size_mobilenet_v2.py

MobileNetV2 (1.0, 224, 1000 classes), all layers with the same bits and fraction of non-zeros,
weights bell-shaped as trained ones are (not as the initializer's, which are uniform), compiled for
ethos-u55-128. The int8 original is the same network with plain Keras layers, quantized after
training. Resumes from size_mobilenet_v2.json; writes a table (.md) and a picture (.png) beside it.
"""

import json
import pathlib
import tempfile

import keras
import numpy as np
from absl import app

from udc_tf import models
from udc_tf.compact.architecture import get_layer_weights
from udc_tf.compact.build import Compactor, Configuration, LayerChoice, carry_weights
from udc_tf.export import vela
from udc_tf.export.int8 import to_int8
from udc_tf.export.lowering import lower
from udc_tf.files import replaced_atomically
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.layer_rules import kernel_kind
from udc_tf.graph.trace import trace
from udc_tf.layers.activation_quantizer import ActivationQuantizer

BITS = (1, 2, 4, 8)
NONZEROS = (1.0, 0.75, 0.5, 0.25, 0.1, 0.05, 0.01)
_HERE = pathlib.Path(__file__)
_PAPER = 9.3


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
        source = bell_shaped()
        graph = trace(source)
        layers = {
            n.name: LayerChoice(8, 1.0) for n in graph.nodes if kernel_kind(n.layer) is not None
        }
        compactor = Compactor(graph, ChannelGroups(graph), Configuration(layers=layers))
        self._model = compactor.build()
        carry_weights(compactor.layers, get_layer_weights(source))
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


def main(_):
    path = _HERE.with_suffix(".json")
    sizes = json.loads(path.read_text()) if path.exists() else {}

    def keep(key, size):
        sizes[key] = size
        print(key, size, flush=True)
        with replaced_atomically(path) as partial:
            partial.write_text(json.dumps(sizes, indent=1) + "\n")

    if "int8 original" not in sizes:
        keep("int8 original", original())
    cells = None
    for bits in BITS:
        for nonzeros in NONZEROS:
            key = f"{bits} bits, {nonzeros:.0%}"
            if key not in sizes:
                cells = cells or Cells()
                keep(key, cells.size(bits, nonzeros))
    write_table(sizes)
    draw(sizes)


def write_table(sizes) -> None:
    base = sizes["int8 original"]
    lines = [
        "# Compiled size of MobileNetV2 (1.0, 224)",
        "",
        "`python benchmarks/size_mobilenet_v2.py`; ethos-u55-128, Vela's own system. Weights are",
        "bell-shaped, not trained. Bytes of the compiled file, and how many times smaller than the",
        f"int8 original ({base:,} bytes).",
        "",
        "| bits | " + " | ".join(f"{s:.0%} non-zeros" for s in NONZEROS) + " |",
        "|---" * (len(NONZEROS) + 1) + "|",
    ]
    for bits in BITS:
        row = [sizes[f"{bits} bits, {s:.0%}"] for s in NONZEROS]
        lines.append(f"| {bits} | " + " | ".join(f"{n:,} ({base / n:.2f}x)" for n in row) + " |")
    smallest = min((v, k) for k, v in sizes.items())
    lines += [
        "",
        f"The smallest, {smallest[1]} non-zeros, is {base / smallest[0]:.2f} times smaller than",
        f"the int8 original; the paper's figure goes to {_PAPER}x, at 1 bit and 1%.",
    ]
    _HERE.with_suffix(".md").write_text("\n".join(lines) + "\n")


def draw(sizes) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for bits in BITS:
        axes.plot(
            [100 * s for s in NONZEROS],
            [sizes[f"{bits} bits, {s:.0%}"] / 1e6 for s in NONZEROS],
            marker="o",
            label=f"{bits} bit" + "s" * (bits > 1),
        )
    axes.axhline(sizes["int8 original"] / 1e6, color="grey", linestyle="--", label="int8 original")
    axes.set(xscale="log", xlabel="non-zeros, %", ylabel="compiled file, MB")
    axes.set_title("MobileNetV2 (1.0, 224) after Vela, ethos-u55-128")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    # No time and no version inside: the same numbers give the same file.
    figure.savefig(_HERE.with_suffix(".png"), dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    app.run(main)
