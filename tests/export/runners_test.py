"""The runners' contract, the table that compares them, and udc-run."""

import pathlib

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import udc_tf
from tests.support import npu_networks as nets
from udc_tf.export import run_main, runners
from udc_tf.export.npu import NpuError, NpuNetwork
from udc_tf.export.runners.comparison import Row, compare, first_difference, table


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[pathlib.Path, pathlib.Path]:
    """A network before and after Vela."""
    folder = tmp_path_factory.mktemp("runners")
    model = nets.random_network(6)
    before, after = folder / "net.tflite", folder / "net_vela.tflite"
    before.write_bytes(model)
    after.write_bytes(nets.compile_in_process(model))
    return before, after


@pytest.fixture(scope="module")
def inputs(files) -> list[np.ndarray]:
    return nets.random_inputs(NpuNetwork.load(files[1]), 3)


class TestRun:
    def test_npu_equals_tflm(self, files, inputs):
        tflm = udc_tf.export.run(files[0], inputs, on="tflm")
        npu = udc_tf.export.run(files[1], inputs[0], on="npu")
        np.testing.assert_array_equal(npu.outputs[0], tflm.outputs[0])
        assert npu.outputs[0].shape[0] == 3 and npu.outputs[0].dtype == np.int8
        assert tflm.arena_bytes > 0 and npu.arena_bytes > 0
        assert npu.cycles > 0 and npu.cycles_estimated and npu.seconds > 0

    def test_tflite_is_close(self, files, inputs):
        tflm = runners.run(files[0], inputs, on="tflm").outputs[0]
        desktop = runners.run(files[0], inputs, on="tflite")
        assert desktop.outputs[0].shape == tflm.shape
        assert "one step" in desktop.notes[0]

    def test_names_the_runners(self, files, inputs):
        with pytest.raises(ValueError, match=r"npu, qemu, arm, fvp\. Received: 'board'"):
            runners.run(files[1], inputs, on="board")

    def test_names_the_wrong_kind_of_file(self, files, inputs):
        with pytest.raises(NpuError, match="compile_with_vela"):
            runners.run(files[0], inputs, on="npu")
        with pytest.raises(ValueError, match="runs the network before Vela"):
            runners.run(files[1], inputs, on="tflm")

    @pytest.mark.parametrize("on", ["tflite", "tflm"])
    def test_names_wrong_inputs(self, files, inputs, on):
        with pytest.raises(ValueError, match="takes int8 of shape"):
            runners.run(files[0], [inputs[0].astype(np.float32)], on=on)
        with pytest.raises(ValueError, match=r"has 1 inputs\. Received: 2"):
            runners.run(files[0], [inputs[0], inputs[0]], on=on)

    def test_every_runner_keeps_the_contract(self):
        for name in runners.RUNNERS:
            runner = runners.make_runner(name)
            assert runner.name == name
            reason = runner.unavailable()
            assert reason is None or len(reason) > 20


