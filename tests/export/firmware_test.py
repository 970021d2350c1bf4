"""The firmware: built with Debian's compiler, booted on QEMU, and what it says."""

import json
import pathlib
import sys

import numpy as np
import pytest

from tests.support import npu_networks as nets
from tests.support.paths import ROOT, SHARED
from udc_tf.export.npu import NpuError, NpuNetwork, UnsupportedOperatorError
from udc_tf.export.runners import (
    RunFailedError,
    RunnerUnavailableError,
    inference_runner,
    run,
)
from udc_tf.export.runners.firmware import build_firmware, compiler_missing
from udc_tf.export.runners.fvp import APPLICATIONS, FvpRunner
from udc_tf.export.runners.qemu import QemuRunner
from udc_tf.export.runners.uart_report import parse_log

RESNET8 = SHARED / "anchors/mlperf_tiny/resnet8_cifar10_int8.tflite"
needs_compiler = pytest.mark.skipif(bool(compiler_missing()), reason=str(compiler_missing()))
needs_qemu = pytest.mark.skipif(
    bool(QemuRunner().unavailable()), reason=str(QemuRunner().unavailable())
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> pathlib.Path:
    """A small network with two inputs and two outputs."""
    build = nets.NetworkBuilder(np.random.default_rng(3))
    x, y = build.input(6, 5, 4), build.input(6, 5, 4)
    z = build.conv(build.binary("add", x, y), 9)
    path = tmp_path_factory.mktemp("firmware") / "net_vela.tflite"
    path.write_bytes(nets.compile_in_process(build.finish(z, build.mean(z))))
    return path


class TestQemu:
    @needs_qemu
    @pytest.mark.skipif(not RESNET8.is_file(), reason=f"needs {RESNET8.name} in ../shared")
    def test_boots_resnet8_and_passes(self, tmp_path):
        model = RESNET8.read_bytes()
        path = tmp_path / "resnet8_vela.tflite"
        path.write_bytes(nets.compile_in_process(model))
        inputs = nets.random_inputs(NpuNetwork.load(path), 2)
        golden = nets.run_tflm(model, inputs)
        result = run(path, inputs, on="qemu", golden=golden, folder=tmp_path / "kept")
        assert result.notes[0] == "PASS"
        np.testing.assert_array_equal(result.outputs[0], golden[0])
        assert result.cycles_estimated and result.cycles > 100_000
        assert result.arena_bytes > 32 * 32 * 16
        log = (tmp_path / "kept" / "uart.log").read_text("ascii")
        assert "\nPASS\n" in log.replace("\r", "") and "EXITTHESIM" in log

    @needs_qemu
    def test_several_inputs_and_outputs(self, compiled):
        network = NpuNetwork.load(compiled)
        inputs = nets.random_inputs(network, 2)
        result = run(compiled, inputs, on="qemu")
        for got, want in zip(result.outputs, network.run(inputs), strict=True):
            np.testing.assert_array_equal(got, want)

    @needs_qemu
    def test_says_where_it_differs(self, compiled):
        network = NpuNetwork.load(compiled)
        inputs = nets.random_inputs(network, 2)
        golden = [array.copy() for array in network.run(inputs)]
        golden[1].reshape(2, -1)[1, 4] ^= 3
        result = run(compiled, inputs, on="qemu", golden=golden)
        assert result.notes[0].startswith("FAIL: case 1, output 1 byte 4 expected")

    @needs_qemu
    def test_without_an_npu_it_says_so_and_has_its_own_code(self, compiled):
        inputs = nets.random_inputs(NpuNetwork.load(compiled), 1)
        with pytest.raises(RunFailedError, match=r"code 3: .*NO NPU: its ID register reads 0"):
            run(compiled, inputs, on="qemu", attach=False)

    @needs_qemu
    def test_another_npu_than_compiled_for_is_refused(self, compiled):
        inputs = nets.random_inputs(NpuNetwork.load(compiled), 1)
        with pytest.raises(RunFailedError, match=r"code 4: .*MACs per cycle: 128, this NPU has 32"):
            run(compiled, inputs, on="qemu", macs=32)

    @needs_qemu
    def test_a_time_limit_ends_the_emulator(self, compiled):
        inputs = nets.random_inputs(NpuNetwork.load(compiled), 1)
        with pytest.raises(RunFailedError, match=r"in time|debug socket"):
            run(compiled, inputs, on="qemu", timeout=0.001)


class TestBuild:
    @needs_compiler
    def test_a_large_arena_goes_to_ddr(self, tmp_path):
        build = nets.NetworkBuilder(np.random.default_rng(0))
        model = build.finish(build.conv(build.input(320, 320, 16), 16, kernel=(1, 1)))
        network = NpuNetwork(nets.compile_in_process(model))
        assert network.arena_bytes > 2 << 20
        inputs = nets.random_inputs(network, 1)
        elf = build_firmware(network, inputs, network.run(inputs), tmp_path)
        assert elf.read_bytes()[:4] == b"\x7fELF"
        assert ".arena_ddr" in (tmp_path / "network_data.c").read_text()
        assert not list(tmp_path.glob("*.part"))

    def test_refuses_a_payload_that_drivers_refuse(self, compiled, tmp_path):
        build = nets.NetworkBuilder(np.random.default_rng(4))
        model = build.finish(build.conv(build.input(8, 8, 3), 5))
        network = NpuNetwork(nets.compile_in_process(model, extra=("--cop-format", "COP2")))
        with pytest.raises(NpuError, match=r"take the payload COP1: .* Received: COP2"):
            build_firmware(network, [], [], tmp_path)

    def test_refuses_cpu_operators(self, tmp_path):
        build = nets.NetworkBuilder(np.random.default_rng(4))
        x = build.conv(build.input(8, 8, 3), 12)
        model = build.finish(build.conv(build.pool(x, average=False), 5))
        compiled = nets.compile_in_process(model, extra=("--ignore-ops", "MAX_POOL_2D"))
        with pytest.raises(UnsupportedOperatorError, match="MAX_POOL_2D"):
            build_firmware(NpuNetwork(compiled), [], [], tmp_path)


def _log(network: NpuNetwork, outputs, result="PASS", code=0, cycles=4321) -> str:
    """The UART log of a firmware that gives `outputs`."""
    lines = ["udc-tf firmware: cases 1, arena bytes 100", f"CASE 0 CYCLES {cycles}"]
    for number, array in enumerate(outputs):
        lines.append(f"CASE 0 OUTPUT {number} {array.tobytes().hex()}")
    return "\r\n".join([*lines, result, f"EXIT {code}", "\x04EXITTHESIM", ""])


class TestReport:
    def test_reads_outputs_and_cycles(self, compiled):
        network = NpuNetwork.load(compiled)
        outputs = network.run(nets.random_inputs(network, 1))
        report = parse_log(_log(network, outputs), network, 1)
        assert report.passed and report.cycles == 4321 and report.mismatch is None
        np.testing.assert_array_equal(report.outputs[0], outputs[0])

    def test_a_log_without_an_end_is_no_result(self, compiled):
        network = NpuNetwork.load(compiled)
        with pytest.raises(RunFailedError, match=r"did not come to its end.*booting"):
            parse_log("booting\n", network, 1)

    def test_pass_needs_the_outputs(self, compiled):
        network = NpuNetwork.load(compiled)
        with pytest.raises(RunFailedError, match="output 0 of case 0 should have"):
            parse_log(_log(network, []), network, 1)

    def test_contradictions_are_no_result(self, compiled):
        network = NpuNetwork.load(compiled)
        outputs = network.run(nets.random_inputs(network, 1))
        with pytest.raises(RunFailedError, match="contradicts itself"):
            parse_log(_log(network, outputs, "FAIL", 0), network, 1)

    @pytest.mark.parametrize("code", [2, 3, 4, 5])
    def test_other_codes_are_errors(self, compiled, code):
        with pytest.raises(RunFailedError, match=f"ended with code {code}"):
            parse_log(f"NPU ERROR\nEXIT {code}\n", NpuNetwork.load(compiled), 1)


@pytest.fixture
def fake(tmp_path, monkeypatch, compiled):
    """The fake model on PATH under the real one's name, and its log."""
    script = tmp_path / "FVP_Corstone_SSE-300_Ethos-U55"
    source = ROOT / "tests" / "support" / "fake_fvp.py"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{source}" "$@"\n')
    script.chmod(0o755)
    network = NpuNetwork.load(compiled)
    inputs = nets.random_inputs(network, 1)
    log = tmp_path / "log"
    log.write_text(_log(network, network.run(inputs)))
    monkeypatch.setenv("FAKE_FVP_LOG", str(log))
    monkeypatch.setenv("FAKE_FVP_SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


class TestFvpWithTheFake:
    """No model of Arm's runs here: these tests see the runner's side only."""

    @needs_compiler
    def test_runs_headless_and_returns_outputs_and_cycles(self, fake, compiled):
        network = NpuNetwork.load(compiled)
        inputs = nets.random_inputs(network, 1)
        result = run(compiled, inputs, on="fvp", application="firmware", timeout=5)
        np.testing.assert_array_equal(result.outputs[0], network.run(inputs)[0])
        assert result.cycles == 4321
        assert result.notes[0] == "PASS" and "simulated time 0.0125 s" in result.notes[1]
        seen = json.loads((fake / "seen").read_text())
        assert seen["ethosu.num_macs"] == "128"
        assert seen["mps3_board.visualisation.disable-visualisation"] == "1"
        assert seen["mps3_board.uart0.shutdown_tag"] == "EXITTHESIM"
        assert seen["--timelimit"] == "5" and "--stat" in seen["rest"]

    @needs_compiler
    def test_its_exit_status_proves_nothing(self, fake, compiled):
        (fake / "log").write_text("NPU ERROR: status 0x00000014\nEXIT 2\n")
        inputs = nets.random_inputs(NpuNetwork.load(compiled), 1)
        with pytest.raises(RunFailedError, match="status 0x00000014"):
            run(compiled, inputs, on="fvp", application="firmware")

    @needs_compiler
    def test_a_hanging_model_is_ended(self, fake, compiled, monkeypatch):
        monkeypatch.setenv("FAKE_FVP_HANG", "1")
        monkeypatch.setattr("udc_tf.export.runners.fvp._MARGIN", 0.5)
        inputs = nets.random_inputs(NpuNetwork.load(compiled), 1)
        with pytest.raises(RunFailedError, match=r"was ended after 1 s"):
            run(compiled, inputs, on="fvp", application="firmware", timeout=0.5)

    @needs_compiler
    def test_num_macs_has_to_be_the_networks(self, fake, compiled):
        runner = FvpRunner(num_macs=256)
        with pytest.raises(ValueError, match=r"compiled for, 128\. Received: 256"):
            runner.load(compiled)


@pytest.mark.skipif(bool(inference_runner.missing()), reason=str(inference_runner.missing()))
class TestFvpWithTheFakeAndArmsRunner:
    """What Arm's runner says on QEMU, replayed as if a model had said it."""

    LINES = (
        "INFO - Activation buffer (a.k.a tensor arena) size used: 1234",
        "INFO - \tOperator 0: ethos-u",
        "INFO - 2 input tensor/s populated with 240 bytes with data read from 0x92000000",
        "INFO - NPU TOTAL: 777 cycles",
        "INFO - 2 output tensor/s worth 279 bytes copied to 0x93000000",
        "INFO - Inference completed.",
    )

    def test_loads_network_and_inputs_and_takes_the_outputs(self, fake, compiled, monkeypatch):
        network = NpuNetwork.load(compiled)
        inputs = nets.random_inputs(network, 2)
        want = network.run(inputs)
        (fake / "memory").write_bytes(b"".join(array[0].tobytes() for array in want))
        (fake / "log").write_text("\r\n".join(self.LINES))
        monkeypatch.setenv("FAKE_FVP_DUMP", str(fake / "memory"))
        result = run(compiled, inputs, on="fvp", timeout=5)
        for got, array in zip(result.outputs, want, strict=True):
            np.testing.assert_array_equal(got[0], array[0])
        assert result.cycles == 777 and not result.cycles_estimated
        assert result.arena_bytes == 1234 and "Operator 0: ethos-u" in result.notes
        seen = json.loads((fake / "seen").read_text())
        assert seen["-a"].endswith("mlek_inference_runner.axf")
        assert seen["data"]["0x90000000"] == compiled.read_bytes().hex()
        assert seen["data"]["0x92000000"] == b"".join(a[1].tobytes() for a in inputs).hex()
        assert seen["--dump"].endswith("@0x93000000,279") and seen["ethosu.num_macs"] == "128"

    @pytest.mark.parametrize("line, told", [(5, "not completed"), (2, "should have read 2")])
    def test_a_log_that_lacks_a_line_is_no_result(self, fake, compiled, line, told):
        lines = [*self.LINES[:line], "ERROR - Invoke failed.", *self.LINES[line + 1 :]]
        (fake / "log").write_text("\n".join(lines))
        inputs = nets.random_inputs(NpuNetwork.load(compiled), 1)
        with pytest.raises(RunFailedError, match=rf"{told}.*ERROR - Invoke failed\."):
            run(compiled, inputs, on="fvp")


class TestFvp:
    def test_says_why_it_is_not_available(self, compiled, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(RunnerUnavailableError, match="'fvp' is not available because neither"):
            run(compiled, [], on="fvp")
        with pytest.raises(RunnerUnavailableError, match="there is no executable 'elsewhere'"):
            run(compiled, [], on="fvp", fvp="elsewhere")

    def test_names_its_applications(self):
        with pytest.raises(ValueError, match=r"one of arm, firmware\. Received: 'mine'"):
            FvpRunner(application="mine")

    @pytest.mark.skipif(
        bool(FvpRunner().unavailable()), reason=f"needs the model: {FvpRunner().unavailable()}"
    )
    @pytest.mark.parametrize("application", APPLICATIONS)
    def test_the_real_model_agrees_with_the_executor(self, compiled, application):
        network = NpuNetwork.load(compiled)
        inputs = nets.random_inputs(network, 1)
        result = run(compiled, inputs, on="fvp", application=application)
        np.testing.assert_array_equal(result.outputs[0], network.run(inputs)[0])
        assert result.cycles > 0 and not result.cycles_estimated
