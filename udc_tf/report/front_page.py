"""The report of several budgets: their networks side by side."""

import html
import os
import pathlib
from collections.abc import Sequence

from udc_tf.files import refuse_links_out_of, replaced_atomically
from udc_tf.report import figures
from udc_tf.report.collect import Facts, collect
from udc_tf.report.page import LABELS, embedded, repeat, score_text
from udc_tf.report.style import styled
from udc_tf.report.template import page, section, table


def write_front(folder: str | os.PathLike, names: Sequence[str]) -> pathlib.Path:
    """Writes `report.html` for a work directory whose folders `names` hold one budget each.

    Example:

    ```python
    udc_tf.report.front_page.write_front("runs/fashion", ["16KiB", "24KiB", "32KiB"])
    ```
    """
    refuse_links_out_of(folder)
    folder = pathlib.Path(folder)
    top, parts = collect(folder), {name: collect(folder / name) for name in names}
    label = LABELS[top.task][1]
    points = [
        (size, facts.results["test_score"])
        for facts in parts.values()
        if _is_tested(facts) and (size := _flash(facts)) is not None
    ]
    content = "<p>One search, several budgets; each has a folder and a report of its own.</p>"
    content += table(
        ["budget", "flash, bytes", "of the budget", f"test {label}", "search, s", "MACs"],
        [_row(name, facts) for name, facts in parts.items()],
    )
    if points:
        with styled():
            figure = figures.front_figure(points, label)
        source = embedded(figure, folder, "front")
        content += f'<figure><img src="{source}" alt="{label} against flash"></figure>'
    links = "".join(
        f'<li><a href="{html.escape(name)}/report.html">{html.escape(name)}</a></li>'
        for name in parts
    )
    body = section("Size against accuracy", content) + section("Each budget", f"<ul>{links}</ul>")
    settings = top.search_settings
    subtitle = f"{settings.get('data', '')} · {settings.get('accelerator', '')}"
    path = folder / "report.html"
    with replaced_atomically(path) as partial:
        text = page(top.title, subtitle, body + section("How to repeat it", repeat(top)))
        partial.write_text(text, encoding="utf-8")
    return path


def _row(name: str, facts: Facts) -> list[str]:
    results, flash = facts.results, _flash(facts)
    budget = facts.search_settings.get("flash")
    compiled = "" if results.get("flash_bytes") else " (predicted)"
    return [
        name,
        f"{flash:,}{compiled}" if flash else "-",
        f"{flash / budget:.1%}" if flash and budget else "-",
        score_text(facts, results["test_score"]) if _is_tested(facts) else "-",
        f"{results['search_seconds']:.0f}" if "search_seconds" in results else "-",
        f"{results['macs']:,}" if results.get("macs") else "-",
    ]


def _flash(facts: Facts) -> int | None:
    return facts.results.get("flash_bytes") or facts.results.get("predicted_flash_bytes")


def _is_tested(facts: Facts) -> bool:
    return facts.results.get("test_score") is not None
