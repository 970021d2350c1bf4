"""Arm's own inference runner as the witness: its TFLM, its driver, our executor as its NPU."""

import contextlib
import os
import pathlib
import shutil
import signal
import time

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import udc_tf
from tests.support import npu_networks as nets
from tests.support.paths import SHARED
from udc_tf import models
from udc_tf.export import run_main
from udc_tf.export.npu import NpuError, NpuNetwork, container
from udc_tf.export.runners import (
    RunFailedError,
    RunnerUnavailableError,
    elf,
    guest_printf,
    inference_runner,
    run,
)
from udc_tf.export.runners.arm import ArmRunner
from udc_tf.export.runners.emulator import SIMULATOR, Emulator

ANCHORS = SHARED / "anchors" / "mlperf_tiny"
needs_arm = pytest.mark.skipif(
    bool(ArmRunner().unavailable()), reason=str(ArmRunner().unavailable())
)


def compiled(folder: pathlib.Path, model: bytes, *arguments, **options) -> pathlib.Path:
    """A file that Vela made of `model`."""
    path = folder / "net_vela.tflite"
    path.write_bytes(nets.compile_in_process(model, *arguments, **options))
    return path


def equals_tflm(path: pathlib.Path, model: bytes, count: int = 1):
    """Runs `count` random inputs on `arm`; its result, whose outputs equal TFLM's."""
    network = NpuNetwork(path.read_bytes(), streams_only=True)
    inputs = nets.random_inputs(network, count)
    result = run(path, inputs, on="arm")
    for got, want in zip(result.outputs, nets.run_tflm(model, inputs), strict=True):
        np.testing.assert_array_equal(got.ravel(), want.ravel())
    return result


def small_network(seed: int = 3) -> bytes:
    """Two inputs and two outputs."""
    build = nets.NetworkBuilder(np.random.default_rng(seed))
    x, y = build.input(6, 5, 4), build.input(6, 5, 4)
    z = build.conv(build.binary("add", x, y), 9)
    return build.finish(z, build.mean(z))


def mobilenet() -> bytes:
    """MobileNetV1's shape: depthwise and pointwise layers by turns."""
    build = nets.NetworkBuilder(np.random.default_rng(1))
    x = build.conv(build.input(48, 48, 3), 8, kernel=(3, 3), stride=(2, 2), act=nets.RELU6)
    for filters, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2)):
        x = build.depthwise(x, kernel=(3, 3), stride=(stride, stride), act=nets.RELU6)
        x = build.conv(x, filters, kernel=(1, 1), act=nets.RELU6)
    return build.finish(build.softmax(build.dense(build.mean(x), 2)))


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> pathlib.Path:
    return compiled(tmp_path_factory.mktemp("arm"), small_network())


@needs_arm
class TestEqualsTflm:
    @pytest.mark.parametrize("accelerator", nets.ACCELERATORS)
    @pytest.mark.parametrize("name", ["resnet8_cifar10_int8", "dscnn_kws_int8"])
    def test_mlperf_tiny(self, name, accelerator, tmp_path):
        source = ANCHORS / f"{name}.tflite"
        if not source.is_file():
            pytest.skip(f"needs {source.name} in ../shared")
        model = source.read_bytes()
        result = equals_tflm(compiled(tmp_path, model, accelerator), model)
        assert "Operator 0: ethos-u" in result.notes
        assert f"NPU TOTAL: {result.cycles} cycles" in result.notes
        assert result.cycles_estimated and any("estimate" in note for note in result.notes)

    def test_mobilenet(self, tmp_path):
        equals_tflm(compiled(tmp_path, mobilenet()), mobilenet())

    def test_what_a_search_exports(self, tmp_path):
        # The demo's network and steps, without its training.
        search = udc_tf.make_searchable(models.small_cnn(), "ethos_u55", udc_tf.Flash("24KiB"))
        images = np.random.default_rng(0).normal(size=(8, 8, 8, 1)).astype("float32")
        files = udc_tf.export.export(search.architecture().build(), tmp_path, calibration=images)
        golden = {path.stem: np.load(path)[:2] for path in (tmp_path / "golden").glob("*.npy")}
        result = run(files.vela_path, [golden["input_0"]], on="arm")
        np.testing.assert_array_equal(result.outputs[0], golden["output_0"])
        assert result.cycles == pytest.approx(files.manifest["estimated_cycles"], rel=0.1)

    def test_several_inputs_outputs_and_cases(self, small):
        result = equals_tflm(small, small_network(), count=2)
        assert [output.shape for output in result.outputs] == [(2, 6, 5, 9), (2, 1, 1, 9)]

    def test_operators_on_the_cpu_between_those_of_the_npu(self, tmp_path):
        model = nets.random_network(7)
        path = compiled(tmp_path, model, extra=("--ignore-ops", "AVERAGE_POOL_2D"))
        with pytest.raises(NpuError, match="AVERAGE_POOL_2D"):
            NpuNetwork.load(path)  # ours does not have it; Arm's TFLM does
        result = equals_tflm(path, model)
        assert sum("ethos-u" in note for note in result.notes) == 3
        assert "Operator 1: AVERAGE_POOL_2D" in result.notes


