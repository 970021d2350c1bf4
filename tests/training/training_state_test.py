"""The state of a training: whole or not there, whatever happens while it is written."""

import errno
import json
import pathlib

import keras
import numpy as np
import pytest

from benchmarks.interruptions import count_changes
from udc_tf.training import workers
from udc_tf.training.training_state import StateError, StateFolder, TrainingState

_FAILING: dict = {}  # what the audit hook, which cannot be taken away again, does at a change


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder in which a change can be made to fail, whatever makes it."""
    root = tmp_path_factory.mktemp("states")

    def at_change(_):
        _FAILING["seen"] = _FAILING.get("seen", 0) + 1
        if _FAILING["seen"] == _FAILING.get("at"):
            raise _FAILING["error"]

    count_changes(root, at_change)
    yield root
    _FAILING.clear()


@pytest.fixture
def folder(folders, request):
    _FAILING.clear()
    yield folders / request.node.name.replace("[", "_").replace("]", "")
    _FAILING.clear()


def _state(folder, value=0.0, **kwargs):
    variables = {"network": [keras.Variable([value, value])], "optimizer": [keras.Variable(value)]}
    return variables, TrainingState(folder, "search", variables, **kwargs)


def _train(folder, epochs):
    """Epoch by epoch, as KeepState does it."""
    variables, state = _state(folder)
    state.restore()
    for epoch in range(state.progress.epochs, epochs):
        variables["network"][0].assign([epoch + 1, 2.0])
        variables["optimizer"][0].assign(epoch + 1)
        state.progress.epochs = epoch + 1
        state.progress.logs.append({"loss": 1.0 / (epoch + 1)})
        state.save()


def _restored(folder):
    variables, state = _state(folder)
    assert state.restore()
    epoch = float(variables["optimizer"][0])
    np.testing.assert_array_equal(variables["network"][0], [epoch, 2.0])
    assert state.progress.epochs == len(state.progress.logs) == epoch
    return state


class TestGenerations:
    def test_two_are_kept(self, folder):
        _train(folder, 4)
        names = ["search_state.3.npz", "search_state.4.npz"]
        assert sorted(p.name for p in folder.iterdir()) == names
        assert _restored(folder).progress.epochs == 4

    @pytest.mark.parametrize("damage", ["empty", "half", "a bit", "another file"])
    def test_a_damaged_one_is_passed_over_in_one_line_and_replaced(self, folder, damage, caplog):
        _train(folder, 3)
        newest = folder / "search_state.3.npz"
        content = bytearray(newest.read_bytes())
        if damage == "a bit":
            content[content.index(b"\x00\x00\x40\x40")] ^= 1  # inside of a weight
        damaged = {"empty": b"", "half": content[: len(content) // 2], "another file": b"PK{}"}
        newest.write_bytes(damaged.get(damage, content))
        assert _restored(folder).progress.epochs == 2
        messages = [r.getMessage() for r in caplog.records]
        assert len(messages) == 1 and "search_state.3.npz is damaged" in messages[0]
        _train(folder, 3)
        assert _restored(folder).progress.epochs == 3
        assert len(list(folder.iterdir())) == 2

    def test_none_that_is_whole_is_one_sentence_with_the_remedy(self, folder):
        _train(folder, 3)
        for path in folder.iterdir():
            path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(StateError) as raised:
            _restored(folder)
        said = str(raised.value)
        assert "remove" in said and "\n" not in said
        assert all(str(path) in said for path in folder.iterdir())

    def test_nothing_is_unpickled(self, folder):
        class Trap:
            def __reduce__(self):
                return (pathlib.Path.touch, (folder / "sprung",))

        _train(folder, 1)
        np.savez(folder / "search_state.2.npz", progress=np.array([Trap()], dtype=object))
        assert _restored(folder).progress.epochs == 1
        assert not (folder / "sprung").exists()


class TestInterruptedWriting:
    def test_at_every_change_there_is_the_old_state_or_the_new(self, folder):
        for error in (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):
            at, ended = 0, False
            while not ended:
                at += 1
                work = StateFolder(folder / f"{error!r:.4}{at}", history=folder / f"{at}.jsonl")
                _train(work, 2)
                _FAILING.update(seen=0, at=at, error=error)
                try:
                    _train(work, 3)
                    ended = _FAILING["seen"] < at
                except (KeyboardInterrupt, StateError) as raised:
                    assert not isinstance(raised, StateError) or "make room" in str(raised)
                _FAILING.clear()
                assert _restored(work.path).progress.epochs in (2, 3)
                _train(work, 3)
                left = sorted(p.name for p in pathlib.Path(work.path).iterdir())
                assert left == ["search_state.2.npz", "search_state.3.npz"]
                rows = [json.loads(x) for x in work.history.read_text().splitlines()]
                assert [row["epoch"] for row in rows] == [0, 1, 2]
            assert at > 5  # there were changes to fail at


class TestWhoseStateItIs:
    def test_another_plan_is_refused(self, folder):
        _state(folder, plan={"epochs": 3, "seed": 0})[1].save()
        with pytest.raises(ValueError, match=r"another run.*'seed': 0\}. Received: \{'seed': 1\}"):
            _state(folder, plan={"epochs": 3, "seed": 1})[1].restore()

    def test_other_variables_are_refused(self, folder):
        _state(folder)[1].save()
        with pytest.raises(ValueError, match="other variables"):
            TrainingState(folder, "search", {"network": [keras.Variable(0.0)]}).restore()

    def test_a_run_goes_on_from_another_until_it_has_a_state_of_its_own(self, folder):
        _, shared = _state(folder / "shared", 1.0, plan={"targets": [1], "epochs": 3})
        shared.progress.logs = [{"loss": 0.5}]
        shared.save()
        own = StateFolder(folder / "own", folder / "shared", folder / "own.jsonl")
        variables, state = _state(own, plan={"targets": [2], "epochs": 3})
        assert state.restore() and float(variables["optimizer"][0]) == 1.0
        assert json.loads((folder / "own.jsonl").read_text()) == {"epoch": 0, "loss": 0.5}
        variables["optimizer"][0].assign(5.0)
        state.save()
        variables, state = _state(own, plan={"targets": [2], "epochs": 3})
        assert state.restore() and float(variables["optimizer"][0]) == 5.0
        with pytest.raises(ValueError, match="another run"):
            _state(folder / "shared", plan={"targets": [2], "epochs": 3})[1].restore()

    def test_of_several_workers_the_chief_writes(self, folder, monkeypatch):
        monkeypatch.setattr(workers, "is_chief", lambda: False)
        _state(folder)[1].save()
        assert not folder.exists()
