"""Every example of README and docs runs, in small: block after block, all pages in one folder.

What one page has trained, another finds done: commands go on where they were.
"""

import dataclasses
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping

import keras
import nbformat
import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

import udc_tf
from tests.support.eager import run_eagerly
from tests.support.few_steps import compress_in_few_steps
from tests.support.paths import ROOT
from udc_tf.cli import commands, report_command
from udc_tf.export import run_main
from udc_tf.models import data
from udc_tf.report import page as report_page

# What makes an example short; nothing is left out.
_SHORTER = {
    r"epochs=\d+": "epochs=1",
    r"(\w+batches\([^()]*\))": r"\1.take(1)",
    r"arrays\((.*?), \d+\)": r"arrays(\1, 16)",
    r", configurations=\d+": "",
    r"fit_size_model\((.*?)\)( |$)": r"fit_size_model(\1, configurations=2)\2",
    r"--on=all": "--on=tflm,npu",
    r"small_cnn\(\(8, 8, 1\), classes=10\)": "small_cnn((8, 8, 1), 10, (8, 16, 16))",
    r'Flash\("\d+KiB"\)': 'Flash("4500B")',
}
_FEW_STEPS = (
    *("--examples=8", "--search_epochs=1", "--samples=1", "--finetune_epochs=0,1,0"),
    *("--batch_size=8", "--size_compiles=1", "--verify_examples=4", "--runners=npu"),
)
_TRAINING = ("udc", "udc-search", "udc-finetune", "udc-export", "udc-teacher")


@dataclasses.dataclass(frozen=True)
class Page:
    """What a page's examples need, and what makes them shorter still."""

    path: str
    shorter: Mapping[str, str] = dataclasses.field(default_factory=dict)
    saved: str | None = None  # the file that the first Python block is said to be

    def blocks(self) -> list[tuple[str, str]]:
        text = (ROOT / self.path).read_text()
        if self.path.endswith(".ipynb"):
            cells = nbformat.reads(text, as_version=4).cells
            found = [("python", cell.source) for cell in cells if cell.cell_type == "code"]
        else:
            found = re.findall(r"```(python|sh)\n(.*?)```", text, re.DOTALL)
        shortened = []
        for language, text in found:
            for old, new in {**_SHORTER, **self.shorter}.items():
                text = re.sub(old, new, text, flags=re.MULTILINE)
            shortened.append((language, text))
        return shortened


