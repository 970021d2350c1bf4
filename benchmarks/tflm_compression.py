"""TFLM's look-up tables: what they save, and whether TFLM still computes the same with them.

    python benchmarks/tflm_compression.py

Two networks x three bitwidths, random configurations. Once with one table a tensor, once with
tables that follow the scales (one a channel for convolutions). Writes tflm_compression.json.
"""

import json
import pathlib

import numpy as np
from absl import app
from export_networks import random_compact, random_inputs
from tflite_micro import compression

from udc_tf.export import int8, lut_compression, tflite_file, tflm_check
from udc_tf.files import replaced_atomically

NETWORKS, BITS = ("resnet8", "ds_cnn"), (1, 2, 4)


def one_table_a_tensor(content: bytes) -> bytes:
    spec, file, wanted = compression.spec, tflite_file.read(content), []
    for index, _, _ in lut_compression.worthwhile(content):
        values = len(np.unique(file.tensors[index].data))
        method = spec.LookUpTableCompression(max(1, (values - 1).bit_length()), spec.PerTensor())
        wanted.append(spec.Tensor(0, index, [method]))
    return bytes(compression.compress(content, wanted))


def case(name: str, bits: int) -> dict:
    model, rng = random_compact(name, 0, bits), np.random.default_rng(0)
    data = random_inputs(model, 16, rng)
    exact = int8.to_int8(model, data)
    codes = exact.quantize_inputs([data])
    (golden,) = tflm_check.run(exact.content, codes)
    row = {"tflite_bytes": len(exact.content)}
    forms = {"a table a tensor": one_table_a_tensor, "tables as scales": lut_compression.compress}
    for form, compress in forms.items():
        content = compress(exact.content)
        (outputs,) = tflm_check.run(content, codes)
        difference = np.abs(outputs.astype(int) - golden)
        row[form] = {
            "bytes": len(content),
            "equal outputs": round(float(np.mean(difference == 0)), 4),
            "largest difference": int(difference.max()),
        }
    return row


def main(_):
    results = {f"{n}, {b} bits": case(n, b) for n in NETWORKS for b in BITS}
    with replaced_atomically(pathlib.Path(__file__).with_suffix(".json")) as partial:
        partial.write_text(json.dumps(results, indent=1) + "\n")
    for name, row in results.items():
        print(name, row)


if __name__ == "__main__":
    app.run(main)
