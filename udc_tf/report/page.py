"""The report as HTML: figures inside, nothing to load, for paper and phone."""

import base64
import html
import io
import os
import pathlib

from matplotlib.figure import Figure

from udc_tf.files import refuse_links_out_of, replaced_atomically
from udc_tf.report import figures
from udc_tf.report.collect import Facts, collect, versions, weight_rows
from udc_tf.report.model_graph import write_model_graph
from udc_tf.report.style import styled
from udc_tf.report.template import page, section, table, tiles

LABELS = {
    "classification": ("accuracy", "accuracy"),
    "reconstruction": ("mean_squared_error", "mean squared error"),
    "super_resolution": ("psnr", "PSNR in dB"),
}


def write_report(folder: str | os.PathLike) -> pathlib.Path:
    """Writes `report.html`, its figures and the network's graph from what a work directory holds.

    Example:

    ```python
    udc_tf.report.page.write_report("runs/fashion")
    ```
    """
    refuse_links_out_of(folder)
    facts = collect(pathlib.Path(folder))
    if not facts.architecture:
        raise ValueError(f"There is nothing to report yet in {folder}: no architecture.json.")
    with styled():
        drawn = _draw(facts)
    pictures = {name: embedded(figure, facts.folder, name) for name, figure in drawn.items()}
    if facts.network is not None:
        write_model_graph(facts.folder, facts.network, facts.export.get("layers", []))
    path = facts.folder / "report.html"
    with replaced_atomically(path) as partial:
        partial.write_text(_page(facts, pictures), encoding="utf-8")
    return path


def embedded(figure: Figure, folder: pathlib.Path, name: str) -> str:
    """The figure as an address that holds it; a copy goes to the folder's `images/`."""
    content = png(figure)
    with replaced_atomically(folder / "images" / f"{name}.png") as partial:
        partial.write_bytes(content)
    return as_address(content)


