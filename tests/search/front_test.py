"""Several budgets from one search."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from tests.support import networks
from tests.support.eager import run_eagerly
from udc_tf.cli import commands
from udc_tf.cli.options import Options, front_runs
from udc_tf.cli.usage import UsageError
from udc_tf.report.front_page import write_front
from udc_tf.search.front import search_front, set_out_for_all
from udc_tf.training.training_data import for_replicas

_BUDGETS = ("3KiB", "3.5KiB")
_EPOCHS = 4


def _search(budget: str) -> udc_tf.SearchModel:
    keras.utils.clear_session()  # layers of every network have the same names
    keras.utils.set_random_seed(1)
    settings = udc_tf.SearchSettings(samples=1, warmup=0.5)
    search = udc_tf.make_searchable(
        networks.small_cnn(), "ethos_u55", udc_tf.Flash(budget), settings
    )
    search.compile(loss=networks.cross_entropy())
    return search


def _same(one: udc_tf.Architecture, other: udc_tf.Architecture) -> None:
    assert one.choices == other.choices
    for layer, values in one.weights.items():
        for name, value in values.items():
            np.testing.assert_allclose(value, other.weights[layer][name], rtol=1e-4, atol=1e-5)


class TestSearchFront:
    @pytest.fixture(scope="class")
    def alone(self):
        """What each budget finds after a warm-up of its own, around the same first guess."""
        found = {}
        for budget in _BUDGETS:
            search = _search(_BUDGETS[1])
            set_out_for_all(search)
            search.retarget(udc_tf.Flash(budget))
            x, y = networks.blobs(96)
            search.fit(x, y, batch_size=32, epochs=_EPOCHS, verbose=0)
            found[budget] = search.architecture()
        return found

    def test_finds_what_each_budget_finds_alone_even_when_interrupted(self, alone, tmp_path):
        class Interrupt(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.seen = getattr(self, "seen", 0) + 1
                if self.seen in (1, 4):  # in the warm-up, and in the first budget's search
                    raise KeyboardInterrupt

        x, y = networks.blobs(96)
        interrupt = Interrupt()

        def front():
            return search_front(
                _search(_BUDGETS[1]),
                [udc_tf.Flash(b) for b in _BUDGETS],
                x,
                y,
                epochs=_EPOCHS,
                workdir=tmp_path,
                batch_size=32,
                verbose=0,
                callbacks=[interrupt],
            )

        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                front()
        for budget, found in zip(_BUDGETS, front(), strict=True):
            assert found.flash_bytes <= udc_tf.Flash(budget).budget
            _same(found, alone[budget])
        assert sorted(p.name for p in tmp_path.iterdir()) == ["3584B", "3KiB", "warmup"]
        # Once more reads what is there.
        seen = interrupt.seen
        _same(front()[0], alone[_BUDGETS[0]])
        assert interrupt.seen == seen

    @pytest.mark.parametrize(
        "targets, message",
        [
            ([], "at least one target"),
            ([udc_tf.Flash("3KiB")] * 2, "must differ"),
        ],
    )
    def test_what_is_not_a_front(self, targets, message, tmp_path):
        with pytest.raises(ValueError, match=message):
            search_front(_search("3KiB"), targets, epochs=4, workdir=tmp_path)

    def test_no_warmup_to_share(self, tmp_path):
        with pytest.raises(ValueError, match="nothing to share"):
            search_front(_search("3KiB"), [udc_tf.Flash("3KiB")], epochs=1, workdir=tmp_path)


class TestRetarget:
    def test_another_budget_and_nothing_else(self):
        search = _search("3KiB")
        z = np.eye(search.state.options, dtype=np.float32)[np.zeros(len(search.rows), int)][None]
        before = search.cost_ratios(z).numpy()
        search.retarget(udc_tf.Flash("6KiB"))
        np.testing.assert_allclose(search.cost_ratios(z).numpy(), before / 2, rtol=1e-5)
        assert search.targets == (udc_tf.Flash("6KiB"),)
        with pytest.raises(ValueError, match="Only budgets can change"):
            search.retarget(udc_tf.Macs(1e6))


def test_no_replica_is_left_without_examples():
    data = tf.data.Dataset.from_tensor_slices((np.arange(5), np.arange(5) * 2)).batch(4)
    last = list(for_replicas(data, 3).as_numpy_iterator())[-1]
    assert [part.tolist() for part in last] == [[4, 4, 4], [8, 8, 8]]


class TestCommandLine:
    def test_each_budget_is_a_run_of_its_own(self):
        runs = front_runs(Options(recipe="digits", flash="6KiB,8KiB", search_epochs=20))
        assert list(runs) == ["6KiB", "8KiB"]
        for name, run in runs.items():
            assert run.options.flash == name and run.flash_target == udc_tf.Flash(name)
            assert run.recipe.search_epochs == 20 and run.recipe.search.warmup == 2 / 3
        # What the user says, stands.
        options = Options(recipe="digits", flash="6KiB,8KiB", search_epochs=20, warmup=0.3)
        run = front_runs(options)["8KiB"]
        assert run.recipe.search_epochs == 20 and run.recipe.search.warmup == 0.3

    @pytest.mark.parametrize(
        "flags, message",
        [
            ({"flash": "6KiB,6KiB"}, "budgets must differ"),
            ({"flash": "6KiB,8"}, "Received: '6KiB,8'"),
            ({"flash": "6KiB,8KiB", "warmup": 0.1, "search_epochs": 5}, "an epoch or more"),
        ],
    )
    def test_mistakes(self, flags, message):
        with pytest.raises(UsageError, match=message):
            front_runs(Options(recipe="digits", **flags))

    def test_sizes_are_measured_once_for_all_budgets(self, tmp_path, capsys):
        flags = ("--recipe=digits", "--examples=40", "--search_epochs=2", "--warmup=0.5")
        few = ("--flash=6KiB,8KiB", "--size_compiles=1", "--samples=1", f"--workdir={tmp_path}")
        with run_eagerly():
            assert commands.main("udc-search", ["udc-search", *flags, *few]) == 0
        assert capsys.readouterr().out.count("search: compiling") == 1
        for budget in ("6KiB", "8KiB"):
            arch = udc_tf.Architecture.load(tmp_path / budget / "architecture.json")
            assert 0.9 < arch.flash_bytes / udc_tf.Flash(budget).budget <= 1

    def test_report_shows_every_budget(self, tmp_path):
        record = {"sections": {"search": {"recipe": "digits", "flash": 6144}}, "commands": []}
        for folder, score in (("", None), ("6KiB", 0.91), ("8KiB", 0.93)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / "run.json").write_text(json.dumps(record))
            results = {"flash_bytes": 6000, "test_score": score, "macs": 12345}
            (tmp_path / folder / "results.json").write_text(json.dumps(results))
        text = write_front(tmp_path, ["6KiB", "8KiB"]).read_text()
        for shown in ("91.00%", "93.00%", "97.7%", 'href="8KiB/report.html"', "data:image/png"):
            assert shown in text
        assert (tmp_path / "images" / "front.png").exists()
