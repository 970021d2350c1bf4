"""`udc-export` when it cannot: one line that says why, a non-zero exit, nothing half-written."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers as kl

from udc_tf.cli import commands, exporting
from udc_tf.cli.options import Options, resolve
from udc_tf.cli.workdir import WorkDir
from udc_tf.export.runners.tflm import TflmRunner


@pytest.fixture
def work(tmp_path, capsys):
    """A work directory with a network for the digits that is not compiled yet."""
    folder = tmp_path / "run"
    assert _export(folder) == 2 and not folder.exists()  # the network is missing
    capsys.readouterr()
    run = resolve(Options(recipe="digits"))
    WorkDir.open(str(folder)).begin("search", run.sections(), run.options.given(), "udc-search")
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 1))
    x = kl.GlobalAveragePooling2D()(kl.Conv2D(8, 3, activation="relu")(inputs))
    keras.Model(inputs, kl.Dense(10)(x)).save(folder / "network.keras")
    return folder


def _export(folder, *flags) -> int:
    command = ["udc-export", "--recipe=digits", f"--workdir={folder}", *flags]
    return commands.main("udc-export", command, say=lambda text: None)


def _fails(capsys, folder, message: str, *flags) -> None:
    assert _export(folder, *flags) in (1, 2)
    lines = capsys.readouterr().err.strip().splitlines()
    said = [line for line in lines if line.startswith("udc-export: ")]
    assert len(said) == 1 and message in said[0], lines
    artefacts = folder / "artefacts"
    assert not artefacts.exists() or not list(artefacts.iterdir())


class TestExportErrors:
    def test_impossible_budget(self, work, capsys):
        _fails(capsys, work, "does not fit: it needs", "--flash=2000B")

    def test_corrupted_network(self, work, capsys):
        (work / "network.keras").write_bytes(b"not a network")
        _fails(capsys, work, "network.keras", "--flash=32KiB")

    def test_truncated_network(self, work, capsys):
        content = (work / "network.keras").read_bytes()
        (work / "network.keras").write_bytes(content[: len(content) // 2])
        _fails(capsys, work, "network.keras", "--flash=32KiB")

    def test_calibration_with_nan(self, work, capsys, monkeypatch):
        # No data set of ours has any; a loader of the user's own might.
        broken = np.full((4, 8, 8, 1), np.nan, np.float32)
        monkeypatch.setattr(exporting, "calibration_inputs", lambda data: broken)
        _fails(capsys, work, "NaN", "--flash=32KiB")


class TestAgreement:
    def test_an_artefact_that_was_damaged_is_made_again(self, work, capsys, monkeypatch):
        said = []
        monkeypatch.setattr(commands, "_report", lambda *args: None)  # it needs a search

        def export():
            command = ["udc-export", "--recipe=digits", f"--workdir={work}", "--flash=32KiB"]
            command += ["--examples=60", "--runners=tflm"]
            assert commands.main("udc-export", command, say=said.append) == 0, capsys.readouterr()
            return "\n".join(said)

        assert "on 60 test examples" in export()  # there are no more; the default asks for 64
        path = work / "artefacts" / "model_vela.tflite"
        content = path.read_bytes()
        said.clear()
        assert "done before" in export()
        path.write_bytes(content[:100])
        said.clear()
        again = export()
        assert "model_vela.tflite is damaged or missing" in again and "done before" not in again
        assert path.read_bytes() == content

    def test_scores_or_outputs_that_are_far_apart_are_an_error(self, work, capsys, monkeypatch):
        run = TflmRunner.run

        def wrong(self, inputs):
            ran = run(self, inputs)
            return dataclasses.replace(ran, outputs=[-1 - o for o in ran.outputs])

        monkeypatch.setattr(exporting, "make_runner", lambda name: _Wrong())
        monkeypatch.setattr(_Wrong, "run", wrong)
        assert _export(work, "--flash=32KiB", "--runners=tflm", "--examples=60") == 1
        error = capsys.readouterr().err
        assert "udc-export: tflm does not compute what the Keras model does: accuracy" in error
        assert not (work / "artefacts").exists()


class _Wrong(TflmRunner):
    """A runner whose outputs are upside down."""
