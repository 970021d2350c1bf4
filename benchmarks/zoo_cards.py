"""What `zoo/` says about itself: a card per network and budget, and the page that lists them."""

import base64
import io
import json
import pathlib
import re
import shutil
from collections.abc import Mapping

import numpy as np

from benchmarks import harness
from benchmarks.harness import Row, mean_and_deviation, table
from benchmarks.zoo_networks import NETWORKS
from udc_tf.export import manifest

ZOO = pathlib.Path(__file__).parents[1] / "zoo"
README = ZOO.with_name("README.md")
RESULTS = (
    "spoken_digits_conv1d",
    "cifar10",
    "fashion_mnist",
    "activity",
    "super_resolution",
)  # of the README
_MARKS = "<!-- made by: python -m benchmarks.take_home --only_report -->\n", "<!-- end -->"
_COLOURS = 32  # of a report's pictures: a third of the bytes
_GOLDEN_BYTES = 150_000  # of a network's golden inputs and outputs; images can be large
_HEAD = ("network", "budget", "test", "flash", "SRAM", "cycles", "MACs")


def take_files(name: str, work: pathlib.Path) -> None:
    """Copies the artefacts and the report of each budget of a finished run."""
    for budget in NETWORKS[name].budgets:
        target = ZOO / name / budget
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(work / budget / "artefacts", target)
        keep_few_goldens(target)
        page = (work / budget / "report.html").read_text()
        harness.write(target / "report.html", with_small_pictures(page))


