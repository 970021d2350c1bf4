"""Several work directories on one page: what each network scores and costs."""

import html
import os
import pathlib
from collections.abc import Mapping, Sequence

from udc_tf.files import refuse_links_out_of, replaced_atomically
from udc_tf.report import figures
from udc_tf.report.collect import Facts, collect
from udc_tf.report.page import LABELS, as_address, png, score_text
from udc_tf.report.style import styled
from udc_tf.report.template import page, section, table

_HEAD = ("run", "network", "flash, bytes", "of the budget", "SRAM, bytes", "cycles", "MACs")


def write_comparison(
    folders: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str]
) -> pathlib.Path:
    """Writes one page about several work directories, runs on the same data side by side.

    Example:

    ```python
    udc_tf.report.comparison_page.write_comparison(["runs/small", "runs/large"], "runs/report.html")
    ```
    """
    path = pathlib.Path(path)
    runs = {}
    for name, folder in _names(folders).items():
        refuse_links_out_of(folder)
        runs[name] = collect(folder)
        if not runs[name].architecture:
            raise ValueError(f"There is nothing to report yet in {folder}: no architecture.json.")
    body = ""
    for data, of_data in _by_data(runs).items():
        body += section(data, _section(of_data, path.parent))
    text = page("Several runs", f"{len(runs)} work directories", body)
    with replaced_atomically(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def _names(folders: Sequence[str | os.PathLike[str]]) -> dict[str, pathlib.Path]:
    """Each folder by the shortest end of its path that no other one has."""
    paths = list(dict.fromkeys(pathlib.Path(folder).resolve() for folder in folders))
    for parts in range(1, max(len(p.parts) for p in paths) + 1):
        names = {"/".join(p.parts[-parts:]): p for p in paths}
        if len(names) == len(paths):
            return names
    raise AssertionError("different paths have different parts")


def _by_data(runs: Mapping[str, Facts]) -> dict[str, dict[str, Facts]]:
    """Scores compare only on the same data and task."""
    found: dict[str, dict[str, Facts]] = {}
    for name, facts in runs.items():
        data = str(facts.search_settings.get("data") or "data not known")
        found.setdefault(f"{data}, {facts.task.replace('_', ' ')}", {})[name] = facts
    return found


def _section(runs: Mapping[str, Facts], beside: pathlib.Path) -> str:
    label = LABELS[next(iter(runs.values())).task][1]
    content = table([*_HEAD, f"test {label}"], [_row(n, f) for n, f in runs.items()])
    points = {
        name: (facts.results["flash_bytes"], facts.results["test_score"])
        for name, facts in runs.items()
        if facts.results.get("flash_bytes") and facts.results.get("test_score") is not None
    }
    if points:
        with styled():
            figure = figures.scatter_figure(points, label)
        text = html.escape(f"{label} against flash, one point per run")
        content += f'<figure><img src="{as_address(png(figure))}" alt="{text}"></figure>'
    links = ""
    for name, facts in runs.items():
        report = facts.folder / "report.html"
        if report.is_file():
            address = html.escape(os.path.relpath(report, beside.resolve()))
            links += f'<li><a href="{address}">{html.escape(name)}</a></li>'
    return content + (f"<p>Their own reports:</p><ul>{links}</ul>" if links else "")


def _row(name: str, facts: Facts) -> list[str]:
    results, flash = facts.results, facts.results.get("flash_bytes")
    budget, score = results.get("flash_budget"), results.get("test_score")
    cycles = facts.manifest.get("estimated_cycles")
    return [
        name,
        facts.title,
        f"{flash:,}" if flash else "not compiled yet",
        f"{flash / budget:.1%}" if flash and budget else "-",
        *(f"{n:,}" if n else "-" for n in (results.get("sram_bytes"), cycles, results.get("macs"))),
        score_text(facts, score) if score is not None else "-",
    ]
