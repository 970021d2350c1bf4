"""Every file of a work directory, damaged in every way: one line with the remedy, or mended."""

import contextlib
import hashlib
import io
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

from tests.support.eager import run_eagerly
from udc_tf.cli import commands, training_steps
from udc_tf.report import page
from udc_tf.training import workers

_FLAGS = (
    *("--model=tiny.keras", "--data=data.npz", "--flash=8KiB", "--size_compiles=1"),
    *("--search_epochs=1", "--samples=1", "--finetune_epochs=1,1,1", "--batch_size=8"),
    *("--verify_examples=4", "--runners=npu"),
)
# Written for people and never read again.
_FOR_PEOPLE = ("report.html", "model_graph.json", "images/", "logs/", ".lock")


class _Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One run, copied when it was interrupted in finetuning and when it was finished."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = rng.integers(0, 99, (40, 8, 8, 1)) + 99 * y[:, None, None, None]
    np.savez(folder / "data.npz", x=x.astype(np.uint8), y=y)
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8, 8, 1))
    x = keras.layers.Conv2D(8, 3, strides=2, activation="relu", name="conv")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    keras.Model(inputs, keras.layers.Dense(2, name="head")(x)).save(folder / "tiny.keras")
    with run_eagerly(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(page, "png", lambda figure: b"drawn")  # figures are made, not painted
        lines = training_steps.epoch_lines
        with pytest.MonkeyPatch.context() as stop:
            stop.setattr(training_steps, "epoch_lines", lambda *a: [*lines(*a), *_stops(a[0])])
            assert _run("udc", *_FLAGS, "--workdir=half")[0] == 130
        shutil.copytree("half", "whole")
        assert _run("udc", *_FLAGS, "--workdir=whole") == (0, [])
        yield folder


def _stops(step: str) -> list[keras.callbacks.Callback]:
    return [_Interrupt()] if step == "finetune" else []


def _run(command: str, *flags: str) -> tuple[int, list[str]]:
    """Exit code, and what was written to standard error."""
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        code = commands.main(command, [command, *flags], say=lambda text: None)
    return code, error.getvalue().splitlines()


def _contents(folder: pathlib.Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def _empty(path):
    path.write_bytes(b"")


def _truncated(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _wrong_type(path):
    path.write_bytes(b'["of", "another", "kind"]\n')


def _other_object(path):
    path.write_bytes(b'{"format": 1, "schema": 1, "epoch": "first", "layers": 3}\n')


def _other_version(path):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "format": 99, "schema": 99}))


def _folder(path):
    path.unlink()
    path.mkdir()


_DAMAGES = (_empty, _truncated, _wrong_type, _other_object, _other_version, _folder)


def _damages(name: str):
    """Those that a file can suffer."""
    for damage in _DAMAGES:
        if damage is not _other_version or name.endswith(".json"):
            yield damage


def _damages_while_searching(name: str):
    return [_empty, _truncated] if name.startswith("state/") else _damages(name)


def _try(folder: pathlib.Path, name: str, damage, work: pathlib.Path, command: str) -> str:
    """What is wrong with how a command takes a damaged file; empty if nothing is."""
    shutil.copytree(folder, work)
    damage(work / name)
    before = _contents(work)
    code, lines = _run(command, f"--workdir={work}")
    after = _contents(work)
    shutil.rmtree(work)
    ours = [line for line in lines if line.startswith(f"{command}: ")]
    case = f"{name} {damage.__name__[1:]}: exit code {code}, {lines}"
    if code == 0:
        # A run that goes on leaves newer states in the place of older ones.
        lost = [n for n in before if n not in after and not n.startswith("state/")]
        return f"{case}: lost {lost}" if lost else ""
    if code not in (1, 2) or len(ours) != 1 or "Traceback" in "".join(lines):
        return case
    if str(work / name) not in ours[0]:
        return f"{case}: does not name the file"
    changed = [n for n in {*before, *after} if before.get(n) != after.get(n)]
    changed = [n for n in changed if not n.startswith(_FOR_PEOPLE)]
    return f"{case}: changed {changed}" if changed else ""


def _check_all(folder, names, work, command, damages=_damages) -> None:
    assert names
    tried = ((name, damage) for name in names for damage in damages(name))
    wrong = [text for name, damage in tried if (text := _try(folder, name, damage, work, command))]
    assert not wrong, "\n".join(wrong)


def _names(folder: pathlib.Path, *, read: bool) -> list[str]:
    """The files that a finished run reads again, or the others."""
    others = ("state/", "size_model.json", *_FOR_PEOPLE)
    artefacts = ("artefacts/manifest.json", "artefacts/report.json")
    return [
        name
        for name in _contents(folder)
        if read
        != (name.startswith(others) or (name.startswith("artefacts/") and name not in artefacts))
    ]


