"""Networks for the executor's tests: drawn at random, compiled by Vela, run by TFLM."""

from __future__ import annotations

import contextlib
import io
import math
import os
import pathlib
import tempfile

import numpy as np
from tensorflow.lite.python import schema_py_generated as schema

from tests.support.npu_builder import NONE, RELU, RELU6, SAME, VALID, NetworkBuilder

ACCELERATORS = ("ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256")
MEMORY = {
    "Shared_Sram": "Ethos_U55_High_End_Embedded",
    "Sram_Only": "Ethos_U55_Deep_Embedded",
}
_SYSTEMS = {**MEMORY, "Dedicated_Sram_384KB": "Ethos_U65_High_End"}
_TFLM_ARENA = 8 << 20


def random_network(seed: int, every: bool = False) -> bytes:
    """A small network of random operators, the same for the same seed.

    Args:
        every: draws from every operator, and sequences (images of height 1) besides images.
    """
    rng = np.random.default_rng(seed)
    build = NetworkBuilder(rng)
    height, width, depth = (int(n) for n in rng.integers([5, 5, 1], [17, 17, 20]))
    if every and rng.random() < 0.3:
        height, width = 1, height * 3
    x = build.input(height, width, depth)
    for _ in range(int(rng.integers(2, 6))):
        if every and rng.random() < 0.5:
            x = _random_newer_layer(build, rng, x)
        else:
            x = _random_layer(build, rng, x)
    if not build.operators:  # every layer drawn left its input as it was
        x = build.conv(x, 8)
    return build.finish(_random_head(build, rng, x))


def _random_layer(build: NetworkBuilder, rng: np.random.Generator, x: int) -> int:
    _, height, width, depth = build.shape(x)
    kernel = tuple(int(k) for k in rng.integers(1, 6, 2))
    stride = tuple(int(s) for s in rng.integers(1, 4, 2))
    dilation = (1, 1)
    if rng.random() < 0.3:
        stride, dilation = (1, 1), tuple(int(d) for d in rng.integers(1, 4, 2))
    fits = all((k - 1) * d < n for k, d, n in zip(kernel, dilation, (height, width), strict=True))
    padding = int(rng.integers(0, 2)) if fits else SAME
    act = int(rng.choice([NONE, RELU, RELU6]))
    channels = int(rng.integers(1, 40))
    window = {"kernel": kernel, "stride": stride, "padding": padding}
    kind = str(rng.choice(LAYERS))
    if kind == "conv":
        return build.conv(x, channels, dilation=dilation, act=act, **window)
    if kind == "depthwise":
        if stride[0] != stride[1]:  # TFLite's depthwise has one stride on the NPU
            window["stride"] = (stride[0], stride[0])
        return build.depthwise(x, dilation=dilation, act=act, **window)
    if kind in ("average", "maximum"):
        return build.pool(x, average=kind == "average", **window)
    if kind in ("add", "sub", "mul"):
        y = build.conv(x, depth, kernel=(1, 1))
        return build.binary(kind, *((x, y) if rng.random() < 0.5 else (y, x)), act=act)
    if kind == "broadcast":
        return build.binary(str(rng.choice(["add", "mul"])), x, build.mean(x), act=act)
    if kind == "concat":
        return build.concat([x, build.pool(x, (3, 3), (1, 1), SAME, bool(rng.random() < 0.5))])
    if kind == "extremum":
        y = build.pool(x, (3, 3), (1, 1), SAME, True)
        return build.extremum(str(rng.choice(["MINIMUM", "MAXIMUM"])), x, y)
    if kind == "unary":
        # No LOGISTIC and TANH: TFLM approximates them, Vela tabulates them, so that a value
        # within 1e-5 of a half may round differently.
        names = ["RELU", "LEAKY_RELU"]
        return build.unary(str(rng.choice(names)), x)
    if kind == "pad":
        x = build.pad(x)
        fits = min(build.shape(x)[1:3]) >= 3
        return build.conv(x, channels, kernel=(3, 3) if fits else (1, 1), padding=VALID)
    if kind == "upscale":
        return build.upscale(x) if height * width < 200 else x
    if kind == "transpose":
        return build.transpose_conv(x, channels) if height * width < 200 else x
    raise AssertionError(kind)


