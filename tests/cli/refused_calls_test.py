"""A refused call changes nothing, and what cannot begin leaves no trace."""

import pytest

import udc_tf
from udc_tf.cli import commands
from udc_tf.cli.options import Options, resolve
from udc_tf.cli.workdir import WorkDir
from udc_tf.models import small_cnn


def _udc(capsys, command: str, *flags: str) -> tuple[int, str]:
    """Exit code, and the one line that says why."""
    code = commands.main(command, [command, *flags], say=lambda text: None)
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith(f"{command}: ")]
    return code, line


class TestRefusedCallsChangeNothing:
    """Flags that are refused are not remembered; what cannot begin leaves no trace."""

    @pytest.fixture
    def run(self):
        return resolve(Options(recipe="digits", finetune_epochs="8"))

    @pytest.fixture
    def finished(self, tmp_path, run):
        work = WorkDir.open(str(tmp_path / "w"))
        for step in ("search", "finetune"):
            work.begin(step, run.sections(), run.options.given(), "udc")
        search = udc_tf.make_searchable(small_cnn(filters=(8,)), "ethos_u55", udc_tf.Flash("8KiB"))
        search.architecture().save(work.architecture)
        (work.state("finetune")).mkdir(parents=True)
        (work.state("finetune") / "state").write_text("trained")
        return work

    @pytest.mark.parametrize("command", ["udc", "udc-search", "udc-finetune"])
    def test_other_epochs_on_a_run_that_has_trained(self, finished, command, capsys):
        before = finished.record.read_bytes()
        code, said = _udc(capsys, command, f"--workdir={finished.path}", "--finetune_epochs=6")
        assert code == 2 and "belongs to another configuration" in said
        assert finished.record.read_bytes() == before
        finished.check(resolve(Options(recipe="digits", finetune_epochs="8")).sections())

    def test_a_wrong_teacher_is_not_kept(self, finished, run, tmp_path, capsys):
        for path in finished.state("finetune").iterdir():
            path.unlink()
        before = finished.record.read_bytes()
        folder = f"--workdir={finished.path}"
        code, said = _udc(capsys, "udc-finetune", folder, "--teacher=nowhere.keras")
        assert code == 2 and "nowhere.keras" in said
        assert finished.record.read_bytes() == before

    def test_a_teacher_that_was_kept_can_be_replaced_and_unset(self, finished):
        for path in finished.state("finetune").iterdir():
            path.unlink()
        given = {"recipe": "digits", "finetune_epochs": "8", "teacher": "wrong.keras"}
        finished.begin("finetune", resolve(Options(**given)).sections(), given, "udc")
        for teacher in ("right.keras", ""):
            run = resolve(Options(teacher=teacher).over(given))
            finished.check(run.sections())
        assert run.options.teacher is None and "teacher" not in run.options.given()

    def test_steps_out_of_order_make_no_folder(self, tmp_path, capsys):
        for command, first in (("udc-finetune", "udc-search"), ("udc-export", "udc-finetune")):
            flags = ("--recipe=digits", "--finetune_epochs=3", f"--workdir={tmp_path / 'w'}")
            code, said = _udc(capsys, command, *flags)
            assert code == 2 and f"run {first} there first" in said
            assert not (tmp_path / "w").exists()

    def test_a_run_that_cannot_begin_leaves_no_folder(self, tmp_path, capsys):
        flags = ("--recipe=digits", "--size_compiles=0", f"--workdir={tmp_path / 'w'}")
        code, said = _udc(capsys, "udc-search", *flags, "--flash=100B")
        assert code != 0 and "No configuration is that small" in said
        assert not (tmp_path / "w").exists()

    def test_nor_do_several_budgets(self, tmp_path, capsys):
        flags = ("--recipe=digits", "--size_compiles=0", f"--workdir={tmp_path / 'w'}")
        code, _ = _udc(capsys, "udc-search", *flags, "--flash=100B,110B")
        assert code != 0 and not (tmp_path / "w").exists()

    def test_a_folder_that_was_full_can_be_used(self, tmp_path, monkeypatch, capsys):
        folder = tmp_path / "w"

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(WorkDir, "begin", full)
            patch.setattr(WorkDir, "_take_back", lambda *_: None)  # killed before it could
            code, said = _udc(capsys, "udc-search", "--recipe=digits", f"--workdir={folder}")
            assert code == 1 and "the disk has no room left" in said
        (folder / ".run.0123.partial.json").write_text('{"form')
        assert (folder / ".lock").exists()
        work = WorkDir.open(str(folder))
        with work.locked():
            work.remove_partials()
        assert [p.name for p in folder.iterdir()] == [".lock"]
