"""The documents: their examples run, their links lead somewhere, their tables are complete."""

import pathlib
import re

import pytest

import udc_tf
from udc_tf.models import recipes, small_cnn

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_DOCS = sorted((_ROOT / "docs").glob("*.md"))


def _code(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


class TestDocs:
    @pytest.mark.parametrize("path", _DOCS, ids=lambda path: path.name)
    def test_links_lead_somewhere(self, path):
        for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            if not link.startswith("http"):
                assert (path.parent / link).exists(), link

    def test_every_recipe_is_in_the_table(self):
        text = (_ROOT / "docs" / "recipes.md").read_text()
        assert [name for name in recipes.RECIPES if f"`{name}`" not in text] == []

    def test_example_of_a_cost_model_searches(self):
        (example,) = _code((_ROOT / "docs" / "extending.md").read_text())
        names = {"__name__": "extending"}
        exec(example, names)
        target = [udc_tf.Flash("20KiB"), names["Weights"](2_000)]
        search = udc_tf.make_searchable(small_cnn(filters=(8, 16)), "ethos_u55", target)
        chosen = search.architecture()
        assert sum(layer.weights * layer.nonzeros for layer in chosen.layers) <= 2_000

    def test_examples_are_python(self):
        for path in _DOCS:
            for example in _code(path.read_text()):
                compile(example, str(path), "exec")
