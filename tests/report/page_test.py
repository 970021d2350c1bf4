"""The report: complete, self-contained, and looked at in a real browser."""

import json
import re
import shutil

import numpy as np
import pytest

from tests.support.browser import browse, look_at
from udc_tf.layers.compact_kernels import CompactConv2D
from udc_tf.report import figures
from udc_tf.report.collect import bound_bytes
from udc_tf.report.page import write_report
from udc_tf.report.style import styled

_HEADINGS = (
    "Does it fit?",
    "What the search decided",
    "Bytes of each layer&#x27;s weights",
    "Does it run?",
    "Training",
    "How sure the search was",
    "How to repeat it",
)


def _layer(name, outputs=8, original=16, bits=4, nonzeros=0.5):
    return {
        "name": name,
        "kernel_size": [3, 3],
        "inputs": 8,
        "outputs": outputs,
        "original_outputs": original,
        "bits": bits,
        "nonzeros": nonzeros,
        "weights": 576,
        "bytes": 320.0,
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A work directory as a finished run leaves it, with thirty layers."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "artefacts").mkdir()
    names = [f"block{n}_a_rather_long_name" for n in range(30)]
    epochs = range(5)

    def write(name, content):
        (folder / name).write_text(json.dumps(content))

    write("architecture.json", {"layers": [_layer(n) for n in names]})
    write("probabilities.json", {f"bits/{n}": [[2, 4, 8], [0.1, 0.8, 0.1]] for n in names[:5]})
    write(
        "run.json",
        {
            "sections": {"search": {"recipe": "digits", "task": "classification", "flash": 8192}},
            "commands": [{"command": "udc --recipe=digits --model='<script>'", "time": ""}],
        },
    )
    write(
        "results.json",
        {
            "predicted_flash_bytes": 8100,
            "flash_bytes": 8000,
            "flash_budget": 8192,
            "tflite_bytes": 20000,
            "sram_bytes": 4000,
            "macs": 1_500_000,
            "test_score": 0.97,
            "examples": {"test": 360},
            "search_seconds": 100,
            "verification": [
                {"runner": "tflm", "score": 0.97, "seconds": 0.1, "cycles": None},
                {"runner": "npu", "score": 0.97, "seconds": 0.1, "differs_from_tflm": 0},
                {"runner": "fvp", "unavailable": "no FVP on PATH"},
            ],
        },
    )
    layers = [{"layer": n, "vela_bytes": 300} for n in names]
    write("artefacts/report.json", {"layers": layers, "tightening": [{}]})
    write("artefacts/manifest.json", {"estimated_cycles": 12345})
    rows = [{"epoch": e, "accuracy": 0.5, "argmax_ratio": 1.1, "entropy": 0.5} for e in epochs]
    (folder / "search.jsonl").write_text("\n".join(map(json.dumps, rows)))
    rows = [{"epoch": e, "accuracy": 0.5, "val_accuracy": 0.4, "stage": 1 + e // 2} for e in epochs]
    (folder / "finetune.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_report(folder)
    return folder


class TestWriteReport:
    def test_has_all_sections_and_numbers(self, run):
        text = (run / "report.html").read_text()
        for heading in _HEADINGS:
            assert heading in text
        for number in ("97.00%", "8,000 B", "97.7% of the budget", "12,345", "1.5 M", "fits"):
            assert number in text
        assert "no FVP on PATH" in text and "equal, bit for bit" in text

    def test_refers_to_nothing_outside(self, run):
        text = (run / "report.html").read_text()
        assert not re.search(r"""(?:src|href)=["'](?!data:)""", text)
        assert "http" not in text and "@import" not in text and "url(" not in text

    def test_escapes_what_the_user_typed(self, run):
        assert "<script>" not in (run / "report.html").read_text()

    def test_figures_are_kept_as_files(self, run):
        assert {"decisions.png", "flash.png", "search.png"} <= {
            path.name for path in (run / "images").iterdir()
        }

    def test_same_content_gives_same_bytes(self, run):
        before = (run / "report.html").read_bytes()
        write_report(run)
        assert (run / "report.html").read_bytes() == before

    def test_reports_an_unfinished_run(self, tmp_path, run):
        shutil.copy(run / "architecture.json", tmp_path)
        text = write_report(tmp_path).read_text()
        assert "Not compiled yet" in text

    def test_nothing_to_report(self, tmp_path):
        with pytest.raises(ValueError, match="nothing to report"):
            write_report(tmp_path)


class TestInABrowser:
    @pytest.mark.parametrize("width", [360, 1200])
    def test_every_picture_shows_and_nothing_sticks_out(self, run, tmp_path, width):
        found = look_at(run / "report.html", tmp_path, width)
        assert found["images"] == found["shown"] == found["alts"] >= 5
        assert found["width"] <= width
        assert found["headings"] >= len(_HEADINGS)
        assert found["loaded"] == 0

    def test_prints(self, run, tmp_path):
        paper = tmp_path / "report.pdf"
        browse(tmp_path, f"--print-to-pdf={paper}", f"file://{run / 'report.html'}")
        content = paper.read_bytes()
        assert content.startswith(b"%PDF") and len(content) > 20_000


class TestFigures:
    def test_weights_show_levels_and_pruned_zone(self):
        layer = CompactConv2D(4, 3, bits=4, nonzeros=0.5, name="conv")
        layer.build((None, 8, 8, 2))
        layer.refresh_mask()
        integers = layer.integer_kernel()
        row = {
            "name": "conv",
            "bits": 4,
            "theta": np.asarray(layer.theta).ravel(),
            "levels": np.unique(integers.codes) * integers.step,
            "beta": 0.1,
        }
        with styled():
            figure = figures.histograms_figure([row] * 3)
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert titles[:3] == ["conv: 4 bits"] * 3

    def test_bytes_without_a_compiled_file(self):
        figure = figures.bytes_figure([("conv", 100.0, None)])
        assert len(figure.axes[0].patches) == 1

    def test_budgets_as_shares_and_memory_over_time(self):
        lines = [
            {"what": "flash bytes", "need": 900, "have": 1000, "excess": 0},
            {"what": "sram bytes", "need": 1500, "have": 1000, "excess": 500},
        ]
        bars = figures.shares_figure(lines).axes[0].patches
        assert [bar.get_width() for bar in bars] == [90, 150]
        assert bars[0].get_facecolor() != bars[1].get_facecolor()
        tensors = [
            {"name": "a", "bytes": 2048, "start": 0, "end": 3},
            {"name": "b", "bytes": 1024, "start": 2, "end": 5},
        ]
        axes = figures.memory_figure(tensors, 2500.0).axes[0]
        top = max(path.vertices[:, 1].max() for c in axes.collections for path in c.get_paths())
        assert top == 3  # KiB, while both are there
        assert axes.get_title() == "SRAM in use: at most 3.0 KiB, with a, b"


class TestBoundBytes:
    def test_half_of_four_bits_and_one_of_mask(self):
        assert bound_bytes({"nonzeros": 0.5, "bits": 4, "weights": 8}) == 3.0
