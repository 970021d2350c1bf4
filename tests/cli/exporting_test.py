"""`udc-export` when it cannot: one line that says why, a non-zero exit, nothing half-written."""

import keras
import numpy as np
import pytest
from keras import layers as kl

from udc_tf.cli import commands, exporting
from udc_tf.cli.options import Options, resolve
from udc_tf.cli.workdir import WorkDir


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