@needs_arm
class TestRefusals:
    """Arm's runner in its words, ours beside them."""

    def told(self, path: pathlib.Path, **options) -> str:
        started = time.monotonic()
        inputs = []
        with contextlib.suppress(NpuError):  # a damaged file has no inputs to speak of
            graph = container.parse(path.read_bytes())
            inputs = [np.zeros(graph.tensors[i].shape, np.int8) for i in graph.inputs]
        with pytest.raises(RunFailedError) as error:
            run(path, inputs, on="arm", timeout=30, **options)
        assert time.monotonic() - started < 60
        return str(error.value)

    def test_another_configuration(self, small):
        text = self.told(small, accelerator="ethos-u55-256")
        assert "NPU config mismatch. npu.macs_per_cc=8, optimizer.macs_per_cc=7" in text
        assert "udc-tf: the network is compiled for ethos-u55-128, the NPU shown is an" in text

    def test_another_product(self, tmp_path):
        source = tmp_path / "net.tflite"
        source.write_bytes(small_network())
        path = udc_tf.export.compile_with_vela(source, tmp_path, "ethos-u65-256").path
        text = self.told(path)
        assert "NPU config mismatch. npu.product=0, optimizer.product=1" in text
        assert "udc-tf: the network is compiled for ethos-u65-256, the NPU shown is an" in text

    def test_another_payload(self, tmp_path):
        text = self.told(compiled(tmp_path, small_network(), extra=("--cop-format", "COP2")))
        assert "Custom Operator Payload" in text and "expected 31504f43" in text
        assert "udc-tf: its driver takes the payload COP1, the file holds COP2" in text

    def test_an_arena_that_does_not_fit(self, tmp_path):
        build = nets.NetworkBuilder(np.random.default_rng(0))
        model = build.finish(build.conv(build.input(320, 320, 16), 16, kernel=(1, 1)))
        text = self.told(compiled(tmp_path, model))
        assert "TFLM - Failed to resize buffer. Requested: " in text
        assert "udc-tf: the network's tensors take 3277088 bytes; the runner has 2097152" in text

    def test_a_truncated_file(self, small, tmp_path):
        path = tmp_path / "net_vela.tflite"
        path.write_bytes(small.read_bytes()[:1000])
        text = self.told(path)
        assert "Arm's runner: " in text and "ERROR - Failed to initialise model" in text
        assert "udc-tf: the TFLite file is damaged" in text

    def test_a_command_that_makes_no_sense(self, small, tmp_path):
        data = bytearray(small.read_bytes())
        stop = data.rindex(b"\x00\x00\xff\xff", data.index(b"COP1"))
        data[stop : stop + 4] = b"\xff\x03\x00\x00"
        path = tmp_path / "net_vela.tflite"
        path.write_bytes(bytes(data))
        text = self.told(path)
        assert "NPU status=0x00000010" in text and "ERROR - Inference failed." in text
        assert "no such command on an Ethos-U55" in text

    def test_udc_run_shows_both(self, small, tmp_path, capsys):
        path = tmp_path / "net_vela.tflite"
        path.write_bytes(small.read_bytes()[:1000])
        if not flags.FLAGS.is_parsed():
            flags.FLAGS(["udc-run"])
        with flagsaver.flagsaver(model=str(path), on=["npu", "arm"]):
            assert run_main.main(["udc-run"]) == 2
        out = capsys.readouterr().out
        assert "npu: failed: the TFLite file is damaged" in out
        assert "Arm's runner: " in out and "udc-tf: the TFLite file is damaged" in out