def keep_few_goldens(folder: pathlib.Path) -> None:
    """Leaves as many golden examples as take little space; the manifest tells of what is left."""
    arrays = {path: np.load(path) for path in (folder / "golden").glob("*.npy")}
    of_one = sum(array[0].nbytes for array in arrays.values())
    for path, array in arrays.items():
        np.save(path, array[: max(1, _GOLDEN_BYTES // of_one)])
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    listed = {name: row for name, row in manifest.files(folder).items() if name != path.name}
    harness.write(path, manifest.to_json(content | {"files": listed}))


def with_small_pictures(page: str) -> str:
    """The page, its pictures with few colours."""
    from PIL import Image

    def smaller(found: re.Match) -> str:
        picture = Image.open(io.BytesIO(base64.b64decode(found[1]))).convert("RGB")
        out = io.BytesIO()
        picture.quantize(_COLOURS).save(out, "PNG", optimize=True)
        return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"

    return re.sub(r"data:image/png;base64,([A-Za-z0-9+/=]+)", smaller, page)


def seeds_of(rows: Mapping[str, Row], name: str) -> list[Row]:
    """The rows of a network's seeds, seed 0 first."""
    found = {key: row for key, row in rows.items() if key.rpartition("/")[0] == name}
    return [found[key] for key in sorted(found) if not key.endswith("/int8")]


def write_cards(rows: Mapping[str, Row]) -> None:
    for name, network in NETWORKS.items():
        if f"{name}/0" not in rows:
            continue
        for budget in network.budgets:
            folder = ZOO / name / budget
            if folder.is_dir():
                harness.write(folder / "README.md", card(name, budget, rows))


def card(name: str, budget: str, rows: Mapping[str, Row]) -> str:
    """What a reader has to know before using one network."""
    network, found = NETWORKS[name], [row["budgets"][budget] for row in seeds_of(rows, name)]
    first, metric = found[0], found[0]["metric"]
    lines = [_line(name, budget, first, _score(metric, [row["test"] for row in found]))]
    if (int8 := rows.get(f"{name}/int8")) is not None:
        lines.append(_line("int8, full width", "", int8, _score(metric, [int8["test"]])))
    examples = first["examples"]
    sets = [
        f"{key}: {row['psnr']:.2f} dB on Y, bicubic {row['bicubic']:.2f}."
        for key, row in first["sets"].items()
    ]
    return f"""# {network.title}, {budget}

{table(_HEAD, lines)}
- **Score**: {metric} on {examples["test"]:,} test examples, {_seeds(len(found))}; the files here
  are those of seed 0, whichever is best. Validation: {_score(metric, [first["validation"]])}.
  {" ".join(sets)}
- **Data**: {network.data}.
- **Training it had**: `{" ".join(network.training)}`, {examples["train"]:,} training examples;
  far less than the recipe's. The int8 network of the same family had as many epochs.
- **Made by**: `udc {" ".join(network.command(0))} --workdir=FOLDER`,
  then FOLDER/{budget}.
- **Device**: Arm Ethos-U55 with 128 MACs per cycle; flash is the whole file that Vela wrote.
  Cycles are an estimate by Vela's cost model. On {first["verified_on"]} test examples the compiled
  file differs from TFLite Micro in {first["unlike_tflm"]} values.
- **Must not be used for**: {network.not_for}

`udc-run model_vela.tflite` checks the file against its golden outputs. `manifest.json` has scales,
arena and operators, `report.html` how the network was found.
"""


def overview(rows: Mapping[str, Row]) -> str:
    """The list of all that is there, and of what is not."""
    lines, missing = [], []
    for name, network in NETWORKS.items():
        if f"{name}/0" not in rows:
            missing.append(name)
            continue
        for budget in network.budgets:
            found = [row["budgets"][budget] for row in seeds_of(rows, name)]
            score = _score(found[0]["metric"], [row["test"] for row in found])
            lines.append(_line(f"[{name}]({name}/{budget}/README.md)", budget, found[0], score))
        if (int8 := rows.get(f"{name}/int8")) is not None:
            score = _score(found[0]["metric"], [int8["test"]])
            lines.append(_line(f"{name}, int8 at full width", "", int8, score))
    for key, row in rows.items():
        if key.startswith("mlperf_tiny/"):
            label = f"MLPerf Tiny's {key.partition('/')[2]}, on its own data"
            lines.append((label, "", "", f"{row['flash']:,}", f"{row['sram']:,}", "", ""))
    absent = ", ".join(missing) or "none"
    return f"""# Networks to take home

Found by `udc` for an Arm Ethos-U55 with 128 MACs per cycle. Each folder has the int8 `.tflite`,
what Vela made of it, the same as a C array, a manifest, golden inputs and outputs, a report and a
card that says what it was trained on, for how long, and what it must not be used for. Training was
short, minutes on one core: take them to bring a board up and to compare, or run the card's command
for longer.

{table(_HEAD, lines)}
Test scores of all seeds that were run (± where there are several); flash, SRAM, cycles and
multiplications of seed 0. The int8 networks have the same layers at full width, dense, and as many
epochs. Flash is the compiled file.

Check one: `udc-run zoo/NAME/BUDGET/model_vela.tflite`. Make them anew:
`python -m benchmarks.take_home`.
Listed but not made yet: {absent}.
"""


def write_results(rows: Mapping[str, Row]) -> None:
    """Puts the table of results into the README, between its two marks."""
    head, _, rest = README.read_text().partition(_MARKS[0])
    _, _, tail = rest.partition(_MARKS[1])
    harness.write(README, f"{head}{_MARKS[0]}{results(rows)}{_MARKS[1]}{tail}")


def results(rows: Mapping[str, Row]) -> str:
    """A line for each of some networks: its largest budget, beside int8 of the same family."""
    lines = []
    for name in RESULTS:
        found, int8 = seeds_of(rows, name), rows.get(f"{name}/int8")
        if not found or int8 is None:
            continue
        network = NETWORKS[name]
        budget = network.budgets[-1]
        of = [row["budgets"][budget] for row in found]
        score = _score(of[0]["metric"], [row["test"] for row in of])
        flash = of[0]["flash"]
        lines.append(
            (
                f"[{network.title}](zoo/{name}/{budget}/README.md)",
                f"{score} in {flash:,} bytes",
                f"{_score(of[0]['metric'], [int8['test']])} in {int8['flash']:,} bytes",
                f"{int8['flash'] / flash:.1f}",
            )
        )
    return table(("network", "UDC", "int8, full width", "times less flash"), lines)


def _line(name: str, budget: str, row: Row, score: str) -> tuple[str, ...]:
    numbers = (f"{row[key]:,}" for key in ("flash", "sram", "cycles", "macs"))
    return (name, budget, score, *numbers)


def _score(metric: str, values: list[float]) -> str:
    """
    >>> _score("accuracy", [0.9, 0.92]), _score("psnr", [29.0])
    ('91.0 ± 1.4%', '29.00 dB')
    """
    if metric == "accuracy":
        return f"{mean_and_deviation(values, 100, 1)}%"
    return f"{mean_and_deviation(np.asarray(values).tolist())} dB"


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"
