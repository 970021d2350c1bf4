"""`make_searchable(start=...)`: a search that sets out from an architecture."""

import keras
import numpy as np
import pytest

import udc_tf
from tests.support import networks
from udc_tf.search.extract import architecture_of, repaired_choice
from udc_tf.search.repair import extreme

SPACE = udc_tf.SearchSpace(widths=(0.5, 1.0), bits=(2, 4, 8), sparsities=(0.2, 0.5, 1.0))


@pytest.fixture(scope="module")
def model():
    return networks.small_cnn()


def _search(model, **kwargs):
    return udc_tf.make_searchable(model, SPACE, udc_tf.Flash("64KiB"), **kwargs)


def _likely(search):
    """The most likely option of each decision; a repair would fill the budget up."""
    return {name: max(p, key=p.get) for name, p in search.probabilities().items()}


def test_sets_out_from_the_options_nearest_to_the_architecture(model):
    plain = _search(model)
    smallest = architecture_of(plain, extreme(plain.problem.bound[0], plain.problem.plan, True))
    search = _search(model, start=smallest)
    search.set_out()
    assert _likely(search) == pytest.approx(dict(smallest.choices))


def test_values_between_options_and_what_is_not_said(model):
    name = next(layer.name for layer in _search(model).problem.plan.layers)
    search = _search(model, start={f"bits/{name}": 5, f"sparsity/{name}": 0.3})
    search.set_out()
    found = _likely(search)
    assert found[f"bits/{name}"] == 4
    assert found[f"sparsity/{name}"] == 0.2
    assert all(v == 1 for n, v in found.items() if n.startswith("width/"))


def test_the_budget_moves_it(model):
    search = udc_tf.make_searchable(model, SPACE, udc_tf.Flash(3_600), start={})
    search.set_out()
    assert search.architecture().flash_bytes <= 3_600
    assert len(repaired_choice(search)) == len(search.problem.plan.decisions)


def test_survives_saving(model, tmp_path):
    name = next(layer.name for layer in _search(model).problem.plan.layers)
    search = _search(model, start={f"bits/{name}": 2})
    search.save(tmp_path / "search.keras")
    loaded = keras.saving.load_model(tmp_path / "search.keras")
    assert loaded.problem.start == {f"bits/{name}": 2.0}
    np.testing.assert_array_equal(search.state.logits, loaded.state.logits)


def test_of_another_network(model):
    with pytest.raises(ValueError, match="architecture of this network"):
        _search(model, start={"bits/elsewhere": 4})