@needs_arm
class TestTime:
    def test_a_time_limit_ends_the_emulator(self, small):
        inputs = nets.random_inputs(NpuNetwork.load(small), 1)
        with pytest.raises(RunFailedError, match=r"in time|debug socket"):
            run(small, inputs, on="arm", timeout=0.05)

    @pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
    def test_the_emulator_does_not_outlive_a_killed_command(self, tmp_path):
        reader, writer = os.pipe()
        command = os.fork()  # a new Python would take seconds to import what this one has
        if command == 0:
            with Emulator(inference_runner.find(), tmp_path / "log", 60) as board:
                os.write(writer, str(board.process.pid).encode())
                time.sleep(60)
            os._exit(0)
        emulator = pathlib.Path("/proc", os.read(reader, 16).decode(), "cmdline")
        started = SIMULATOR.encode() in emulator.read_bytes()
        os.kill(command, signal.SIGKILL)
        os.waitpid(command, 0)
        os.close(reader)
        os.close(writer)
        deadline = time.monotonic() + 5
        while emulator.exists() and emulator.read_bytes():  # a zombie's is empty
            assert time.monotonic() < deadline, "the emulator lives on"
            time.sleep(0.02)
        assert started


class TestHeard:
    """What a guest is about to print, from a picture of its registers and memory."""

    class Guest:
        def __init__(self, words: tuple[int, ...], stack: tuple[int, ...], texts: dict[int, bytes]):
            self._registers = (0, *words, *[0] * 9, 0x5000, 0, 0)
            self._stack = stack
            self._texts = texts

        def registers(self):
            return self._registers

        def read_word(self, address):
            return self._stack[(address - 0x5000) // 4]

        def read(self, address, count):
            begin = max(start for start in self._texts if start <= address)
            return (self._texts[begin] + bytes(999))[address - begin :][:count]

    def test_converts_as_c_does(self):
        texts = {0x100: b"%s:%d: 100%% of 0x%08lx, %u and %c\n", 0x200: b"file.c"}
        guest = self.Guest((0x100, 0x200, 0xFFFFFFFE), (0x1F, 7, ord("x")), texts)
        assert guest_printf.printed(guest) == "file.c:-2: 100% of 0x0000001f, 7 and x\n"

    def test_pairs_are_aligned(self):
        guest = self.Guest((0x100, 1, 99), (5, 2, 0xFFFFFFFF), {0x100: b"%d 0x%llx %i"})
        assert guest_printf.printed(guest) == "1 0x200000005 -1"


class TestSymbols:
    def test_names_what_is_wrong(self, tmp_path):
        path = tmp_path / "program"
        for data, told in ((b"no ELF", "not a 32-bit"), (b"\x7fELF\x01\x01", "is damaged")):
            path.write_bytes(data)
            with pytest.raises(RunFailedError, match=told):
                elf.symbols(path, ["main"])

    @pytest.mark.skipif(bool(inference_runner.missing()), reason=str(inference_runner.missing()))
    def test_finds_functions_and_says_what_it_lacks(self):
        found = elf.symbols(inference_runner.find(), ["ethosu_init"], optional=["no_such"])
        assert found.keys() == {"ethosu_init"} and found["ethosu_init"] % 2 == 0
        with pytest.raises(RunFailedError, match="has no symbol no_such"):
            elf.symbols(inference_runner.find(), ["no_such"])


class TestAvailability:
    def test_says_how_to_get_it(self, small, monkeypatch):
        monkeypatch.setattr(inference_runner, "PACKAGE", "no-such-package")
        reason = inference_runner.missing()
        assert "pip install 'udc-tf[arm]'" in reason
        assert "there is no file 'elsewhere.axf'" in inference_runner.missing("elsewhere.axf")
        monkeypatch.setenv("PATH", "")
        with pytest.raises(RunnerUnavailableError, match="apt-get install qemu-system-arm"):
            run(small, [], on="arm")

    def test_names_the_accelerators(self):
        with pytest.raises(ValueError, match=r"an Ethos-U55\. Received: 'ethos-u65-256'"):
            ArmRunner(accelerator="ethos-u65-256")
