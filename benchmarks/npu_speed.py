"""Speed of the executor against TFLM on the host, one inference at a time and in batches.

OMP_NUM_THREADS=1 python -m benchmarks.npu_speed

MLPerf Tiny's ResNet8 and DS-CNN and a MobileNetV2 0.5 at 160x160 with random weights, for U55-128,
Shared_Sram. One thread. Writes npu_speed.md beside this file.
"""

from __future__ import annotations

import os
import pathlib
import platform
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import keras
import numpy as np
import tensorflow as tf

from tests.support import npu_networks as nets
from udc_tf.export.npu import NpuNetwork

HERE = pathlib.Path(__file__).parent
ANCHORS = HERE.parents[1] / "shared" / "anchors" / "mlperf_tiny"
BATCH = 16
REPEATS = 7


def mobilenet_v2() -> bytes:
    """MobileNetV2 0.5 at 160x160, 100 classes, random weights, post-training int8.

    Its batch norms are drawn too: with those of an untrained network TFLM aborted while it prepared
    the graph. Why was not traced.
    """
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2((160, 160, 3), alpha=0.5, weights=None, classes=100)
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            gamma, beta, mean, variance = layer.get_weights()
            gamma, beta = rng.uniform(0.5, 1.5, gamma.shape), rng.normal(0, 0.3, beta.shape)
            layer.set_weights([gamma, beta, mean, np.full(variance.shape, rng.uniform(0.05, 0.3))])
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [rng.uniform(-1, 1, (1, 160, 160, 3)).astype(np.float32)] for _ in range(2)
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    # One scale for each dense layer: TFLM gives wrong results with one a channel.
    converter._experimental_disable_per_channel_quantization_for_dense_layers = True
    return converter.convert()


def best(action) -> float:
    """The shortest of several runs, in milliseconds of CPU: the machine may be shared."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def measure(name: str, model: bytes) -> str:
    compiled = nets.compile_in_process(model)
    start = time.process_time()
    network = NpuNetwork(compiled)
    inputs = nets.random_inputs(network, BATCH)
    one = [array[:1] for array in inputs]
    network.run(one)
    load = 1000 * (time.process_time() - start)
    golden = nets.run_tflm(model, inputs)
    equal = all(
        (got == want.reshape(got.shape)).all()
        for got, want in zip(network.run(inputs), golden, strict=True)
    )
    tflm = nets.tflm_interpreter(model)
    tflm.set_input(one[0], 0)
    cells = (
        name,
        f"{load:.0f}",
        f"{best(lambda: network.run(one)):.1f}",
        f"{best(lambda: network.run(inputs)) / BATCH:.1f}",
        f"{best(tflm.invoke):.1f}",
        "yes" if equal else "NO",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    lines = [
        "# Speed of the executor against TFLM, on the host",
        "",
        "`OMP_NUM_THREADS=1 python -m benchmarks.npu_speed`, "
        f"Python {platform.python_version()}, numpy {np.__version__}, one thread, "
        f"{platform.machine()}, milliseconds of CPU time, best of {REPEATS}. Compiled for U55-128, "
        "Shared_Sram. The first column is parsing, checking, decoding all weights, and one run.",
        "",
        f"| network | load and first run | npu, one | npu, each of {BATCH} | TFLM, one | equal |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(ANCHORS.glob("*.tflite")):
        lines.append(measure(f"MLPerf Tiny {path.stem}", path.read_bytes()))
        print(lines[-1], flush=True)
    lines.append(measure("MobileNetV2 0.5, 160x160", mobilenet_v2()))
    print(lines[-1], flush=True)
    part = HERE / "npu_speed.md.part"
    part.write_text("\n".join(lines) + "\n")
    os.replace(part, HERE / "npu_speed.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