class TestComparison:
    def test_compares_with_the_golden(self, files, inputs):
        golden = runners.run(files[0], inputs, on="tflm").outputs
        rows = compare(files[1], files[0], inputs, golden, names=("tflm", "npu"))
        assert [(row.runner, row.state, row.golden) for row in rows] == [
            ("tflm", "ran", "equal"),
            ("npu", "ran", "equal"),
        ]

    def test_without_a_golden_compares_with_the_first(self, files, inputs):
        rows = compare(files[1], files[0], inputs, None, names=("tflm", "npu"))
        assert [(row.equal, row.golden) for row in rows] == [(None, "-"), (True, "as tflm")]

    def test_shows_the_first_difference(self, files, inputs):
        golden = [runners.run(files[0], inputs, on="tflm").outputs[0].copy()]
        golden[0][1].reshape(-1)[0] ^= 1
        (row,) = compare(files[1], files[0], inputs, golden, names=("npu",))
        assert row.equal is False and "differ, by up to 1" in row.golden

    def test_says_why_a_runner_did_not_run(self, files, inputs, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        rows = compare(files[1], None, inputs, None, names=("tflm", "qemu", "fvp"))
        assert "no uncompiled .tflite" in rows[0].state
        assert "qemu-system-arm is not on PATH" in rows[1].state
        text = table(rows)
        assert "see below" in text and "apt-get install qemu-system-arm" in text

    def test_first_difference_of_other_shapes(self):
        assert first_difference([], [np.zeros(1)]) == "0 outputs, golden 1"
        assert "golden" in first_difference([np.zeros(2, np.int8)], [np.zeros(3, np.int8)])

    def test_table_has_a_line_a_runner(self):
        rows = [
            Row("npu", "ran", True, "equal", 0.001, None, 10),
            Row("fvp", "ran", True, "equal", 2.0, 5, 10),
        ]
        lines = table(rows).splitlines()
        assert len(lines) == 4 and lines[0].startswith("runner") and "2000.0" in lines[3]

    def test_table_names_estimates_and_shows_notes(self):
        rows = [
            Row("npu", "ran", True, "equal", 0.001, 77, 10, cycles_estimated=True),
            Row("fvp", "ran", True, "equal", 2.0, 5, 10, notes=("PASS", "by Arm's model")),
        ]
        text = table(rows)
        assert " ~77 " in text and " 5 " in text and "fvp: by Arm's model" in text
        assert "~: NPU cycles are an estimate by Vela's cost model" in text


def _only_line(capsys) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


class TestUdcRun:
    @pytest.fixture(autouse=True)
    def parsed(self):
        if not flags.FLAGS.is_parsed():
            flags.FLAGS(["udc-run"])

    def _main(self, *paths, **values) -> int:
        with flagsaver.flagsaver(**values):
            return run_main.main(["udc-run", *paths])

    def test_a_path_alone_is_the_model(self, files, capsys):
        assert self._main(str(files[1]), count=1) == 0
        assert "equal" in capsys.readouterr().out
        for paths, flag in (([str(files[1])] * 2, {}), ([str(files[1])], {"model": "a.tflite"})):
            assert self._main(*paths, **flag) == 2
            assert "takes one model" in _only_line(capsys)

    def test_missing_and_damaged_files_are_told_in_a_line(self, files, tmp_path, capsys):
        assert self._main("nowhere.tflite") == 2
        assert "nowhere.tflite" in _only_line(capsys)
        (tmp_path / "cut_vela.tflite").write_bytes(files[1].read_bytes()[:200])
        assert self._main(str(tmp_path / "cut_vela.tflite")) == 2
        (tmp_path / "golden.npz").write_bytes(b"PK damaged")
        assert self._main(str(files[1]), golden=str(tmp_path / "golden.npz")) == 2
        said = capsys.readouterr().err.splitlines()
        assert [line.startswith("udc-run: ") for line in said] == [True, True], said

    def test_draws_inputs_and_compares_with_tflm(self, files, capsys):
        assert self._main(model=str(files[1]), on=["tflm", "npu"]) == 0
        assert capsys.readouterr().out.count("equal") == 2

    def test_traces(self, files, capsys):
        assert self._main(model=str(files[1]), trace=True) == 0
        assert "The outputs equal the reference's." in capsys.readouterr().out

    def test_golden_files(self, files, inputs, tmp_path, capsys):
        golden = runners.run(files[1], inputs).outputs[0]
        np.savez(tmp_path / "golden.npz", input_0=inputs[0], output_0=golden)
        assert self._main(model=str(files[1]), golden=str(tmp_path / "golden.npz")) == 0
        (tmp_path / "golden").mkdir()
        np.save(tmp_path / "golden" / "input_0.npy", inputs[0])
        np.save(tmp_path / "golden" / "output_0.npy", golden)
        (tmp_path / "net_vela.tflite").write_bytes(files[1].read_bytes())
        assert self._main(workdir=str(tmp_path)) == 0
        assert "equal" in capsys.readouterr().out
        np.savez(tmp_path / "wrong.npz", input_0=inputs[0], output_0=golden ^ 1)
        assert self._main(model=str(files[1]), golden=str(tmp_path / "wrong.npz")) == 1
        assert "differ" in capsys.readouterr().out
        np.savez(tmp_path / "bad.npz", x=golden)
        assert self._main(model=str(files[1]), golden=str(tmp_path / "bad.npz")) == 2
        assert "--golden lacks ['input_0', 'output_0']" in capsys.readouterr().err

    def test_finds_the_model_in_a_work_directory(self, files, tmp_path, capsys):
        assert self._main(workdir=str(files[1].parent)) == 0
        assert self._main(workdir=str(tmp_path)) == 2
        assert "one *_vela.tflite" in capsys.readouterr().err
        assert self._main() == 2
        assert (
            capsys.readouterr().err == "udc-run: udc-run needs the path of a model, or --workdir\n"
        )

    def test_what_is_missing_or_damaged_is_one_line(self, files, inputs, tmp_path, capsys):
        compiled, plain = files[1], tmp_path / "net.tflite"
        model = tmp_path / "net_vela.tflite"
        golden = tmp_path / "golden.npz"
        for damage in (None, b"", b"x" * 100, compiled.read_bytes()[:2000]):
            if damage is not None:
                model.write_bytes(damage)
            assert self._main(model=str(model)) == 2
            wrong = f"There is no file {model}" if damage is None else f"{model} is damaged ("
            assert _only_line(capsys).startswith(f"udc-run: {wrong}")
        model.write_bytes(compiled.read_bytes())
        plain.write_bytes(b"nothing")
        assert self._main(model=str(model)) == 2
        assert _only_line(capsys).startswith(f"udc-run: {plain} is damaged (")
        for damage in (None, b"", b"PK\3\4"):
            if damage is not None:
                golden.write_bytes(damage)
            assert self._main(model=str(model), golden=str(golden)) == 2
            assert _only_line(capsys).startswith(f"udc-run: {golden} is damaged (")
        (tmp_path / "golden").mkdir()
        array = tmp_path / "golden" / "input_0.npy"
        np.save(array, np.array([object()]), allow_pickle=True)
        assert self._main(model=str(model)) == 2
        assert _only_line(capsys).startswith(f"udc-run: {array} is damaged (")

    def test_nothing_that_ran_is_a_failure_of_its_own(self, files, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        assert self._main(model=str(files[1]), on=["fvp"]) == 2

    def test_a_table_of_all(self, files, capsys, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))  # without simulators, to be quick
        self._main(model=str(files[1]), on=["all"], count=1)
        out = capsys.readouterr().out
        assert all(f"\n{name} " in out for name in runners.RUNNERS)
