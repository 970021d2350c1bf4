"""The executor against TFLite Micro, and against streams that no NPU could execute."""

import dataclasses

import keras
import numpy as np
import pytest

import udc_tf
from tests.export.layers_test import IMAGE, VECTOR, check_arrives, conv, head, noise
from tests.support import npu_networks as nets
from tests.support.paths import SHARED
from udc_tf.export.npu import (
    AccumulatorOverflowError,
    CommandError,
    ContainerError,
    MemoryAccessError,
    NpuError,
    NpuNetwork,
    UnsupportedAcceleratorError,
    UnsupportedOperatorError,
    WorkLimitError,
    command_words,
    container,
)
from udc_tf.export.npu.operations import Convolution, Dma

ANCHORS = SHARED / "anchors" / "mlperf_tiny"
needs_anchors = pytest.mark.skipif(
    not ANCHORS.is_dir(), reason="needs MLPerf Tiny's models in ../shared/anchors/mlperf_tiny"
)
RANDOM_NETWORKS = 64  # benchmarks/npu_random.py runs 1,000 of them


def _assert_equals_tflm(model: bytes, compiled: bytes, count: int = 3, seed: int = 0):
    network = NpuNetwork(compiled)
    inputs = nets.random_inputs(network, count, seed)
    outputs, golden = network.run(inputs), nets.run_tflm(model, inputs)
    assert len(outputs) == len(golden)
    for got, want in zip(outputs, golden, strict=True):
        np.testing.assert_array_equal(got, want.reshape(got.shape))


class TestOtherFamilies:
    @pytest.mark.parametrize("accelerator", ["ethos-u65-256", "ethos-u65-512"])
    @pytest.mark.parametrize("memory_mode", ["Shared_Sram", "Dedicated_Sram_384KB"])
    def test_a_u65_equals_tflm(self, accelerator, memory_mode):
        for seed in (3, 5, 13):  # 13 has a convolution of one channel, so of one core
            model = nets.random_network(seed)
            compiled = nets.compile_in_process(model, accelerator, memory_mode)
            _assert_equals_tflm(model, compiled, seed=seed)

    def test_two_cores_take_turns(self):
        compiled = nets.compile_in_process(nets.random_network(3), "ethos-u65-512")
        network = NpuNetwork(compiled)
        cores = [len(o.streams) for o in network.operations if isinstance(o, Convolution)]
        assert set(cores) == {2} and network.container.accelerator == "ethos-u65-512"
        assert not network.estimates_cycles

    def test_a_u85_is_read_but_not_run(self):
        compiled = nets.compile_in_process(
            nets.random_network(3), "ethos-u85-256", "Dedicated_Sram_384KB"
        )
        assert container.parse(compiled).accelerator == "ethos-u85-256"
        with pytest.raises(UnsupportedAcceleratorError, match="Received: a network for ethos-u85"):
            NpuNetwork(compiled)


class TestAnchors:
    @needs_anchors
    @pytest.mark.parametrize("name", ["resnet8_cifar10_int8", "dscnn_kws_int8"])
    def test_equal_tflm_bit_for_bit(self, name):
        model = (ANCHORS / f"{name}.tflite").read_bytes()
        inputs = nets.random_inputs(NpuNetwork(nets.compile_in_process(model)), 10)
        golden = nets.run_tflm(model, inputs)[0]
        for accelerator in nets.ACCELERATORS:
            for memory_mode in nets.MEMORY:
                for optimise in ("Performance", "Size"):
                    compiled = nets.compile_in_process(model, accelerator, memory_mode, optimise)
                    got = NpuNetwork(compiled).run(inputs)[0]
                    np.testing.assert_array_equal(got, golden, f"{accelerator} {memory_mode}")

    @needs_anchors
    @pytest.mark.parametrize(
        "extra", [("--cop-format", "COP2"), ("--cop-format", "COP2", "--separate-io-regions")]
    )
    def test_other_containers(self, extra):
        model = (ANCHORS / "resnet8_cifar10_int8.tflite").read_bytes()
        _assert_equals_tflm(model, nets.compile_in_process(model, extra=extra))


