"""What the fuzzer calls: each reader of files from elsewhere, and how it is allowed to fail.

A target takes any bytes and ends in a result or in the error its reader documents. Anything else
that comes out of it (another exception, an endless loop, a gigabyte of memory) is a finding.
`benchmarks/fuzz.py` runs them for minutes, `tests/benchmarks/fuzz_test.py` for seconds.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import numpy as np

from tests.support import fuzz_mutations as mutations
from udc_tf.export import tflite_file
from udc_tf.export.errors import DamagedModelError
from udc_tf.export.npu import NpuError, NpuNetwork, container, weight_order
from udc_tf.export.npu.convolution import decode_kernel

_GUARD = 4096
_GUARD_BYTE = 0xA5
# A tenth of the default: the networks here need far less, and thousands of files are to be run.
WORK_LIMIT = 2 * 10**10

Mutation = Callable[[bytes, random.Random], bytes]


@dataclasses.dataclass(frozen=True)
class Target:
    """One reader under test.

    Attributes:
        run: reads `data`; returns "read" or the name of the error that it documents.
        mutations: ways to damage an input of this kind.
        own_eighths: of a fuzzer's mutations, how many eighths are these; the others know bytes.
        max_bytes: the largest input tried.
    """

    name: str
    run: Callable[[bytes], str]
    mutations: tuple[Mutation, ...]
    own_eighths: int = 4
    max_bytes: int = 1 << 15

    def damaged(self, data: bytes, seed: int) -> bytes:
        """`data` after one of the mutations."""
        rng = random.Random(seed)
        return rng.choice(self.mutations)(data, rng)[: self.max_bytes]


class GuardedNetwork(NpuNetwork):
    """A network whose memory has a fence on either side."""

    def _new_stores(self, batch):
        stores = super()._new_stores(batch)
        self.fences = []
        self.constants = []
        for name, store in stores.items():
            if not store.flags.writeable:
                self.constants.append((store, store.tobytes()))
                continue
            fenced = np.full((1, store.shape[1] + 2 * _GUARD), _GUARD_BYTE, np.uint8)
            fenced[:, _GUARD:-_GUARD] = 0
            stores[name] = fenced[:, _GUARD:-_GUARD]
            self.fences.append(fenced)
        return stores

    def check_fences(self) -> None:
        """Raises if anything outside the arena has changed."""
        for fenced in getattr(self, "fences", ()):
            outside = np.concatenate([fenced[:, :_GUARD], fenced[:, -_GUARD:]])
            if not (outside == _GUARD_BYTE).all():
                raise AssertionError("bytes outside the arena were written")
        for store, before in getattr(self, "constants", ()):
            if store.tobytes() != before:
                raise AssertionError("constant bytes were written")


def run_compiled(data: bytes) -> str:
    """Loads and runs a compiled network."""
    try:
        network = GuardedNetwork(data, work_limit=WORK_LIMIT)
    except NpuError as error:
        return type(error).__name__
    inputs = [
        np.zeros((1, *(info.shape[1:] if info.shape[:1] == (1,) else info.shape)), info.dtype)
        for info in network.inputs
    ]
    try:
        network.run(inputs)
    except NpuError as error:
        return type(error).__name__
    finally:
        network.check_fences()
    return "read"


def run_container(data: bytes) -> str:
    """Reads a file as compiled and as not compiled, and runs it if it can be."""
    for parse in (container.is_compiled, container.parse_uncompiled):
        try:
            parse(data)
        except NpuError:
            continue
    return run_compiled(data)


def weight_input(shape: weight_order.WeightShape, stream: bytes) -> bytes:
    """What `run_weights` takes: a shape in ten bytes, then the stream."""
    flags = shape.part_kernel | shape.depthwise << 1 | (shape.ifm_bits == 16) << 2
    flags |= (32, 64, 128, 256).index(shape.macs) << 3 | shape.dilation[0] - 1 << 5
    flags |= shape.dilation[1] - 1 << 6
    numbers = (shape.ofm_depth - 1, shape.ifm_depth - 1, shape.block_depth - 1)
    head = b"".join(n.to_bytes(2, "little") for n in numbers)
    return bytes([flags, shape.kernel[0] - 1, shape.kernel[1] - 1, 0]) + head + stream


def run_weights(data: bytes) -> str:
    """Decodes a weight stream for the convolution that the first ten bytes describe."""
    flags, height, width, _, *sizes = data[:10].ljust(10, b"\0")
    depth, inputs, block = (1 + sizes[i] + 256 * sizes[i + 1] for i in (0, 2, 4))
    depthwise = bool(flags & 2)
    shape = weight_order.WeightShape(
        ofm_depth=depth,
        kernel=(height % 64 + 1, width % 64 + 1),
        ifm_depth=1 if depthwise else inputs,
        block_depth=block,
        dilation=(1 + (flags >> 5 & 1), 1 + (flags >> 6 & 1)),
        part_kernel=bool(flags & 1) and not depthwise,
        depthwise=depthwise,
        ifm_bits=16 if flags & 4 else 8,
        macs=(32, 64, 128, 256)[flags >> 3 & 3],
    )
    try:
        kernel = decode_kernel(shape, data[10:])
    except NpuError as error:
        return type(error).__name__
    assert kernel.shape == (*shape.kernel, shape.ifm_depth, shape.ofm_depth)
    assert np.abs(kernel).max(initial=0) <= 255
    return "read"


def run_tflite(data: bytes) -> str:
    """Reads a TFLite file."""
    try:
        file = tflite_file.read(data)
    except DamagedModelError as error:
        return type(error).__name__
    for tensor in file.tensors:
        assert tensor.data is None or isinstance(tensor.data, np.ndarray)
    return "read"


COMMANDS = (mutations.command_stream, mutations.command_stream, mutations.words)
TARGETS = {
    target.name: target
    for target in (
        Target("container", run_container, mutations.BYTES),
        Target("commands", run_compiled, COMMANDS, own_eighths=7),
        Target("weights", run_weights, mutations.BYTES, max_bytes=1 << 13),
        Target("tflite", run_tflite, mutations.BYTES),
    )
}


def find(name: str) -> Target:
    """The target of this name, of here or of `fuzz_folder_targets`."""
    if name in TARGETS:
        return TARGETS[name]
    from tests.support import fuzz_folder_targets

    return fuzz_folder_targets.TARGETS[name]


def seeds(name: str) -> list[bytes]:
    """Sound inputs of target `name` to start from; making them needs TensorFlow and Vela."""
    from tests.support import fuzz_folder_targets, npu_networks

    if name in fuzz_folder_targets.TARGETS:
        return fuzz_folder_targets.seeds(name)
    models = [npu_networks.random_network(seed) for seed in _NETWORKS]
    if name == "tflite":
        return models
    compiled = []
    for number, model in enumerate(models):
        memory = list(npu_networks.MEMORY)[number // 4 % 2]
        accelerator = npu_networks.ACCELERATORS[(number + 2) % 4]
        compiled.append(npu_networks.compile_in_process(model, accelerator, memory))
    if name == "weights":
        return [w for data in compiled for w in _streams(data)]
    on_cpu = ("--ignore-ops", "MAX_POOL_2D,RESHAPE")  # streams with the CPU's work between them
    separate = ("--cop-format", "COP2", "--separate-io-regions")
    return [
        *compiled,
        *(npu_networks.compile_in_process(model, extra=on_cpu) for model in models[:3]),
        *(npu_networks.compile_in_process(model, extra=separate) for model in models[5:7]),
    ]


_NETWORKS = (2, 4, 5, 6, 9, 12, 15, 20, 31, 33, 36, 39)  # small, and all operations among them


def _streams(data: bytes) -> list[bytes]:
    """Shapes and streams of the convolutions that read their weights straight from flash."""
    network = NpuNetwork(data)
    found = []
    for operation in network.operations:
        span = getattr(operation, "weights", None)
        if span is not None and span.store.startswith("flash"):
            content = network.container.tensors[int(span.store.split()[1])].data
            stream = content[span.start : span.start + span.length]
            found.append(weight_input(operation.weight_shape, stream))
    return found