class TestFinishedRun:
    def test_whatever_is_read_is_named_or_mended(self, runs, tmp_path):
        names = _names(runs / "whole", read=True)
        assert {"run.json", "network.keras", "architecture.npz", "results.json"} <= {*names}
        _check_all(runs / "whole", names, tmp_path / "w", "udc")

    def test_what_was_compiled_is_kept_or_made_anew(self, runs, tmp_path):
        names = [n for n in _names(runs / "whole", read=False) if n.startswith("artefacts/")]
        assert "artefacts/model_vela.tflite" in names
        _check_all(runs / "whole", names, tmp_path / "w", "udc", lambda name: [_truncated])

    def test_the_rest_does_not_matter(self, runs, tmp_path):
        names = [n for n in _names(runs / "whole", read=False) if not n.startswith("artefacts/")]
        assert {"report.html", "size_model.json", "images/bytes.png"} <= {*names}
        shutil.copytree(runs / "whole", tmp_path / "w")
        for name in names:
            _empty(tmp_path / "w" / name)
        assert _run("udc", f"--workdir={tmp_path / 'w'}") == (0, [])
        assert (tmp_path / "w" / "report.html").stat().st_size

    def test_a_manifest_that_lists_files_elsewhere(self, runs, tmp_path):
        work, outside = tmp_path / "w", tmp_path / "outside"
        outside.write_text("untouched")
        shutil.copytree(runs / "whole", work)
        manifest = json.loads((work / "artefacts" / "manifest.json").read_text())
        for name in ("../../outside", str(outside)):
            manifest["files"][name] = {"bytes": 1, "sha256": "0"}
        (work / "artefacts" / "manifest.json").write_text(json.dumps(manifest))
        assert _run("udc", f"--workdir={work}")[0] in (0, 1)
        assert outside.read_text() == "untouched"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["outside", "w"]

    @pytest.mark.parametrize("damage", [_empty, _truncated, _wrong_type])
    def test_damage_is_refused_and_not_passed_over(self, runs, tmp_path, damage):
        for name in ("run.json", "architecture.json", "architecture.npz", "network.keras"):
            shutil.copytree(runs / "whole", tmp_path / name)
            damage(tmp_path / name / name)
            code, lines = _run("udc", f"--workdir={tmp_path / name}")
            assert code == 1 and f"{tmp_path / name / name} is damaged (" in lines[-1]

    @pytest.mark.parametrize(
        "name",
        ["architecture.json", "network.keras", "results.json", "artefacts/manifest.json"],
    )
    def test_the_remedy_holds(self, runs, tmp_path, name):
        work = tmp_path / "w"
        shutil.copytree(runs / "whole", work)
        (work / name).unlink()
        assert _run("udc", f"--workdir={work}") == (0, [])
        for file in ("architecture.json", "artefacts/model_vela.tflite", "artefacts/manifest.json"):
            assert (work / file).read_bytes() == (runs / "whole" / file).read_bytes(), file
        scores = [json.loads((f / "results.json").read_text()) for f in (work, runs / "whole")]
        assert scores[0]["test_score"] == scores[1]["test_score"]


class TestInterruptedRun:
    def test_while_finetuning(self, runs, tmp_path):
        unread = ("size_model.json", "state/search", *_FOR_PEOPLE)
        names = [n for n in _contents(runs / "half") if not n.startswith(unread)]
        assert any(name.startswith("state/finetune") for name in names)
        _check_all(runs / "half", names, tmp_path / "w", "udc-finetune")

    def test_while_searching(self, runs, tmp_path):
        folder = tmp_path / "searching"
        shutil.copytree(runs / "half", folder)
        for name in ("architecture.json", "architecture.npz", "finetune.jsonl"):
            (folder / name).unlink()
        shutil.rmtree(folder / "state" / "finetune")
        names = [n for n in _contents(folder) if n.startswith(("size_model.json", "state/"))]
        _check_all(folder, names, tmp_path / "w", "udc-search", _damages_while_searching)


class TestTfConfig:
    @pytest.mark.parametrize(
        "value",
        [
            "{",
            "[]",
            '{"cluster": 3}',
            '{"cluster": {"worker": [1, 2]}}',
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 7}}',
            '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": "x"}}',
        ],
    )
    def test_is_said_in_one_line(self, value, monkeypatch, tmp_path):
        monkeypatch.setenv("TF_CONFIG", value)
        code, lines = _run("udc", "--recipe=digits", f"--workdir={tmp_path / 'w'}")
        assert code == 1 and len(lines) == 1 and lines[0].startswith("udc: TF_CONFIG is to be")
        assert lines[0].endswith(f"Received: {value}") and not (tmp_path / "w").exists()
        with pytest.raises(SystemExit) as left:
            workers.leave(code)
        assert left.value.code == 1