class TestRandomNetworks:
    @pytest.mark.parametrize("first", range(0, RANDOM_NETWORKS, 16))
    def test_equal_tflm_bit_for_bit(self, first):
        for seed in range(first, first + 16):
            model = nets.random_network(seed)
            compiled = nets.compile_in_process(
                model,
                nets.ACCELERATORS[seed % 4],
                list(nets.MEMORY)[seed // 4 % 2],
                ("Performance", "Size")[seed // 8 % 2],
            )
            _assert_equals_tflm(model, compiled, seed=seed)

    @pytest.mark.parametrize("mode", ["add", "sub"])
    def test_all_operand_pairs(self, mode):
        build = nets.NetworkBuilder(np.random.default_rng(1))
        x, y = build.input(256, 256, 1), build.input(256, 256, 1)
        model = build.finish(build.binary(mode, x, y))
        network = NpuNetwork(nets.compile_in_process(model))
        grid = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128))
        inputs = [g.astype(np.int8).reshape(1, 256, 256, 1) for g in grid]
        np.testing.assert_array_equal(network.run(inputs)[0], nets.run_tflm(model, inputs)[0])

    def test_a_softmax_of_many_classes(self):
        # Shifts by 31. More, as equal classes need, makes TFLM abort: no golden for that.
        build = nets.NetworkBuilder(np.random.default_rng(0))
        model = build.finish(build.softmax(build.dense(build.input(4, 4, 1), 1500)))
        _assert_equals_tflm(model, nets.compile_in_process(model), count=4)

    @pytest.mark.parametrize("name", ["RELU", "LEAKY_RELU", "LOGISTIC", "TANH"])
    def test_all_values_of_an_activation(self, name):
        build = nets.NetworkBuilder(np.random.default_rng(2))
        x = build.input(16, 16, 1)
        model = build.finish(build.unary(name, x))
        network = NpuNetwork(nets.compile_in_process(model))
        inputs = [np.arange(-128, 128).astype(np.int8).reshape(1, 16, 16, 1)]
        np.testing.assert_array_equal(network.run(inputs)[0], nets.run_tflm(model, inputs)[0])


def _two_inputs() -> bytes:
    build = nets.NetworkBuilder(np.random.default_rng(3))
    x, y = build.input(6, 5, 4), build.input(6, 5, 4)
    z = build.conv(build.binary("add", x, y), 9)
    return build.finish(z, build.mean(z))


class TestNetwork:
    def test_several_inputs_and_outputs(self):
        model = _two_inputs()
        _assert_equals_tflm(model, nets.compile_in_process(model))

    def test_a_batch_is_its_items_one_by_one(self):
        network = NpuNetwork(nets.compile_in_process(nets.random_network(5)))
        inputs = nets.random_inputs(network, 7)
        together = network.run(inputs)[0]
        single = [network.run([a[i : i + 1] for a in inputs])[0] for i in range(7)]
        np.testing.assert_array_equal(together, np.concatenate(single))

    def test_describes_itself(self):
        network = NpuNetwork(nets.compile_in_process(_two_inputs(), "ethos-u55-64"))
        assert network.macs_per_cycle == 64
        assert [info.shape for info in network.inputs] == [(1, 6, 5, 4)] * 2
        assert network.arena_bytes > 6 * 5 * 9
        assert any(getattr(op, "kind", "") == "CONV" for op in network.operations)

    def test_names_wrong_inputs(self):
        network = NpuNetwork(nets.compile_in_process(_two_inputs()))
        good = np.zeros((2, 6, 5, 4), np.int8)
        with pytest.raises(ValueError, match=r"has 2 inputs\. Received: 1"):
            network.run([good])
        with pytest.raises(ValueError, match=r"int8 of shape \(batch, 6, 5, 4\)"):
            network.run([good, good.astype(np.float32)])
        with pytest.raises(ValueError, match="same batch"):
            network.run([good, good[:1]])

    def test_runs_streams_around_a_cpu_operator(self):
        build = nets.NetworkBuilder(np.random.default_rng(4))
        x = build.conv(build.input(9, 9, 3), 12)
        x = build.conv(build.pool(x, (3, 2), (2, 2), nets.SAME, average=False), 5)
        model = build.finish(x)
        compiled = nets.compile_in_process(model, extra=("--ignore-ops", "MAX_POOL_2D"))
        network = NpuNetwork(compiled)
        assert len(network.container.npu_operators) == 2
        _assert_equals_tflm(model, compiled)

    def test_refuses_other_cpu_operators_by_name(self):
        compiled = nets.compile_in_process(_two_inputs(), extra=("--ignore-ops", "ADD"))
        with pytest.raises(UnsupportedOperatorError, match=r"operator 0 \(ADD\) runs on the CPU"):
            NpuNetwork(compiled)

    def test_refuses_what_vela_has_not_compiled(self):
        with pytest.raises(ContainerError):
            NpuNetwork(_two_inputs())
        with pytest.raises(ContainerError, match="TFL3"):
            NpuNetwork(b"not a model at all")


def _edited(edit, seed: int = 3) -> bytes:
    """A compiled convolution with `edit(commands, words)` applied to its stream."""
    build = nets.NetworkBuilder(np.random.default_rng(seed))
    compiled = nets.compile_in_process(build.finish(build.conv(build.input(16, 16, 16), 8)))
    before = NpuNetwork(compiled).container.npu_operators[0].words
    words = before.copy()
    edit(command_words.decode(before), words)
    return compiled.replace(before.tobytes(), words.tobytes())


