"""The executor against TFLM on random small networks: convolutions with strides, dilations and
paddings, depthwise, pooling, addition, multiplication, concatenation, dense, mean, softmax, more.

python -m benchmarks.npu_random --networks=1000

Accelerator, memory mode and strategy go round with the seed. A network that differs is listed with
the trace's verdict, and compiled again without cascading: Vela 5.2.0 lets a convolution overwrite
rows of an in-place subtraction in the rolling buffer of a cascade, before they are read.
Writes npu_random.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.support import npu_networks as nets
from udc_tf.export.npu import NpuNetwork
from udc_tf.export.npu.tensor_trace import trace
from udc_tf.export.runners.tflm import TflmRunner

HERE = pathlib.Path(__file__).parent
INPUTS = 3


def outcome(seed: int) -> str:
    """ "equal", or what is different."""
    model = nets.random_network(seed)
    network = _compiled(model, seed)
    inputs = nets.random_inputs(network, INPUTS, seed)
    golden = nets.run_tflm(model, inputs)
    if _equal(network.run(inputs), golden):
        return "equal"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "net.tflite")
        path.write_bytes(model)
        tflm = TflmRunner()
        tflm.load(path)
        first = [array[:1] for array in inputs]
        found = trace(network, first, tflm.tensors(first), tflm.run(first).outputs).verdict()
    plain = _compiled(model, seed, ("--disable-cascading",))
    same = "equal" if _equal(plain.run(inputs), golden) else "different too"
    return f"{found} Compiled with --disable-cascading: {same}."


def _compiled(model: bytes, seed: int, extra: tuple[str, ...] = ()) -> NpuNetwork:
    return NpuNetwork(
        nets.compile_in_process(
            model,
            nets.ACCELERATORS[seed % 4],
            list(nets.MEMORY)[seed // 4 % 2],
            ("Performance", "Size")[seed // 8 % 2],
            extra,
        )
    )


def _equal(outputs, golden) -> bool:
    return all((o == g.reshape(o.shape)).all() for o, g in zip(outputs, golden, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=1000)
    count = parser.parse_args().networks
    start = time.perf_counter()
    different = {}
    for seed in range(count):
        verdict = outcome(seed)
        if verdict != "equal":
            different[seed] = verdict
            print(seed, verdict, flush=True)
    seconds = time.perf_counter() - start
    print(f"{count - len(different)} of {count} equal, {seconds:.0f} s")
    result = {"networks": count, "equal": count - len(different), "different": different}
    part = HERE / "npu_random.json.part"
    part.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(part, HERE / "npu_random.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
