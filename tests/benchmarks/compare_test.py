"""The comparison's scripts, from a run to the report, on very little."""

import json
import pathlib
import shutil
import socket
import subprocess
import sys
import types

import keras
import numpy as np
import pytest

import udc_tf
from benchmarks import ablation_report
from benchmarks.compare import choices, command, landscape, plan, report, sizing, tasks, tfmot
from benchmarks.compare.methods import INT8, uniform_options
from benchmarks.compare.runs import Run
from benchmarks.harness import RESULTS, Rows
from tests.support.processes import environment
from udc_tf.models import ds_cnn, resnet8
from udc_tf.models.data import digits

_BUDGET = 4_000


class _TinyTask(tasks.Task):
    def network(self):
        x = inputs = keras.Input(self.input_shape)
        x = keras.layers.Conv2D(12, 3, strides=2, use_bias=False, name="stem")(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
        x = keras.layers.ReLU()(keras.layers.Conv2D(16, 3, name="inner")(x))
        x = keras.layers.GlobalAveragePooling2D()(x)
        return keras.Model(inputs, keras.layers.Dense(10, name="head")(x))


def _tiny_task(name, images, cache):
    parts = digits().limited(images)
    arrays = (parts.arrays(part) for part in ("train", "validation", "test"))
    return _TinyTask(name, *arrays, budgets=(_BUDGET,))


def _options(folder, **changes):
    options = {
        "data": ["digits"],
        "methods": ["udc", "uniform", "random"],
        "budgets": [str(_BUDGET)],
        "seeds": ["0"],
        "epochs": 2,
        "images": 192,
        "results": folder / "rows.json",
        "cache": folder / "cache",
        "size_compiles": 1,
        "max_minutes": None,
        "only_report": False,
        "full": False,
    }
    return types.SimpleNamespace(**{**options, **changes})


class TestCompare:
    def test_from_runs_to_report(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tasks, "load", _tiny_task)
        monkeypatch.setattr(sizing, "_COMPILES", 1)
        monkeypatch.setitem(plan.SETTINGS, "uniform", [INT8])
        monkeypatch.setitem(plan.SETTINGS, "random", ["trial 0"])
        text = command.compare(_options(tmp_path))
        rows = json.loads((tmp_path / "rows.json").read_text())
        assert sorted(r["method"] for r in rows.values()) == ["random", "udc", "uniform"]
        for row in rows.values():
            assert row["budget_met"] and row["flash_bytes"] <= _BUDGET
            assert 0 < row["test_accuracy"] <= 1 and row["cpu_seconds"] > 0
        assert "best uniform" in text and "UDC" in (tmp_path / "rows.md").read_text()
        assert (tmp_path / "rows.png").stat().st_size > 1000
        # All is there: nothing runs again, and the report needs no data.
        before = (tmp_path / "rows.json").stat().st_mtime_ns
        assert command.compare(_options(tmp_path)) == text
        assert (tmp_path / "rows.json").stat().st_mtime_ns == before


class TestCommitted:
    """Tables are those of the rows beside them."""

    @pytest.mark.parametrize(
        "name, data", [("compare", "fashion,cifar"), ("compare_ds_cnn", "cifar_ds_cnn")]
    )
    def test_comparison(self, tmp_path, name, data):
        rows = pathlib.Path(shutil.copy(RESULTS / f"{name}.json", tmp_path))
        given = {"data": data.split(","), "results": rows, "only_report": True}
        given |= {"budgets": [], "epochs": 12, "images": 24_000, "seeds": ["0", "1", "2"]}
        text = command.compare(_options(tmp_path, **given))
        assert text == (RESULTS / f"{name}.md").read_text()
        assert rows.read_bytes() == (RESULTS / f"{name}.json").read_bytes()

    def test_ablation(self, tmp_path):
        rows = Rows(RESULTS / "ablation.json").read()
        path, compared = tmp_path / "ablation.json", RESULTS / "compare.json"
        text = ablation_report.write_report(rows, path, compared)
        assert text == (RESULTS / "ablation.md").read_text()

    def test_choices_and_landscape(self):
        for module, rows, table in (
            (choices, "compare_choices.json", "compare_choices.md"),
            (landscape, "compare.json", "compare_landscape.md"),
        ):
            assert module.report(Rows(RESULTS / rows).read()) in (RESULTS / table).read_text()


class TestUniform:
    def test_ends_are_dense_with_8_bits(self):
        model = _tiny_task("digits", 32, None).network()
        search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("64MiB"))
        decided = search.problem.plan
        chosen = uniform_options(decided, 0.5, 4, 0.2)
        values = {d.name: d.options[k] for d, k in zip(decided.decisions, chosen, strict=True)}
        assert values["width/stem"] == values["width/inner"] == 0.5
        assert [values[f"bits/{name}"] for name in ("stem", "inner", "head")] == [8, 4, 8]
        assert [values[f"sparsity/{n}"] for n in ("stem", "inner", "head")] == [1.0, 0.2, 1.0]


