"""Several work directories on one page."""

import json
import re

import pytest

from tests.support.browser import look_at
from udc_tf.cli import report_command


def _run(folder, data="digits", task="classification", flash=8000, score=0.97):
    folder.mkdir(parents=True)
    layer = {"name": "conv", "kernel_size": [3, 3], "inputs": 1, "outputs": 8}
    layer |= {"original_outputs": 16, "bits": 4, "nonzeros": 0.5, "weights": 72, "bytes": 40.0}
    search = {"recipe": data, "data": data, "task": task, "flash": 8192}
    results = {"flash_bytes": flash, "flash_budget": 8192, "test_score": score, "macs": 1_000}
    for name, content in (
        ("architecture.json", {"layers": [layer]}),
        ("run.json", {"sections": {"search": search}, "commands": []}),
        ("results.json", results),
    ):
        (folder / name).write_text(json.dumps(content))
    (folder / "report.html").write_text("<title>own</title>")
    return folder


@pytest.fixture
def runs(tmp_path):
    return [
        _run(tmp_path / "runs" / "small"),
        _run(tmp_path / "runs" / "large", flash=16_000, score=0.99),
        _run(tmp_path / "runs" / "<b>", data="denoise", task="reconstruction", score=0.01),
        _run(tmp_path / "other" / "small", flash=None, score=None),
    ]


def _report(*arguments):
    said = []
    return report_command.main(["udc-report", *map(str, arguments)], said.append), said


def test_runs_on_the_same_data_stand_together(runs, tmp_path):
    page = tmp_path / "all" / "report.html"
    page.parent.mkdir()
    assert _report(*runs, f"--output={page}") == (0, [f"report: {page}"])
    text = page.read_text()
    assert re.findall("<h2>(.*?)</h2>", text) == [
        "digits, classification",
        "denoise, reconstruction",
    ]
    for part in ("runs/small", "other/small", "16,000", "99.00%", "not compiled yet", "0.01"):
        assert part in text
    assert "<b>" not in text.replace("&lt;b&gt;", "") and text.count("<img") == 2
    for address in re.findall('href="([^"]*report.html)"', text):
        assert (page.parent / address.replace("&lt;", "<").replace("&gt;", ">")).is_file()


def test_one_gets_its_own_report_anew(runs):
    assert _report(runs[0]) == (0, [f"report: {runs[0] / 'report.html'}"])
    assert "What the search decided" in (runs[0] / "report.html").read_text()


@pytest.mark.parametrize("width", [360, 1200])
def test_in_a_browser(runs, tmp_path, width):
    page = tmp_path / "report.html"
    _report(*runs, f"--output={page}")
    found = look_at(page, tmp_path, width)
    assert found["images"] == found["shown"] == found["alts"] == 2
    assert found["width"] <= width and found["loaded"] == 0


def test_mistakes_are_one_line(runs, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for arguments, code, message in (
        ((), 2, "Work directories are needed"),
        ((runs[0], "--output=x.html"), 2, "--output is for several"),
        ((runs[0], tmp_path / "empty"), 1, "nothing to report yet"),
        ((tmp_path / "empty",), 1, "nothing to report yet"),
        ((runs[0], "--no_such=1"), 2, "no_such"),
    ):
        assert _report(*arguments)[0] == code
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
