"""HTML pieces of the report, and how they look."""

import html
from collections.abc import Sequence
from typing import Any

_STYLE = """
:root { --ink: #1f2933; --soft: #616e7c; --line: #dde3ea; --blue: #0b69a3; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 58rem; padding: 1.2rem 1rem 3rem; color: var(--ink);
  background: #fff; font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; text-transform: capitalize; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; padding-top: .8rem;
  border-top: 1px solid var(--line); }
p { margin: .4rem 0 .8rem; }
.subtitle { color: var(--soft); margin: .2rem 0 1.2rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; }
.tile { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.25rem; line-height: 1.2; color: var(--blue);
  font-variant-numeric: tabular-nums; }
.tile span { display: block; font-size: .82rem; color: var(--soft); }
figure { margin: .6rem 0; }
figure img { width: 100%; max-width: 42rem; height: auto; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { color: var(--soft); font-weight: 600; }
pre { background: #f5f7fa; border-radius: .4rem; padding: .7rem; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2, figure, .tiles, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  figure img { max-width: 13.5cm; max-height: 20cm; width: auto; }
  .wide { overflow: visible; }
}
"""


def page(title: str, subtitle: str, body: str) -> str:
    """A whole page. Nothing in it refers to anything outside."""
    title, subtitle = html.escape(title), html.escape(subtitle)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # An empty icon keeps browsers from asking for one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{title} - udc-tf</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{title}</h1>\n<p class="subtitle">{subtitle}</p>\n{body}</body>\n</html>\n'
    )


def section(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{content}</section>\n"


def tiles(values: Sequence[tuple[str, str, str]]) -> str:
    """Value, name and note of each number that matters."""
    boxes = (
        f'<div class="tile"><b>{html.escape(v)}</b>{html.escape(n)}'
        f"<span>{html.escape(note)}</span></div>"
        for v, n, note in values
    )
    return f'<div class="tiles">{"".join(boxes)}</div>\n'


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table that scrolls by itself on a narrow screen.

    >>> table(["a"], [[1]])
    '<div class="wide"><table><tr><th>a</th></tr><tr><td>1</td></tr></table></div>'
    """
    lines = ["<tr>" + "".join(f"<th>{html.escape(h)}</th>" for h in head) + "</tr>"]
    for row in rows:
        lines.append("<tr>" + "".join(f"<td>{html.escape(str(c))}</td>" for c in row) + "</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'
