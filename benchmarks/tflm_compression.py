"""TFLM's look-up tables: what they save, and whether TFLM still computes the same with them.

    python -m benchmarks.tflm_compression

Two networks x three bitwidths, random configurations. Once with one table per tensor, once
with tables that follow the scales (one per channel for convolutions).
"""

import functools
import itertools
from collections.abc import Mapping

import numpy as np
from tflite_micro import compression

from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from benchmarks.networks import random_compact, random_inputs
from udc_tf.export import int8, lut_compression, tflite_file, tflm_check

FORMS = ("a table a tensor", "tables as scales")
NETWORKS, BITS = ("resnet8", "ds_cnn"), (1, 2, 4)


def one_table_per_tensor(content: bytes) -> bytes:
    spec, file, wanted = compression.spec, tflite_file.read(content), []
    for index, _, _ in lut_compression.worthwhile(content):
        values = len(np.unique(file.tensors[index].data))
        method = spec.LookUpTableCompression(max(1, (values - 1).bit_length()), spec.PerTensor())
        wanted.append(spec.Tensor(0, index, [method]))
    return bytes(compression.compress(content, wanted))


def measure(name: str, bits: int) -> Row:
    model, rng = random_compact(name, 0, bits), np.random.default_rng(0)
    data = random_inputs(model, 16, rng)
    exact = int8.to_int8(model, data)
    codes = exact.quantize_inputs([data])
    (golden,) = tflm_check.run(exact.content, codes)
    row = {"tflite_bytes": len(exact.content)}
    for form, compress in zip(FORMS, (one_table_per_tensor, lut_compression.compress), strict=True):
        content = compress(exact.content)
        (outputs,) = tflm_check.run(content, codes)
        difference = np.abs(outputs.astype(int) - golden)
        row[form] = {
            "bytes": len(content),
            "equal outputs": round(float(np.mean(difference == 0)), 4),
            "largest difference": int(difference.max()),
        }
    return row


def report(rows: Mapping[str, Row]) -> str:
    lines = [
        (
            name,
            row["tflite_bytes"],
            *(row[f][of] for f in FORMS for of in ("bytes", "equal outputs")),
        )
        for name, row in rows.items()
    ]
    kinds = ("bytes, one table per tensor", "equal outputs", "bytes, as scales", "equal outputs")
    return table(("network", "bytes", *kinds), lines)


def run(rows: Rows) -> str:
    for name, bits in itertools.product(NETWORKS, BITS):
        rows.once(f"{name}, {bits} bits", functools.partial(measure, name, bits))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "tflm_compression")
