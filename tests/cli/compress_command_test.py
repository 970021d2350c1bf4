"""`udc-compress`: from a trained file to a verified one, for one budget and for several."""

import json

import keras
import numpy as np
import pytest
from keras import layers as kl

from tests.support import networks
from tests.support.few_steps import compress_in_few_steps
from udc_tf.cli.commands import main


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A folder with trained.keras and data.npz."""
    folder = tmp_path_factory.mktemp("task")
    keras.utils.set_random_seed(0)
    model = networks.small_cnn()
    x, y = networks.blobs(256)
    model.compile("adam", networks.cross_entropy())
    model.fit(x, y, epochs=4, batch_size=16, verbose=0)
    model.save(folder / "trained.keras")
    np.savez(folder / "data.npz", x=x, y=y)
    return folder


def _run(task, *flags, say=lambda text: None):
    common = (f"--model={task}/trained.keras", f"--data={task}/data.npz", "--bits=2,4,8")
    common += ("--sparsities=0.5,1", "--runners=tflm,npu", "--verify_examples=8")
    return main("udc-compress", ["udc-compress", *common, *flags], say)


def test_several_budgets_to_verified_files_and_a_report(task, tmp_path, monkeypatch):
    compress_in_few_steps(monkeypatch)
    work, said = tmp_path / "work", []
    flags = ("--flash=3600B,4200B", f"--workdir={work}")
    assert _run(task, *flags, say=said.append) == 0
    assert any("before" in line and "after" in line for line in said)
    for name, budget in (("3600B", 3600), ("4200B", 4200)):
        results = json.loads((work / name / "results.json").read_text())
        assert results["flash_bytes"] <= budget
        npu = next(row for row in results["verification"] if row["runner"] == "npu")
        assert npu["differs_from_tflm"] == 0
        assert (work / name / "report.html").stat().st_size
    assert "3600B" in (work / "report.html").read_text()
    (work / "4200B" / "network.keras").unlink()  # as if it had been interrupted there
    said.clear()
    assert _run(task, *flags, say=said.append) == 0
    assert any("compress: done before" in line for line in said)
    code = main("udc-finetune", ["udc-finetune", f"--workdir={work / '3600B'}"])
    assert code == 2, "the folder of a compression is none of a search"


@pytest.mark.parametrize(
    "flags, message",
    [
        (("--model=net:make", "--flash=4KiB"), "takes a trained network"),
        (("--flash=900B",), "the budget is 900 bytes"),
        (("--flash=4KiB", "--widths=0.5,1"), "no channels"),
        (("--flash=4KiB", "--dry_run"), "nothing to plan"),
    ],
)
def test_refused_in_a_line_with_nothing_left(task, tmp_path, capsys, flags, message):
    assert _run(task, f"--workdir={tmp_path}/work", *flags) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_an_untrained_network(task, tmp_path, capsys):
    model = keras.Sequential([keras.Input((8, 8, 1)), kl.Flatten(), kl.Dense(4)])
    model.save(tmp_path / "fresh.keras")
    flags = (f"--model={tmp_path}/fresh.keras", "--flash=4KiB", f"--workdir={tmp_path}/work")
    assert _run(task, *flags) == 1
    assert "A trained model is needed" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()
