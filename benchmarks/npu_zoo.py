"""The executor against TFLM on the zoo and on MLPerf Tiny's trained models, for every accelerator.

    python -m benchmarks.npu_zoo
    python -m benchmarks.npu_zoo --networks=resnet8 --results=FILE     # a sample, once more

Each network of the zoo is drawn at random, exported, and compiled for U55-32/64/128/256, both
strategies of `--optimise` and the memory modes Shared_Sram and Sram_Only; ten random inputs each
have to equal TFLM's outputs bit for bit.
"""

import functools
import itertools
import pathlib
import tempfile
from collections.abc import Mapping

import keras
import numpy as np
from absl import flags

import udc_tf
from benchmarks import harness
from benchmarks.data import mlperf_tiny
from benchmarks.harness import Row, Rows, table
from tests.support import npu_networks as nets
from udc_tf import models
from udc_tf.export.npu import NpuNetwork

INPUTS = 10
# All layers; where the defaults keep TFLM busy for minutes, a smaller image or fewer channels.
ZOO = {
    "autoencoder": (models.autoencoder, {}),
    "ds_cnn": (models.ds_cnn, {}),
    "fsrcnn": (models.fsrcnn, {"input_shape": (16, 16, 1)}),
    "mobilenet_v1": (models.mobilenet_v1, {"input_shape": (64, 64, 3), "classes": 20}),
    "mobilenet_v2": (models.mobilenet_v2, {"input_shape": (64, 64, 3), "classes": 100}),
    "mobilenet_v2_wide": (models.mobilenet_v2_wide, {"input_shape": (32, 32, 3), "classes": 100}),
    "resnet8": (models.resnet8, {}),
    "small_cnn": (models.small_cnn, {}),
    "wide_resnet": (models.wide_resnet, {"input_shape": (16, 16, 3), "multiplier": 2}),
}


def drawn(name: str) -> keras.Model:
    """The network with random weights and batch norms that spread its values."""
    keras.utils.set_random_seed(0)
    function, arguments = ZOO[name]
    model = function(**arguments)
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            gamma, beta, mean, variance = layer.get_weights()
            gamma = rng.uniform(0.5, 1.5, gamma.shape) * rng.choice([-1, 1], gamma.shape)
            layer.set_weights(
                [gamma, rng.normal(0, 0.3, beta.shape), mean, rng.uniform(0.2, 1, variance.shape)]
            )
    return model


def exported(name: str) -> bytes:
    """The int8 .tflite of a drawn network."""
    model = drawn(name)
    shape = tuple(n or 32 for n in model.inputs[0].shape[1:])
    samples = np.random.default_rng(1).uniform(-1, 1, (8, *shape)).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        result = udc_tf.export.export(model, folder, calibration=samples, golden_samples=1)
        return pathlib.Path(result.tflite_path).read_bytes()


def varied_inputs(network: NpuNetwork) -> list[np.ndarray]:
    """Noise of different brightness and contrast: pure noise looks alike to a pooling network."""
    rng = np.random.default_rng(2)
    inputs = []
    for array in nets.random_inputs(network, INPUTS):
        shape = (INPUTS,) + (1,) * (array.ndim - 1)
        noise = array * rng.uniform(0.1, 1, shape) + rng.uniform(-90, 90, shape)
        inputs.append(np.clip(noise, -128, 127).astype(np.int8))
    return inputs


def measure(name: str) -> Row:
    """Every configuration's outcome."""
    model = exported(name) if name in ZOO else mlperf_tiny()[name].read_bytes()
    found, golden = [], None
    for accelerator, memory_mode, optimise in itertools.product(
        nets.ACCELERATORS, nets.MEMORY, ("Performance", "Size")
    ):
        network = NpuNetwork(nets.compile_in_process(model, accelerator, memory_mode, optimise))
        inputs = varied_inputs(network)
        if golden is None:
            golden = nets.run_tflm(model, inputs)
        wrong = sum(
            int((got != want.reshape(got.shape)).sum())
            for got, want in zip(network.run(inputs), golden, strict=True)
        )
        found.append(
            {
                "accelerator": accelerator,
                "memory_mode": memory_mode,
                "optimise": optimise,
                "operations": len(network.operations),
                "wrong_values": wrong,
                "distinct_values": sum(len(np.unique(want)) for want in golden),
            }
        )
    equal = sum(row["wrong_values"] == 0 for row in found)
    return {"configurations": len(found), "equal": equal, "rows": found}


def report(rows: Mapping[str, Row]) -> str:
    lines = [
        (name, row["equal"], row["configurations"], row["rows"][0]["distinct_values"])
        for name, row in rows.items()
    ]
    lines.append(("all", *(sum(line[n] for line in lines) for n in (1, 2)), ""))
    return table(("network", "equal", "configurations", "distinct output values"), lines)


def run(rows: Rows) -> str:
    for name in flags.FLAGS.networks or [*ZOO, *mlperf_tiny()]:
        rows.once(name, functools.partial(measure, name))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_list("networks", [], "Which; all by default.")
    harness.main(run, "npu_zoo")