_PAGES = (
    Page("README.md", {"--flash=16KiB": "--flash=4500B"}),
    Page("CONTRIBUTING.md"),
    Page("docs/board.md", {"--board=corstone-300 --workdir=runs/board": "--workdir=runs/first"}),
    Page("docs/compress.md", {"24KiB,32KiB,48KiB": "4500B,5000B"}),
    Page("docs/own_data.md", {"--flash=6KiB": "--flash=8KiB"}),
    Page("docs/quick_start.md"),
    Page(
        "docs/gpu.md",
        {"cifar10 --workdir=runs/cifar": "digits --workdir=runs/first", "=mirrored": "=auto"},
    ),
    Page(
        "docs/run_without_a_board.md",
        {"--on=(arm|fvp)": "--on=npu", 'on="arm"': 'on="npu"', "32, 32, 3": "8, 8, 1"},
    ),
    Page(
        "docs/scale.md",
        {
            "fashion_mnist --flash=16KiB,24KiB,32KiB": "digits --flash=6KiB,8KiB",
            r"multi_worker.leave\(0\)": "",
            "/shared": ".",
            "epochs=1, workdir": "epochs=2, workdir",
        },
    ),
    Page("docs/sequences.md"),
    Page("docs/size_model.md"),
    Page("docs/targets.md"),
    Page("docs/tracking.md"),
    Page("docs/tutorial.md", {"96": "16", "(16, 32, 64, 128)": "(8, 16)"}, saved="mynetworks.py"),
)
_LESS = {r"(\w*_epochs|configurations|batches) = \S+": r"\1 = 1", "examples = 512": "examples = 16"}
_NOTEBOOKS = (
    Page("docs/notebooks/search.ipynb", _LESS),
    Page(
        "docs/notebooks/compress.ipynb", {**_LESS, "budgets = .*": 'budgets = ("4500B", "5000B")'}
    ),
)
_ELSEWHERE = ("docs/extending.md",)  # tests/docs_test.py


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What pages take for granted: a trained model, some data."""
    keras.utils.set_random_seed(0)
    digits = data.load("digits")
    x, y = digits.arrays("train", 16)
    model = udc_tf.models.small_cnn((8, 8, 1), 10, (8, 16, 16))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    with run_eagerly():
        model.fit(x, y, verbose=0)
    train = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    return {"model": model, "loss": loss, "x": x, "y": y, "train": train, "val": train, "images": x}


@pytest.fixture(scope="module")
def folder(names, tmp_path_factory):
    """A folder with the files that pages name."""
    made = tmp_path_factory.mktemp("examples")
    np.savez(made / "data.npz", x=names["x"], y=names["y"])
    names["model"].save(made / "trained.keras")
    names["model"].save(made / "network.keras")
    rng = np.random.default_rng(0)
    for kind in ("person", "nobody"):
        (made / "images" / kind).mkdir(parents=True)
        for number in range(8):
            picture = rng.integers(0, 255, (16, 16, 3))
            keras.utils.save_img(made / "images" / kind / f"{number}.png", picture)
    result = udc_tf.export.export(
        udc_tf.compact(names["model"]), made / "exported", calibration=names["x"]
    )
    for path in (result.vela_path, result.tflite_path):
        (made / path.name).write_bytes(path.read_bytes())
    return made


def _commands(text: str) -> list[list[str]]:
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def _run(command: str, *arguments: str) -> int:
    """The exit code of a command, in this process."""
    if command == "udc-run":
        with flagsaver.flagsaver():
            return run_main.main(flags.FLAGS([command, *arguments]))
    if command == "udc-report":
        return report_command.main([command, *arguments])
    if command in _TRAINING and arguments != ("doctor",):
        arguments = (*arguments, *_FEW_STEPS)
    return commands.main(command, [command, *arguments], say=lambda text: None)


def _look_up(command: str, *arguments: str) -> None:
    """Installs nothing: whether there is what is to be installed or made."""
    if command == "make":
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()
    elif command == "pip":
        extras = re.search(r"\[(.*)\]", arguments[-1])
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert extras is None or set(extras[1].split(",")) <= set(known["optional-dependencies"])
    else:
        assert command in ("apt-get", "mlia-backend"), command


@pytest.mark.parametrize("page", (*_PAGES, *_NOTEBOOKS), ids=lambda page: page.path)
def test_examples_run(page, names, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "modules", sys.modules.copy())  # other tests have modules of a name
    compress_in_few_steps(monkeypatch)
    if page.path != "README.md":  # whose reports have their pictures
        monkeypatch.setattr(report_page, "png", lambda figure: b"drawn")
    known = dict(names, udc_tf=udc_tf, keras=keras, tf=tf)
    with run_eagerly():
        for number, (language, text) in enumerate(page.blocks()):
            if language == "python":
                if page.saved and number == 0:
                    (folder / page.saved).write_text(text)
                exec(compile(text, f"{page.path}, block {number}", "exec"), known)
            elif "TF_CONFIG" not in text:  # tests/docs_test.py looks at a cluster's commands
                for command, *arguments in _commands(text):
                    if command.startswith("udc"):
                        assert _run(command, *arguments) == 0, (command, arguments)
                    else:
                        _look_up(command, *arguments)
    keras.config.set_dtype_policy("float32")


def test_every_page_with_examples_is_here():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    having = {
        p.relative_to(ROOT).as_posix()
        for p in pages
        if re.search("```(python|sh)\n", p.read_text())
    }
    assert having == {page.path for page in _PAGES} | set(_ELSEWHERE)
    notebooks = {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").glob("*/*.ipynb")}
    assert notebooks == {page.path for page in _NOTEBOOKS}
