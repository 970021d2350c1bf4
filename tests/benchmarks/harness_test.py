"""What all benchmarks share, and that what is committed of them holds together."""

import ast
import doctest
import importlib
import json
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import benchmarks
from benchmarks import harness
from benchmarks.harness import RESULTS, Rows, Stopwatch, interleaved, table

_FOLDER = pathlib.Path(benchmarks.__file__).resolve().parent
_MODULES = [m.name for m in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]
_TFMOT = "benchmarks.compare.tfmot_training"  # turns the whole process to the old Keras


class TestRows:
    def test_measures_once(self, tmp_path):
        rows, measured = Rows(tmp_path / "rows.json"), []

        def measure():
            measured.append(1)
            return {"x": len(measured)}

        assert rows.once("a", measure) == {"x": 1}
        assert Rows(tmp_path / "rows.json").once("a", measure) == {"x": 1}
        assert json.loads((tmp_path / "rows.json").read_text()) == {"a": {"x": 1}}
        assert len(measured) == 1

    def test_a_failed_measurement_leaves_the_rows_and_the_claim(self, tmp_path):
        rows = Rows(tmp_path / "rows.json")
        rows.add("a", {"x": 1})
        with pytest.raises(ZeroDivisionError):
            rows.once("b", lambda: {"x": 1 / 0})
        assert rows.read() == {"a": {"x": 1}}
        assert rows.once("b", lambda: {"x": 2}) == {"x": 2}
        assert [p.name for p in tmp_path.iterdir()] == ["rows.json"]

    def test_a_claim_is_held_by_one(self, tmp_path):
        first, second = (Rows(tmp_path / "rows.json") for _ in range(2))
        claim = first.claim("a")
        assert claim is not None and second.claim("a") is None
        assert second.once("a", dict) is None and second.once("b", dict) == {}
        claim.close()
        assert second.claim("a") is not None

    def test_rows_of_others_stay(self, tmp_path):
        first, second = (Rows(tmp_path / "rows.json") for _ in range(2))
        first.add("a", {"x": 1})
        second.add("b", {"x": 2})
        assert [r["x"] for r in first.read().values()] == [1, 2]

    @pytest.mark.parametrize("closed", [{"only_report": True}, {"max_minutes": -1.0}])
    def test_nothing_begins_when_only_reporting_or_late(self, tmp_path, closed):
        path = tmp_path / "rows.json"
        Rows(path).add("a", {"x": 1})
        rows = Rows(path, **closed)
        assert rows.once("a", dict) == {"x": 1}
        assert rows.once("b", dict) is None and rows.claim("b") is None


class TestTimes:
    def test_takes_turns_and_leaves_the_first_round_out(self):
        order = []
        actions = {name: (lambda name=name: order.append(name)) for name in "ab"}
        times = interleaved(actions, rounds=3)
        assert order == list("abababab")
        assert times["a"].shape == (3, 2) and (times["b"] >= 0).all()

    def test_counts_processor_time_of_children(self):
        watch = Stopwatch()
        subprocess.run([sys.executable, "-c", "sum(range(10**7))"], check=True)
        taken = watch.read(digits=3)
        assert taken.cpu > 0.02 and taken.wall > 0.02


class TestReports:
    def test_table(self):
        assert table(("a", "b"), [(1, "x")]) == "| a | b |\n|---|---|\n| 1 | x |\n"

    def test_picture_of_the_same_numbers_is_the_same_file(self, tmp_path):
        for name in ("a.png", "b.png"):
            harness.picture(tmp_path / name, lambda axes: axes[0, 0].plot([0, 1]))
        a, b = ((tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
        assert a == b and len(a) > 1000


def _source(name):
    path = _FOLDER.parent / name.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def _reports():
    """Scripts that report on rows, with the file of these."""
    for name in _MODULES:
        files = re.findall(r'harness.main\(run, "(\w+)"\)', _source(name))
        if files and "\ndef report(" in _source(name):
            yield name, f"{files[0]}.json"


class TestScripts:
    @pytest.mark.parametrize("name, file", list(_reports()))
    def test_committed_rows_give_a_report(self, name, file):
        rows = Rows(RESULTS / file).read()
        assert rows and importlib.import_module(name).report(rows)

    def test_no_import_cycle(self):
        imports = {name: _imports(name) & set(_MODULES) for name in _MODULES}
        while leaves := [name for name, used in imports.items() if not used & set(imports)]:
            for name in leaves:
                del imports[name]
        assert not imports

    @pytest.mark.parametrize("name", [n for n in _MODULES if n != _TFMOT])
    def test_imports_beside_all_others_and_its_examples_run(self, name):
        assert not doctest.testmod(importlib.import_module(name)).failed


def _imports(name):
    """Modules that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found - {"benchmarks.compare"}  # which holds nothing but a docstring


class TestReadme:
    TEXT = (_FOLDER / "README.md").read_text()

    def test_is_short(self):
        assert len(self.TEXT.replace("|", " ").split()) < 1_200

    def test_links_lead_somewhere(self):
        for link in re.findall(r"\]\(([^)#]+)\)", self.TEXT):
            assert link.startswith("http") or (_FOLDER / link).exists(), link

    def test_commands_and_results_are_all_there(self):
        commands = set(re.findall(r"benchmarks\.([\w.]+)", self.TEXT))
        modules = {name.removeprefix("benchmarks.") for name in _MODULES}
        assert commands <= modules | {"NAME"}
        runnable = {m for m in modules if "__main__" in _source(f"benchmarks.{m}")}
        runnable = {m.removesuffix(".__main__") for m in runnable} - {"compare.tfmot_training"}
        assert runnable <= commands
        files = set(re.findall(r"results/([\w.]+)", self.TEXT))
        assert files <= {path.name for path in RESULTS.iterdir()}
