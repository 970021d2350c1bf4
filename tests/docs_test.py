"""The documents: their examples run, their links lead somewhere, their tables are complete."""

import json
import os
import re
import subprocess
import sys
import textwrap

import keras
import pytest

import udc_tf
from tests.support.paths import ROOT
from udc_tf.models import recipes, small_cnn

_DOCS = sorted((ROOT / "docs").glob("*.md"))


def _code(text, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


class TestDocs:
    @pytest.mark.parametrize("path", _DOCS, ids=lambda path: path.name)
    def test_links_lead_somewhere(self, path):
        for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not link.startswith("http"):
                assert (path.parent / link).exists(), link

    def test_every_recipe_is_in_the_table(self):
        text = (ROOT / "docs" / "recipes.md").read_text()
        assert [name for name in recipes.RECIPES if f"`{name}`" not in text] == []

    def test_example_of_a_cost_model_searches_and_loads_again(self, tmp_path):
        (example,) = _code((ROOT / "docs" / "extending.md").read_text())
        names = {"__name__": "extending"}
        exec(example, names)
        target = [udc_tf.Flash("20KiB"), names["Weights"](2_000)]
        search = udc_tf.make_searchable(small_cnn(filters=(8, 16)), "ethos_u55", target)
        chosen = search.architecture()
        assert sum(layer.weights * layer.nonzeros for layer in chosen.layers) <= 2_000
        search.save(tmp_path / "search.keras")
        assert keras.saving.load_model(tmp_path / "search.keras").targets == tuple(target)
        chosen.save(tmp_path / "chosen.json")
        assert udc_tf.Architecture.load(tmp_path / "chosen.json").targets[1]["kind"] == "weights"

    def test_examples_are_python(self):
        for path in _DOCS:
            for example in _code(path.read_text()):
                compile(example, str(path), "exec")


class TestSite:
    def test_builds_without_a_warning(self, tmp_path):
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
        command += ["--site-dir", str(tmp_path)]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
        assert "make_searchable" in (tmp_path / "api.html").read_text()
        for page in tmp_path.glob("*.html"):  # which work without a network
            assert not re.findall(
                r"""<(?:script|link|img)[^>]*(?:src|href)="?http""", page.read_text()
            )

    def test_every_public_name_is_in_the_reference(self):
        told = (ROOT / "docs" / "api.md").read_text()
        missing = [n for n in udc_tf.__all__ if not re.search(rf"\b{n}\b", told)]
        assert missing == []


class TestClusterExamples:
    """There is no cluster to run them on: what is checked is what they tell the workers."""

    _HOSTS = ("node1", "node2")

    def _told(self, script, folder, **environment):
        """TF_CONFIG of every `udc` that a shell script starts, its cluster's commands aside."""
        stand_ins = {
            "scontrol": f"printf '%s\\n' {' '.join(self._HOSTS)}",
            "srun": 'shift; for i in 0 1; do SLURM_PROCID=$i "$@"; done',
            "udc": "printf '%s\\0' \"$TF_CONFIG\"",
            "udc-search": "printf '%s\\0' \"$TF_CONFIG\"",
        }
        for name, body in stand_ins.items():
            (folder / name).write_text(f"#!/bin/bash\n{body}\n")
            (folder / name).chmod(0o755)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        command = ["bash", "-euc", script]
        environment = {**environment, "PATH": path}
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return [json.loads(config) for config in said.stdout.split("\0")[:-1]]

    @staticmethod
    def _config(hosts, index):
        workers = [f"{host}:2222" for host in hosts]
        return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}

    def test_two_machines(self, tmp_path):
        text = (ROOT / "docs" / "scale.md").read_text()
        (script,) = (c for c in _code(text, "sh") if "TF_CONFIG" in c and "SBATCH" not in c)
        assert self._told(script, tmp_path) == [self._config(("10.0.0.1", "10.0.0.2"), 0)]

    def test_slurm(self, tmp_path):
        text = (ROOT / "docs" / "scale.md").read_text()
        (script,) = (code for code in _code(text, "sh") if "SBATCH" in code)
        told = self._told(script, tmp_path, SLURM_JOB_NODELIST="node[1-2]")
        assert told == [self._config(self._HOSTS, i) for i in range(2)]

    def test_kubernetes(self, tmp_path):
        (text,) = _code((ROOT / "docs" / "scale.md").read_text(), "yaml")
        script = textwrap.dedent(re.search(r"args:\n +- \|\n(.*?) +ports:", text, re.DOTALL)[1])
        told = self._told(script, tmp_path, JOB_COMPLETION_INDEX="1")
        assert told == [self._config(("udc-0.udc", "udc-1.udc"), 1)]