_SIZES = {"fashion": (12, 20_000, (1, 2)), "cifar": (12, 20_000, (1,))}


class TestPlan:
    def _plan(self, rows=None):
        return list(plan.plan(_SIZES, plan.METHODS, (0, 1, 2), rows or {}))

    def _row(self, run):
        score = 0.9 if run.setting in ("4 bits, 50%", "trial 2") else 0.5
        return {"budget_met": True, "validation_accuracy": score, "test_accuracy": score}

    def test_order(self):
        methods = [(r.method, r.seed) for r in self._plan()]
        assert methods[0] == ("udc", 0)
        assert methods.index(("tfmot", 0)) < methods.index(("udc", 1)) < methods.index(("dnas", 0))
        assert self._plan()[0].data == "fashion"

    def test_no_run_twice(self):
        keys = [r.key for r in self._plan() if r.setting != INT8]
        assert len(keys) == len(set(keys))

    def test_best_settings_are_repeated_once_all_are_known(self):
        rows = {r.key: self._row(r) for r in self._plan()}
        repeated = {(r.method, r.setting) for r in self._plan(rows) if r.seed == 2}
        assert {("uniform", "4 bits, 50%"), ("random", "trial 2"), ("udc", "default")} <= repeated
        some = {k: v for k, v in rows.items() if "trial 9" not in k}
        assert "random" not in {r.method for r in self._plan(some) if r.seed == 2}


class TestReport:
    def _rows(self, **accuracies):
        rows = {}
        for method, scores in accuracies.items():
            for seed, score in enumerate(scores):
                settings = {"udc": ["default"], "uniform": plan.SETTINGS["uniform"]}[method]
                for setting in settings if seed == 0 else settings[:1]:
                    run = Run("fashion", method, setting, 9000, seed, 12, 20_000)
                    # The best on the test images is not the best on the validation images.
                    validation = score if setting == settings[0] else score - 0.1
                    rows[run.key] = {
                        **vars(run),
                        "budget_met": True,
                        "validation_accuracy": validation,
                        "test_accuracy": score if setting == settings[0] else score + 0.1,
                        "flash_bytes": 8990,
                        "cpu_seconds": 60,
                    }
        return rows

    def test_chooses_by_validation_and_gives_deviation(self):
        rows = self._rows(udc=(0.88, 0.9, 0.89), uniform=(0.86, 0.87, 0.88))
        sizes = {"fashion": (12, 20_000, (9000,))}
        found = {e.method: e for e in report.entries(rows, sizes)}
        assert found["uniform"].setting == plan.SETTINGS["uniform"][0]
        assert len(found["udc"].rows) == 3
        np.testing.assert_allclose(found["udc"].deviation, 0.01)
        said = report.verdicts(list(found.values()), rows)
        assert "UDC +2.00 points against best uniform" in said
        # 0.89 against the mean of one of 0.86 and the others of 0.96.
        count = len(plan.SETTINGS["uniform"])
        gap = 100 * (0.89 - 0.96 + 0.1 / count)
        assert f"UDC {gap:+.2f} points against the mean of the {count} uniform settings" in said


class TestRuns:
    def test_random_trials_of_a_budget_are_claimed_together(self, tmp_path):
        first, second = (Rows(tmp_path / "rows.json") for _ in range(2))
        runs = [Run("fashion", "random", f"trial {n}", 9000, 0, 12, 20_000) for n in range(2)]
        with first.claim(runs[0].lane):
            assert second.claim(runs[1].lane) is None
        udc = Run("fashion", "udc", "default", 9000, 0, 12, 20_000)
        assert udc.row({"x": 1}) == {**vars(udc), "x": 1}


_SEARCH = """
import pathlib, sys
from benchmarks.compare.random_search import RandomSearch
folder = pathlib.Path(sys.argv[1])

def evaluate(number, draw):
    (folder / f"trial_{number}").write_text(str(draw))
    return float(draw)

RandomSearch(evaluate, 3, folder / "project", seed=7).search()
"""


