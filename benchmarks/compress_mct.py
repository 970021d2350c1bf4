"""`udc_tf.compress` beside the mixed precision of Sony's Model Compression Toolkit.

MCT needs Keras 2, so it runs in an environment of its own (Python 3.11, tensorflow==2.15.1,
model-compression-toolkit==2.3.0), whose interpreter `--mct_python` names. Both get MLPerf Tiny's
ResNet8, the same weights and the same 512 unlabelled images. MCT's weights, each as the integer of
its channel's step, are then compiled as ours are, and the size of their file is the budget of
`compress`. MCT's activation ranges are not taken over: its network gets 8 bits and ranges as the
uniform networks of `benchmarks/compress.py` do, and its dense layer one step of 8 bits.
"""

import json
import pathlib
import subprocess
import tempfile

import keras
import numpy as np
from absl import flags

import udc_tf
from benchmarks import harness
from benchmarks.compress import compiled_bytes, scores, uniform_of
from benchmarks.compress_networks import CASES
from benchmarks.harness import Row, Rows, Stopwatch
from udc_tf.compress.kernel_matrix import to_matrix
from udc_tf.compress.matrix_rounding import Rounded
from udc_tf.compress.put_back_norms import with_norms
from udc_tf.compress.weight_fitting import set_weights
from udc_tf.finetune.double_rounding import match_double_rounding
from udc_tf.finetune.whole_biases import make_biases_whole
from udc_tf.graph.folds import folds
from udc_tf.layers.inventory import activation_quantizers
from udc_tf.quantize.reconstruction import Levels

_CASE = CASES["mlperf_resnet8"]
_EXAMPLES = 512
_BYTES = (0.45, 0.3)  # of the weights at 8 bits, which is what MCT can be told
_PROCESS = pathlib.Path(__file__).with_name("mct_process.py")


def as_compact(found: dict[str, np.ndarray], x: np.ndarray) -> keras.Model:
    """MCT's weights in a compact network, codes as they are; activations in 8 bits, as ours."""
    model = _CASE.trained()
    for layer in model.layers:
        if layer.weights:
            layer.set_weights([found[f"{layer.name}/{i}"] for i in range(2)])
    model = with_norms(model)
    ranges = {q.name: q.get_weights() for q in activation_quantizers(uniform_of(model, x, 8))}
    tiny = udc_tf.compact(model, bits=8)
    for fold in folds(tiny):
        layer, norm = fold.kernel, fold.batch_norm
        steps = found[f"{layer.name}/steps"].reshape(1, 1, -1)
        if norm is None:  # a dense layer has one step
            steps = np.abs(layer.theta.numpy()).max().reshape(1, 1, 1) / 127
        matrix = to_matrix(layer, layer.theta.numpy())
        levels = Levels.of(np.broadcast_to(steps, (1, 1, matrix.shape[2])), 8)
        set_weights(layer, Rounded(levels.rounded(matrix), levels, 0, None), norm)
    for quantizer in activation_quantizers(tiny):
        quantizer.set_weights(ranges[quantizer.name])
    make_biases_whole(tiny)
    match_double_rounding(tiny)
    return tiny


def measure(share: float) -> Row:
    data, model = _CASE.data(), _CASE.trained()
    x = data[0][0][:_EXAMPLES]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        weights = {f"{k.name}/{i}": w for k in model.layers for i, w in enumerate(k.get_weights())}
        np.savez(folder / "network.npz", images=x, **weights)
        command = [flags.FLAGS.mct_python, str(_PROCESS), name, str(share)]
        subprocess.run(command, check=True, capture_output=True)
        facts = json.loads((folder / "facts.json").read_text())
        with np.load(folder / "quantized.npz") as file:
            theirs = as_compact(dict(file), x)
    budget = compiled_bytes(theirs, x)
    watch = Stopwatch()
    ours = udc_tf.compress(model, udc_tf.Flash(budget), x)
    return {
        "mct": {"flash": budget, **scores(theirs, data), **facts},
        "compress": {
            "flash": ours.compression.flash_bytes,
            **scores(ours, data),
            "cpu_seconds": watch.read().cpu,
        },
    }


def run(rows: Rows) -> str:
    for share in _BYTES:
        rows.once(f"{_CASE.name}/{share}", lambda share=share: measure(share))
    return report(rows.read())


def report(rows: dict[str, Row]) -> str:
    lines = [
        (key, method, row[method]["flash"], row[method]["test"], row[method]["cpu_seconds"])
        for key, row in rows.items()
        for method in ("mct", "compress")
    ]
    return harness.table(("network, asked of MCT", "method", "bytes", "test", "cpu s"), lines)


def main() -> None:
    flags.DEFINE_string("mct_python", "python", "The interpreter of MCT's environment.")
    harness.main(run, "compress_mct")


if __name__ == "__main__":
    main()