def _random_newer_layer(build: NetworkBuilder, rng: np.random.Generator, x: int) -> int:
    depth = build.shape(x)[3]
    kind = str(rng.choice(NEWER_LAYERS))
    if kind == "unary":
        return build.unary(str(rng.choice(["ELU", "ABS", "HARD_SWISH"])), x)
    if kind == "reduce":
        name = str(rng.choice(["REDUCE_MAX", "REDUCE_MIN"]))
        return build.reduce(name, x, int(rng.integers(1, 4)))
    if kind == "grouped":
        divisors = [n for n in range(1, depth + 1) if depth % n == 0]
        groups = int(rng.choice(divisors))
        return build.conv(x, groups * int(rng.integers(1, 5)), groups=groups)
    if kind == "square":
        return build.binary("mul", x, x)
    if kind == "bilinear" and math.prod(build.shape(x)[1:3]) > 200:
        return x
    return getattr(build, kind)(x)


NEWER_LAYERS = (
    *("unary", "unary", "prelu", "transpose", "reduce", "slice", "grouped", "square"),
    *("rsqrt", "matmul", "channel_mean", "channel_max", "bilinear"),
)
LAYERS = (
    *("conv", "conv", "conv", "depthwise", "depthwise", "average", "maximum"),
    *("add", "sub", "mul", "broadcast", "concat", "extremum", "unary", "pad"),
    *("upscale", "transpose"),
)


def _random_head(build: NetworkBuilder, rng: np.random.Generator, x: int) -> int:
    kind = str(rng.choice(["none", "dense", "mean", "softmax"]))
    if kind == "none":
        return x
    if kind == "mean":
        return build.mean(x)
    if rng.random() < 0.5 or math.prod(build.shape(x)) > 4096:
        x = build.mean(x)
    x = build.dense(x, int(rng.integers(2, 20)))
    return build.softmax(x) if kind == "softmax" else x


def compile_in_process(
    model: bytes,
    accelerator: str = "ethos-u55-128",
    memory_mode: str = "Shared_Sram",
    optimise: str = "Performance",
    extra: tuple[str, ...] = (),
) -> bytes:
    """Vela's output for `model`. Its command line takes 0.4 s to start, its compiler 0.02 s."""
    from ethosu.vela import vela

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "net.tflite")
        path.write_bytes(model)
        arguments = [str(path), "--output-dir", folder, "--config", "Arm/vela.ini"]
        arguments += ["--accelerator-config", accelerator, "--optimise", optimise]
        arguments += ["--system-config", _SYSTEMS[memory_mode], "--memory-mode", memory_mode]
        with quiet():
            vela.main([*arguments, *extra])
        return pathlib.Path(folder, "net_vela.tflite").read_bytes()


@contextlib.contextmanager
def quiet():
    """Drops what the block prints, compiled code included."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(io.StringIO()):
        saved = os.dup(1), os.dup(2)
        try:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            yield
        finally:
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            for descriptor in saved:
                os.close(descriptor)


def tflm_interpreter(model: bytes):
    """TFLM's interpreter with room for any network of the tests."""
    from tflite_micro import runtime

    return runtime.Interpreter.from_bytes(model, arena_size=_TFLM_ARENA)


def run_tflm(model: bytes, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """TFLite Micro's outputs for a batch: the golden reference."""
    interpreter = tflm_interpreter(model)
    batches: list[list[np.ndarray]] = []
    for i in range(len(inputs[0])):
        for number, array in enumerate(inputs):
            interpreter.set_input(array[i : i + 1], number)
        interpreter.invoke()
        count = len(schema.Model.GetRootAs(model).Subgraphs(0).OutputsAsNumpy())
        batches.append([interpreter.get_output(o).copy() for o in range(count)])
    return [np.concatenate(column) for column in zip(*batches, strict=True)]


def random_inputs(network, count: int, seed: int = 0) -> list[np.ndarray]:
    """`count` random inputs for an `NpuNetwork`."""
    rng = np.random.default_rng(seed)
    return [
        rng.integers(-128, 128, (count, *info.shape[1:]), dtype=np.int8) for info in network.inputs
    ]