def as_address(content: bytes) -> str:
    """A picture as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _draw(facts: Facts) -> dict[str, Figure]:
    metric, label = LABELS[facts.task]
    drawn = {}
    if sizes := _sizes(facts):
        drawn["flash"] = figures.budget_figure(sizes, _budget(facts))
    if lines := facts.results.get("budgets"):
        drawn["budgets"] = figures.shares_figure(lines)
    if tensors := facts.export.get("memory"):
        budget = facts.search_settings.get("sram")
        drawn["memory"] = figures.memory_figure(tensors, budget)
    drawn["decisions"] = figures.decisions_figure(facts.architecture["layers"])
    drawn["bytes"] = figures.bytes_figure(facts.layer_bytes())
    if facts.network is not None:
        drawn["weights"] = figures.histograms_figure(weight_rows(facts.network))
    if facts.search:
        drawn["search"] = figures.search_figure(facts.search, metric, label)
    if facts.finetune:
        drawn["finetune"] = figures.finetune_figure(facts.finetune, metric, label)
    if facts.probabilities:
        drawn["probabilities"] = figures.probabilities_figure(facts.probabilities)
    return drawn


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    # Without the date and the version of matplotlib, the same figure has the same bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _budget(facts: Facts) -> int | None:
    return facts.search_settings.get("flash")


def _sizes(facts: Facts) -> dict[str, float]:
    results = facts.results
    sizes = {
        "predicted": results.get("predicted_flash_bytes") or None,
        "int8 .tflite": results.get("tflite_bytes"),
        "compiled": results.get("flash_bytes"),
    }
    return {name: size for name, size in sizes.items() if size}


def _page(facts: Facts, pictures: dict[str, str]) -> str:
    def picture(name: str, text: str) -> str:
        if name not in pictures:
            return ""
        return f'<figure><img src="{pictures[name]}" alt="{html.escape(text)}"></figure>'

    settings = facts.search_settings
    parts = [
        tiles(_tiles(facts)),
        section(
            "Does it fit?",
            _fit_sentence(facts)
            + picture("flash", "Flash against the budget")
            + picture("budgets", "Each budget, and what is needed of it"),
        ),
        section(
            "Working memory",
            "<p>Feature maps and buffered weights in SRAM, as Vela plans them.</p>"
            + picture("memory", "SRAM in use over time"),
        )
        if "memory" in pictures
        else "",
        section(
            "What the search decided",
            "<p>Channels kept, bits per weight and weights that are not zero, layer by layer.</p>"
            + picture("decisions", "Width, bits and non-zeros of each layer")
            + _layer_table(facts),
        ),
        section("What the data changed", _changes(facts)) if facts.results.get("changes") else "",
        section(
            "Bytes of each layer's weights",
            "<p>Predicted: s·b + H(s) bits per weight, s the share of non-zeros, b the bits. "
            "Vela: the encoded weight stream in the compiled file.</p>"
            + picture("bytes", "Predicted and compiled bytes of each layer"),
        ),
        section("Whole images", _sets_table(facts)) if facts.results.get("sets") else "",
        section("Does it run?", _runner_table(facts)) if facts.results.get("verification") else "",
        section(
            "Weights",
            "<p>Pale: the weights before quantization. Blue ticks: the levels they are deployed "
            "as. Orange: the pruned zone.</p>" + picture("weights", "Histograms of the weights"),
        )
        if facts.network is not None
        else "",
        section(
            "Training",
            picture("search", "Curves of the search") + picture("finetune", "Curves of finetuning"),
        ),
        section(
            "How sure the search was",
            "<p>Probability of each option at the end, dark where likely; the dot marks the most "
            "likely. What was built may differ where the budget asked for it.</p>"
            + picture("probabilities", "Probabilities of all options"),
        )
        if facts.probabilities
        else "",
        section("How to repeat it", repeat(facts)),
    ]
    subtitle = f"{settings.get('data', '')} · {settings.get('accelerator', '')}"
    return page(facts.title, subtitle, "".join(parts))


def _tiles(facts: Facts) -> list[tuple[str, str, str]]:
    results, manifest = facts.results, facts.manifest
    found = []
    label = {"classification": "accuracy", "super_resolution": "PSNR"}.get(facts.task, "error")
    if results.get("test_score") is not None:
        count = results.get("examples", {}).get("test")
        note = f"{count:,} test examples" if count else "test set"
        found.append((score_text(facts, results["test_score"]), label, note))
    if results.get("flash_bytes"):
        budget = results.get("flash_budget")
        note = f"{results['flash_bytes'] / budget:.1%} of the budget" if budget else "compiled file"
        found.append((f"{results['flash_bytes']:,} B", "flash", note))
    elif results.get("predicted_flash_bytes"):
        found.append((f"{results['predicted_flash_bytes']:,} B", "flash", "predicted"))
    if results.get("sram_bytes"):
        found.append((f"{results['sram_bytes']:,} B", "SRAM", "as Vela plans it"))
    if manifest.get("estimated_cycles"):
        found.append((f"{manifest['estimated_cycles']:,}", "cycles", "estimated by Vela"))
    if results.get("macs"):
        found.append((_short(results["macs"]), "MACs", "per inference"))
    seconds = sum(results.get(f"{s}_seconds") or 0 for s in ("search", "finetune", "export"))
    if seconds:
        found.append((_duration(seconds), "time", "search, finetuning, export"))
    return found


def _fit_sentence(facts: Facts) -> str:
    results, budget = facts.results, _budget(facts)
    flash = results.get("flash_bytes")
    if flash is None:
        return "<p>Not compiled yet; the size is predicted.</p>"
    if budget is None:
        return f"<p>The compiled file has {flash:,} bytes; there was no flash budget.</p>"
    verdict = "fits" if flash <= budget else "does not fit"
    text = f"<p>The compiled file has {flash:,} bytes and <b>{verdict}</b> {budget:,}."
    rounds = facts.export.get("tightening") or []
    first = rounds[0].get("flash_bytes_before", flash) if rounds else flash
    if predicted := results.get("predicted_flash_bytes"):
        text += f" Predicted were {predicted:,}"
        text += f", first compiled {first:,}" if rounds else ""
        text += f" ({predicted / first - 1:+.1%})."
    if rounds:
        text += f" It was tightened in {len(rounds)} round{'s' if len(rounds) > 1 else ''} to fit."
    return text + "</p>"


def _layer_table(facts: Facts) -> str:
    rows = [
        [
            layer["name"],
            "x".join(map(str, layer["kernel_size"])) or "-",
            f"{layer['inputs']} → {layer['outputs']} of {layer['original_outputs']}",
            layer["bits"],
            f"{layer['nonzeros']:.0%}",
            f"{layer['weights']:,}",
            f"{layer['bytes']:,.0f}",
        ]
        for layer in facts.architecture["layers"]
    ]
    head = ["layer", "kernel", "channels", "bits", "non-zeros", "weights", "bytes, all in"]
    return table(head, rows)


def _changes(facts: Facts) -> str:
    """Decisions that are not where the first guess put them; those that are, as a number."""
    found = facts.results["changes"]
    moved = [c for c in found if not c["guess"] == c["start"] == c["end"]]
    rows = [
        [c["name"], *(f"{c[k]:.3g}" for k in ("guess", "start", "end")), f"{c['price']:.1%}"]
        for c in moved
    ]
    text = (
        f"<p>{len(moved)} of {len(found)} decisions are not where the first guess, which has seen "
        "no data, put them. Start: after the warm-up, when the loss had been asked. End: after "
        "the search, before anything was moved to fit. Price: of the end over the smallest "
        "option, in shares of the budget.</p>"
    )
    return text + (table(["decision", "guess", "start", "end", "price"], rows) if rows else "")


def _runner_table(facts: Facts) -> str:
    rows = []
    for row in facts.results["verification"]:
        if "unavailable" in row:
            rows.append([row["runner"], f"not available: {row['unavailable']}", "", "", ""])
            continue
        differs = row.get("differs_from_tflm")
        same = {None: "reference" if row["runner"] == "tflm" else "-", 0: "equal, bit for bit"}
        rows.append(
            [
                row["runner"],
                score_text(facts, row["score"]),
                same.get(differs, f"{differs} values differ"),
                f"{row['cycles']:,}" if row.get("cycles") else "-",
                f"{row['seconds']:.2f} s" if "seconds" in row else "-",
            ]
        )
    label = LABELS[facts.task][1]
    counts = {row["examples"] for row in facts.results["verification"] if "examples" in row}
    count = f"{max(counts)} test examples" if counts else "Test examples"
    text = (
        f"<p>{count} on each runner. keras: the fake-quantized network; tflm: the int8 .tflite in "
        "TFLite Micro; npu: the compiled command stream, executed.</p>"
    )
    return text + table(["runner", label, "against tflm", "cycles", "time"], rows)


def _sets_table(facts: Facts) -> str:
    text = "<p>Mean PSNR on Y in dB, four times enlarged, 4 pixels of border cropped.</p>"
    rows = [
        [name, row["images"], f"{row['psnr']:.2f}", f"{row['bicubic']:.2f}"]
        for name, row in facts.results["sets"].items()
    ]
    return text + table(["set", "images", "this network", "bicubic"], rows)


def repeat(facts: Facts) -> str:
    commands = "\n".join(entry["command"] for entry in facts.run.get("commands", []))
    rows = [[name, version] for name, version in versions().items()]
    return f"<pre>{html.escape(commands)}</pre>" + table(["package", "version"], rows)


def score_text(facts: Facts, value: float) -> str:
    if facts.task == "classification":
        return f"{value:.2%}"
    return f"{value:.2f} dB" if facts.task == "super_resolution" else f"{value:.4g}"


def _short(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:g}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
