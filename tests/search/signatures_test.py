"""What a Keras user may pass to a search, by position and by name, is what Keras takes."""

import inspect

import keras
import pytest

import udc_tf
from tests.support import networks
from udc_tf.finetune.step import Finetuner

_OURS = {"decision_optimizer", "range_optimizer", "planned_epochs", "workdir"}
_METHODS = ("compile", "fit", "evaluate", "predict", "summary")
# The weights' default is the paper's SGD; finetuning is faster without XLA.
_OTHER_DEFAULTS = {(udc_tf.SearchModel, "optimizer"), (Finetuner, "jit_compile")}


@pytest.mark.parametrize("method", _METHODS)
@pytest.mark.parametrize("model", [udc_tf.SearchModel, Finetuner])
def test_arguments_are_those_of_keras_in_their_order(model, method):
    ours = inspect.signature(getattr(model, method)).parameters
    theirs = inspect.signature(getattr(keras.Model, method)).parameters
    shared = {name: p for name, p in ours.items() if name not in _OURS}
    assert list(shared) == list(theirs)
    for name, parameter in shared.items():
        assert parameter.kind == theirs[name].kind, name
        if (model, name) not in _OTHER_DEFAULTS:
            assert parameter.default == theirs[name].default, name
    own = {p.kind for name, p in ours.items() if name in _OURS}
    assert own <= {inspect.Parameter.KEYWORD_ONLY}


def test_a_target_is_required():
    with pytest.raises(ValueError, match=r"`target` must be given.*udc_tf.Flash.*Received: None"):
        udc_tf.make_searchable(networks.small_cnn(), "ethos_u55")
    parameters = inspect.signature(udc_tf.make_searchable).parameters.values()
    positions = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert positions == ["model", "space", "target", "settings"]