def _set(name: str, param: int | None = None, payload: int | None = None):
    """An edit that changes the first command of this name."""

    def edit(listing, words):
        at = next(c.position.byte // 4 for c in listing if c.name == name)
        if param is not None:
            words[at] = words[at] & 0xFFFF | param << 16
        if payload is not None:
            words[at + 1] = payload

    return edit


def _forget(name: str):
    """An edit that turns the commands of this name into repeated BLOCKDEP writes."""

    def edit(listing, words):
        for command in listing:
            if command.name == name:
                at = command.position.byte // 4
                words[at : at + (2 if command.payload is not None else 1)] = 303

    return edit


class TestStrictness:
    @pytest.mark.parametrize(
        ("edit", "kind", "message"),
        [
            (_forget("KERNEL_STRIDE"), CommandError, "needs register KERNEL_STRIDE, which no"),
            (_forget("OFM_BASE0"), CommandError, "needs register OFM_BASE0"),
            (_forget("OP_STOP"), CommandError, "ends without OP_STOP"),
            (_forget("OP_DMA_START"), MemoryAccessError, "that nothing has written"),
            (_forget("OP_DMA_WAIT"), MemoryAccessError, "may still be copying"),
            (_set("IFM_BASE0", payload=1 << 20), MemoryAccessError, "IFM of shape"),
            (_set("OFM_BASE0", payload=1 << 20), MemoryAccessError, "OFM of shape"),
            (_set("OFM_REGION", 0), CommandError, "read-only"),
            (_set("OFM_REGION", 7), CommandError, "names region 7"),
            (_set("OFM_STRIDE_Y", payload=0), MemoryAccessError, "overlap"),
            (_set("WEIGHT_LENGTH", payload=1 << 24), CommandError, "weights takes bytes"),
            (_set("SCALE_LENGTH", payload=10), CommandError, "8 channels need 80 bytes"),
            (_set("OFM_PRECISION", 0x47), CommandError, "OFM_PRECISION is none of"),
            (_set("KERNEL_STRIDE", 0x8004), CommandError, "KERNEL_STRIDE has unknown bits"),
            (_set("ACC_FORMAT", 2), CommandError, "ACC_FORMAT is 0"),
            (_set("IFM_UPSCALE", 3), CommandError, "IFM_UPSCALE is 0, 1 or 2"),
        ],
    )
    def test_says_what_and_where(self, edit, kind, message):
        with pytest.raises(kind, match=message):
            NpuNetwork(_edited(edit))

    def test_the_message_gives_the_commands_position(self):
        with pytest.raises(NpuError, match=r"command \d+ \(OP_CONV, byte 0x[0-9a-f]+ of the str"):
            NpuNetwork(_edited(_forget("IFM_DEPTH_M1")))

    def test_an_unknown_command(self):
        def edit(listing, words):
            words[listing[3].position.byte // 4] = 0x1FF

        with pytest.raises(CommandError, match=r"command 3 .*no such command on an Ethos-U55"):
            NpuNetwork(_edited(edit))

    def test_an_output_over_its_own_input(self):
        def edit(listing, words):
            place = {c.name: c for c in reversed(listing)}
            base = int(words[place["IFM_BASE0"].position.byte // 4 + 1])
            words[place["OFM_BASE0"].position.byte // 4 + 1] = base + 16

        with pytest.raises(MemoryAccessError, match="overwrites IFM while it is read"):
            NpuNetwork(_edited(edit))

    def test_a_limit_on_work(self):
        with pytest.raises(WorkLimitError, match="the limit is 1000"):
            NpuNetwork(nets.compile_in_process(nets.random_network(1)), work_limit=1000)

    def test_an_accumulator_that_overflows(self, monkeypatch):
        # Vela refuses weights that could overflow 32 bits, so the accumulator is made smaller.
        build = nets.NetworkBuilder(np.random.default_rng(3))
        model = build.finish(build.conv(build.input(8, 8, 32), 8))
        network = NpuNetwork(nets.compile_in_process(model))
        small = [
            dataclasses.replace(op, accumulator_bits=12) if op.kind == "CONV" else op
            for op in network.operations
            if not isinstance(op, Dma)
        ]
        dma = [op for op in network.operations if isinstance(op, Dma)]
        monkeypatch.setattr(network, "_programs", [[*dma, *small]])
        inputs = nets.random_inputs(network, 1)
        with pytest.raises(AccumulatorOverflowError, match=r"OP_CONV.*overflows its 12 bits"):
            network.run(inputs)


def test_an_input_that_nothing_takes():
    keras.utils.set_random_seed(0)
    image, besides = keras.Input(IMAGE), keras.Input(VECTOR)
    tiny = udc_tf.compact(keras.Model([image, besides], head(conv(image))))
    check_arrives(tiny, [noise(IMAGE), noise(VECTOR)])
