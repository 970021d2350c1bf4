"""The front door as type checkers see it: the README's own calls, and the types they reveal."""

import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytest.importorskip("mypy", reason="pip install mypy")

_BEFORE = """
from typing import Any

train: Any = ...
val: Any = ...
test: Any = ...
images: Any = ...
"""

# Of what the README makes, and of calls that the tutorial goes on with.
_REVEALED = {
    "udc_tf.__version__": "str",
    "model": "keras.src.models.model.Model",
    "search": "udc_tf.search.model.SearchModel",
    "search.fit(train)": "keras.src.callbacks.history.History",
    "search.probabilities()": "dict[str, dict[float, float]]",
    "arch": "udc_tf.compact.architecture.Architecture",
    "arch.flash_bytes": "int",
    "tiny": "keras.src.models.model.Model",
    "udc_tf.Flash('24KiB').budget": "int",
    "udc_tf.Architecture.load('arch.json')": "udc_tf.compact.architecture.Architecture",
    "udc_tf.compact(model, bits=4)": "keras.src.models.model.Model",
    "udc_tf.finetune(tiny, train)": "keras.src.callbacks.history.History",
    "udc_tf.export.calibrate(model, 'ethos_u55', udc_tf.Flash('24KiB'))": (
        "udc_tf.cost.targets.Flash"
    ),
    "result": "udc_tf.export.pipeline.ExportResult",
    "result.vela_path": "pathlib.Path",
    "result.flash_bytes": "int",
    "udc_tf.export.run(result.vela_path, images).cycles": "int | None",
    "udc_tf.export.compile_with_vela('a.tflite', 'out').flash_bytes": "int",
    "udc_tf.models.resnet8((32, 32, 3), classes=10)": "keras.src.models.model.Model",
}

# An `ignore` that nothing needs is an error: each of these must be one that mypy finds.
_MISTAKES = """
udc_tf.make_serchable(model)  # type: ignore[attr-defined]
udc_tf.export.exprot(tiny, "out/")  # type: ignore[attr-defined]
udc_tf.models.resnet9()  # type: ignore[attr-defined]
udc_tf.make_searchable(model, target="24KiB")  # type: ignore[arg-type]
udc_tf.Flash("24KiB", acelerator="ethos-u55-128")  # type: ignore[call-arg]
udc_tf.compact(model, bits="4")  # type: ignore[arg-type]
search.architecture().bild()  # type: ignore[attr-defined]
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What mypy says, as it is set up for `make lint`, of a user's file."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    asked = "\n".join(f"reveal_type({call})" for call in _REVEALED)
    file = tmp_path_factory.mktemp("types") / "as_a_user.py"
    file.write_text("\n".join([_BEFORE, *blocks, asked, _MISTAKES]))
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def test_the_calls_of_the_readme_hold_and_mistakes_are_found(said):
    assert [line for line in said.splitlines() if " error: " in line] == []
    assert "Success: no issues found in 1 source file" in said


def test_the_front_door_reveals_real_types(said):
    revealed = re.findall(r'Revealed type is "(.*)"', said)
    assert dict(zip(_REVEALED, revealed, strict=True)) == _REVEALED