class TestRandomSearch:
    @pytest.mark.parametrize("workers", [0, 1], ids=["alone", "chief and worker"])
    def test_every_trial_is_run(self, tmp_path, workers):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        oracle = {"KERASTUNER_ORACLE_IP": "127.0.0.1", "KERASTUNER_ORACLE_PORT": str(port)}
        variables = environment(**(oracle if workers else {}))
        ids = ["chief", "tuner0"] if workers else ["tuner0"]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", _SEARCH, str(tmp_path)],
                env={**variables, "KERASTUNER_TUNER_ID": name},
            )
            for name in ids
        ]
        try:
            assert [p.wait(timeout=240) for p in processes] == [0] * len(processes)
        finally:
            for process in processes:
                process.kill()
        draws = {(tmp_path / f"trial_{n}").read_text() for n in range(3)}
        assert len(draws) == 3


class TestAblationReport:
    def test_random_curve_rises_with_trials(self):
        scores = np.array([0.5, 0.6, 0.7, 0.8])
        curve = ablation_report.best_so_far(scores, scores)
        assert (np.diff(curve) > 0).all() and curve[-1] == pytest.approx(0.8)


class TestLandscape:
    def test_finds_what_channels_and_weights_are_worth(self):
        rng, widest = np.random.default_rng(0), np.array([16, 32, 64, 10])
        rows = {"full": _trained("int8_full", "8 bits, 100%", [(c, 8, 1.0) for c in widest])}
        for n in range(60):
            layers = [
                (c / rng.choice([1, 2, 4]), rng.choice([1, 2, 4, 8]), rng.choice([0.1, 0.5, 1]))
                for c in widest[:-1]
            ]
            rows[f"{n}"] = _trained(rng.choice(["udc", "uniform"]), n, [*layers, (10, 8, 1.0)])
        for row in rows.values():
            of = landscape.features(row, widest)
            row["validation_accuracy"] = 0.9 - 0.05 * of[0] - 0.01 * of[2] - 0.003 * of[-1]
        found = landscape.fit(rows, "digits")
        assert found["error"] < 1e-6 and found["networks"] == 61
        costs = found["coefficients"]
        assert costs[0] == pytest.approx(90) and costs[-1] == pytest.approx(-0.3)
        assert landscape.cost(costs, "channels", 2) == pytest.approx(-10)
        assert landscape.cost(costs, "weights", 3) == pytest.approx(-3)

    def test_ends_of_uniform_networks_are_dense(self):
        row = {"setting": "4 bits, 20%", "channels": [4, 8, 8, 10]}
        assert landscape.layers_of(row)[:, 1:].tolist() == [
            *([8, 1.0], [4, 0.2], [4, 0.2], [8, 1.0]),
        ]


def _trained(method, setting, layers):
    row = {"data": "digits", "epochs": 12, "method": str(method), "setting": str(setting)}
    return {**row, "budget": None, "layers": layers}


class TestChoices:
    def test_designs_name_layers_of_the_network(self):
        search = udc_tf.make_searchable(resnet8((16, 16, 3)), sizing.SPACE, udc_tf.Flash("26KiB"))
        decisions = search.problem.plan.decisions
        subjects = {kind: {d.subject for d in decisions if d.kind == kind} for kind in _KINDS}
        for design in choices.DESIGNS.values():
            assert set(design.nonzeros) <= subjects["sparsity"]
            assert set(design.widths) <= subjects["width"]

    def test_tells_choices_from_seeds(self):
        accuracies = {"uniform, 20%": (0.60, 0.62), "the larger the sparser": (0.64, 0.66)}
        rows = {}
        for run in choices.runs([0, 1]):
            if run.setting in accuracies:
                accuracy = accuracies[run.setting][run.seed]
                rows[run.key] = {**vars(run), "validation_accuracy": accuracy, "flash_bytes": 9_999}
        said = choices.report(rows)
        assert "| uniform, 20% | 9,999 | 60.0, 62.0 | 61.0 |" in said
        assert "between the means 2.83, between seeds 1.41" in said
        assert "search" not in said  # of which there are no rows


_KINDS = ("width", "sparsity")


class TestOtherNetworks:
    def test_tfmot_and_full_size_say_what_they_take(self, tmp_path):
        task = tasks.Task("other", *[(np.zeros((1, 8, 8, 1)), None)] * 3, (), ds_cnn, 64)
        assert task.network().name == "ds_cnn"
        run = Run("other", "tfmot", "50% zeros", 9_000, 0, 2, 1)
        with pytest.raises(ValueError, match="Received: the task 'other'"):
            tfmot.prune_and_quantize(sizing.Bench(task, tmp_path), run)
        options = _options(tmp_path, data=["cifar_ds_cnn"], full=True)
        with pytest.raises(ValueError, match="Received: cifar_ds_cnn"):
            command.compare(options)
