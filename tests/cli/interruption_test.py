"""Runs that are ended anywhere and resumed end as those that were not, bit for bit."""

import errno
import json
import random
import types

import keras
import numpy as np
import pytest

import udc_tf
from benchmarks.interruptions import count_changes, same
from tests.support.eager import run_eagerly
from tests.support.processes import run_python
from udc_tf.cli import commands, exporting, training_steps
from udc_tf.cli.options import Options, resolve
from udc_tf.cli.workdir import WorkDir
from udc_tf.finetune.rescaling import restore_norms
from udc_tf.training.training_state import StateError


@pytest.fixture(scope="module", autouse=True)
def eagerly():
    with run_eagerly():
        yield


@pytest.fixture(scope="module")
def architecture(eagerly):
    return _architecture(epochs=1)[0]


def _network():
    inputs = keras.Input((6,))
    x = keras.layers.Dense(8, use_bias=False, name="first")(inputs)
    x = keras.layers.ReLU(name="relu")(keras.layers.BatchNormalization(name="bn")(x))
    x = keras.layers.Dropout(0.3, name="dropout")(x)
    return keras.Model(inputs, keras.layers.Dense(3, name="head")(x))


def _data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(24, 6)).astype("float32"), np.arange(24) % 3


_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _architecture(workdir=None, **fit):
    """What a search finds, with a history that is as exact."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    settings = udc_tf.SearchSettings(samples=1, warmup=0.5)
    search = udc_tf.make_searchable(_network(), "ethos_u55", udc_tf.Flash(2250), settings)
    search.compile(loss=_LOSS)
    x, y = _data()
    fit = {"epochs": 3, "batch_size": 12, "verbose": 0, **fit}
    history = search.fit(x, y, validation_data=(x, y), workdir=workdir, **fit)
    return search.architecture(), history.history


def _finetuned(architecture, workdir=None):
    random.seed()  # whatever the process drew before must not count
    tiny = architecture.build()
    stages = udc_tf.Stages(epochs=(1, 1, 1), alpha=(0.7, 0.7, 1.0))
    history = udc_tf.finetune(
        tiny, _data(), stages=stages, loss=_LOSS, batch_size=12, workdir=workdir, verbose=0, seed=5
    )
    return tiny.get_weights(), history.history


def _resumed_after_every_change(folder, run):
    """Runs until it ends, each time as far as one change more to the folder than the time before.

    An audit hook cannot be taken away, so this one is asleep in the end.
    """
    allowed = {"changes": 1, "seen": 0}

    def at_change(_):
        allowed["seen"] += 1
        if allowed["changes"] and allowed["seen"] > allowed["changes"]:
            raise OSError(errno.ENOSPC, "No space left on device")

    count_changes(folder, at_change)
    found, ended = None, 0
    while found is None:
        allowed["seen"] = 0
        try:
            found = run()
        except StateError:
            ended += 1
            allowed["changes"] += 1
    allowed["changes"] = 0
    return found, ended


def _same_weights(one, other):
    assert one.keys() == other.keys()
    for layer, values in one.items():
        for name, value in values.items():
            np.testing.assert_array_equal(value, other[layer][name], err_msg=f"{layer}/{name}")


class TestFullDiskAtEveryChange:
    def test_search(self, tmp_path):
        whole, expected = _architecture(epochs=2)
        (found, history), ended = _resumed_after_every_change(
            tmp_path, lambda: _architecture(tmp_path / "state", epochs=2)
        )
        assert ended >= 4
        assert found.choices == whole.choices
        _same_weights(found.weights, whole.weights)
        assert history == expected
        # Once more trains nothing, and another run is refused.
        assert _architecture(tmp_path / "state", epochs=2)[1] == expected
        with pytest.raises(ValueError, match="another run"):
            _architecture(tmp_path / "state", epochs=4)

    def test_finetuning(self, architecture, tmp_path):
        whole, expected = _finetuned(architecture)
        (found, history), ended = _resumed_after_every_change(
            tmp_path, lambda: _finetuned(architecture, tmp_path / "state")
        )
        assert ended >= 4
        for a, b in zip(whole, found, strict=True):
            np.testing.assert_array_equal(a, b)
        assert history == expected

    def test_a_search_that_a_callback_stopped_stays_stopped(self, tmp_path):
        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.stop_training = epoch == 1

        kwargs = {"workdir": tmp_path}
        whole, first = _architecture(callbacks=[Stop()], **kwargs)
        again, second = _architecture(**kwargs)
        assert len(second["loss"]) == 2 and first == second
        _same_weights(whole.weights, again.weights)


class TestTightened:
    def test_an_export_that_is_interrupted_begins_with_the_finetuned_network(
        self, tmp_path, monkeypatch
    ):
        def network(value):
            dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(value))
            return keras.Sequential([keras.Input((2,)), dense])

        def exported(given, *_, **__):
            began_with.append(float(given.get_weights()[0][0, 0]))
            return types.SimpleNamespace(
                report={"tightening": ["a move"]}, model=network(2.0), flash_bytes=1, sram_bytes=1,
                manifest={"budgets": []}, tflite_path=file, vela_path=file,
            )  # fmt: skip

        def interrupt(*_):
            raise KeyboardInterrupt

        work, began_with = WorkDir(tmp_path), []
        training_steps.save_network(network(1.0), work.network)
        file = work.artefacts / "manifest.json"
        file.parent.mkdir()
        file.touch()
        monkeypatch.setattr(exporting.export, "export", exported)
        monkeypatch.setattr(exporting, "evaluate_parts", lambda *_: {"test_score": 0.5})
        run = resolve(Options(recipe="digits", examples=20))
        monkeypatch.setattr(exporting, "verify", interrupt)
        with pytest.raises(KeyboardInterrupt):
            exporting.run_export(run, work, lambda _: None)
        monkeypatch.setattr(exporting, "verify", lambda *_: [])
        exporting.run_export(run, work, lambda _: None)
        assert began_with == [1.0, 1.0]
        kept = training_steps.load_network(work).get_weights()[0]
        assert kept[0, 0] == 2.0 and work.read_results()["test_score"] == 0.5


class TestSeed:
    def test_the_size_of_fresh_kernels_is_not_drawn_anew(self):
        factors = []
        for _ in range(2):
            random.seed()
            dense = udc_tf.UDCDense(6, kernel_initializer="he_normal", name="dense")
            bn = keras.layers.BatchNormalization()
            model = keras.Sequential([keras.Input((5,)), dense, bn])
            dense.theta.assign(np.ones((5, 6)))
            factors.append(restore_norms(model))
        assert factors[0] == factors[1]

    def test_fresh_weights_and_dropout_follow_from_the_seed(self, architecture):
        found = []
        for _ in range(2):
            random.seed()
            tiny = architecture.build()
            stages = udc_tf.Stages(epochs=(1, 0, 0), start="fresh")
            udc_tf.finetune(tiny, _data(), stages=stages, loss=_LOSS, verbose=0, seed=5)
            found.append(tiny.get_weights())
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b)


class TestOneProcessPerFolder:
    _FLAGS = ("--recipe=digits", "--examples=20", "--size_compiles=0")

    def test_a_part_at_work_keeps_the_front_out(self, tmp_path, capsys):
        top = tmp_path / "front"
        (top / "8KiB").mkdir(parents=True)
        (top / "run.json").write_text(json.dumps(WorkDir(top).read_record()))
        flags = [*self._FLAGS, "--flash=6KiB,8KiB", f"--workdir={top}"]
        with WorkDir(top / "8KiB").locked():
            assert commands.main("udc-search", ["udc-search", *flags]) == 2
        assert f"Another run is at work in {top / '8KiB'}" in capsys.readouterr().err

    def test_a_front_at_work_keeps_others_out_of_its_parts(self, tmp_path, capsys, monkeypatch):
        top, codes = tmp_path / "front", []

        def meanwhile(*_):
            for folder in (top / "6KiB", top):
                flags = [*self._FLAGS, "--flash=6KiB", f"--workdir={folder}"]
                codes.append(commands.main("udc-search", ["udc-search", *flags]))

        monkeypatch.setattr(commands, "_run_parts", meanwhile)
        flags = [*self._FLAGS, "--flash=6KiB,8KiB", f"--workdir={top}"]
        monkeypatch.setattr(commands, "_report", lambda *_: None)
        monkeypatch.setattr(commands, "_report_front", lambda *_: None)
        assert commands.main("udc-search", ["udc-search", *flags]) == 0
        assert codes == [2, 2]
        assert capsys.readouterr().err.count("Another run is at work in") == 2


def test_commands_that_are_killed(tmp_path):
    """A few rows of the benchmark, which says what they are."""
    flags = ["--step=search", "--step=finetune", "--chosen=1", "--drawn=0"]
    results = tmp_path / "results.json"
    run_python("-m", "benchmarks.interruptions", *flags, f"--results={results}", timeout=600)
    rows = json.loads(results.read_text())
    assert len(rows) == 2 and all(map(same, rows.values()))
    assert all(row["ended"] != 0 for row in rows.values())
