"""The networks of zoo/: whole, within budget, and each file still computes its golden outputs."""

import json
import pathlib

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from benchmarks import zoo_cards
from benchmarks.zoo_networks import NETWORKS
from tests.support.paths import ROOT
from udc_tf.export import manifest, run_main
from udc_tf.models.recipes import RECIPES

ZOO = ROOT / "zoo"
FOLDERS = sorted(path.parent for path in ZOO.glob("*/*/manifest.json"))
_MOST_BYTES = 7_000_000


def _name(folder: pathlib.Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def test_there_are_networks():
    assert FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_files_are_whole_and_within_their_budget(folder):
    assert manifest.damaged(folder) is None
    made = json.loads((folder / "manifest.json").read_text())
    compiled = folder / "model_vela.tflite"
    assert compiled.stat().st_size == made["flash_bytes"] <= made["budgets"][0]["have"]
    assert made["accelerator"] == "ethos-u55-128" and not made["cpu_operators"]
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_udc_run_finds_both_files_equal_to_the_golden_outputs(folder, capsys):
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["udc-run"])
    with flagsaver.flagsaver(on=["tflm", "npu"], count=1):
        assert run_main.main(["udc-run", str(folder / "model_vela.tflite")]) == 0
    shown = capsys.readouterr().out
    assert shown.count("equal") == 2, shown


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_card_says_what_it_was_made_with(folder):
    network = NETWORKS[folder.parent.name]
    said = (folder / "README.md").read_text()
    assert " ".join(network.command(0)) in said
    assert network.data in said and network.not_for in said
    made = json.loads((folder / "manifest.json").read_text())
    assert f"{made['flash_bytes']:,}" in said


def test_of_large_goldens_few_are_kept_and_the_manifest_knows(tmp_path):
    (tmp_path / "golden").mkdir()
    for name, size in (("input_0", 10_000), ("output_0", 50_000)):
        np.save(tmp_path / "golden" / f"{name}.npy", np.arange(8 * size).reshape(8, size) % 128)
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": 1, "files": {}}))
    zoo_cards.keep_few_goldens(tmp_path)
    kept = np.load(tmp_path / "golden" / "output_0.npy")
    np.testing.assert_array_equal(kept, np.arange(50_000)[None] % 128)
    assert manifest.damaged(tmp_path) is None
    listed = json.loads((tmp_path / "manifest.json").read_text())
    assert listed["schema"] == 1 and len(listed["files"]) == 2


def test_networks_are_of_known_recipes_and_a_few_megabytes():
    assert {network.recipe for network in NETWORKS.values()} <= RECIPES.keys()
    assert sum(f.stat().st_size for f in ZOO.rglob("*") if f.is_file()) < _MOST_BYTES


def test_the_results_of_the_readme_are_those_of_the_rows():
    rows = json.loads((ROOT / "benchmarks" / "results" / "take_home.json").read_text())
    assert zoo_cards.results(rows) in (ROOT / "README.md").read_text()


def test_nothing_names_a_folder_of_the_machine_it_was_made_on():
    for file in ZOO.rglob("*"):
        if file.suffix in (".md", ".json", ".html", ".c", ".h"):
            assert "/tmp/" not in file.read_text() and "/home/" not in file.read_text(), file
