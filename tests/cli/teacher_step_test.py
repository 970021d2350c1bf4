"""`udc-teacher`: a network to distil from, trained in one go or in two, and taken by --teacher."""

import json

import keras
import numpy as np
import pytest

from udc_tf.cli import checks, commands
from udc_tf.cli.options import Options, resolve

_FLAGS = ("--recipe=digits", "--examples=48", "--batch_size=16", "--augmentation=crop=1")


def _run(*flags, say=lambda text: None):
    return commands.main("udc-teacher", ["udc-teacher", *_FLAGS, *flags], say)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from tests.support.eager import run_eagerly

    folder, said = tmp_path_factory.mktemp("teacher") / "run", []
    with run_eagerly():
        assert _run("--teacher_epochs=2", f"--workdir={folder}", say=said.append) == 0
    return folder, "\n".join(said)


def test_it_teaches(trained):
    folder, said = trained
    assert f"--teacher={folder / 'teacher.keras'}" in said and "test accuracy" in said
    run = resolve(Options(recipe="digits", teacher=str(folder / "teacher.keras")))
    student = run.build_model((8, 8, 1), 10)
    teacher = checks.load_teacher(run, student)
    assert teacher is not None and teacher.output_shape == (None, 10)
    history = [json.loads(line) for line in (folder / "teacher.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in history] == [0, 1]


def test_an_interrupted_one_goes_on_and_ends_alike(trained, tmp_path, eagerly):
    def interrupted(text):
        if text.startswith("  teacher 2/2"):
            raise KeyboardInterrupt

    flags = ("--teacher_epochs=2", f"--workdir={tmp_path / 'run'}")
    assert _run(*flags, say=interrupted) == 130
    assert not (tmp_path / "run" / "teacher.keras").exists()
    assert _run(*flags) == 0
    once, twice = (
        keras.models.load_model(folder / "teacher.keras", compile=False)
        for folder in (trained[0], tmp_path / "run")
    )
    for a, b in zip(once.get_weights(), twice.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_configuration_is_refused(trained, capsys):
    assert _run("--teacher_epochs=3", f"--workdir={trained[0]}") == 2
    assert "epochs: 2 there, 3 here" in capsys.readouterr().err


def test_what_cannot_be_taught_is_refused_before_anything_is_made(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", x=np.zeros([30, 12, 2]), y=np.arange(30) % 2)
    flags = ("--recipe=engine_noise", f"--data={tmp_path}/x.npz", f"--workdir={tmp_path}/run")
    assert _run(*flags, "--teacher_epochs=1") == 2
    assert "Only images are augmented" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
