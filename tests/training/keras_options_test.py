"""What `fit` and `compile` of Keras take, search and finetuning take as well."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from tests.support import networks

_X, _Y = networks.blobs(48)
_X = _X.reshape(48, -1)[:, :12]
_WEIGHTS = {0: 0.5, 1: 3.0, 2: 1.0, 3: 0.0}
_OF_EXAMPLES = np.asarray([_WEIGHTS[y] for y in _Y], "float32")
_KNOWN = tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(16)
_UNKNOWN = _KNOWN.filter(lambda x, y: True)


def _batches():
    while True:
        for i in range(0, 48, 16):
            yield _X[i : i + 16], _Y[i : i + 16]


def _model() -> keras.Model:
    keras.utils.clear_session()  # the names of layers, too, seed what is drawn
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((12,)), keras.layers.Dense(4, name="head")])


class _Search:
    """Two epochs of a search."""

    def __call__(self, x, y=None, sample_weight=None, epochs=2, compiled=None, **of_fit):
        settings = udc_tf.SearchSettings(samples=1, warmup=0.5, mask_refresh=4)
        search = udc_tf.make_searchable(_model(), "ethos_u55", udc_tf.Flash("2KiB"), settings)
        compiled = {"optimizer": keras.optimizers.SGD(0.1), **(compiled or {})}
        search.compile(loss=networks.cross_entropy(), **compiled)
        of_fit = {"batch_size": 16 if y is not None else None, "shuffle": False, **of_fit}
        history = search.fit(
            x, y, sample_weight=sample_weight, epochs=epochs, verbose=0, **of_fit
        ).history
        return [v.numpy() for v in search.network.variables], history, search.state.steps_done()


class _Finetuning:
    """Three epochs of finetuning; arrays are shuffled, and so they are given as a data set."""

    def __call__(self, x, y=None, sample_weight=None, compiled=None, **arguments):
        tiny = udc_tf.compact(_model(), bits=4, nonzeros=0.5)
        data = x if y is None else (x, y) if sample_weight is None else (x, y, sample_weight)
        history = udc_tf.finetune(
            tiny,
            data,
            stages=udc_tf.Stages(epochs=3, calibration_batches=0),
            batch_size=16,
            verbose=0,
            accelerator=None,
            **(compiled or {}),
            **arguments,
        ).history
        return [v.numpy() for v in tiny.variables], history, None


_TRAININGS = {"search": _Search(), "finetuning": _Finetuning()}


@pytest.fixture(scope="module", params=list(_TRAININGS))
def training(request):
    return _TRAININGS[request.param]


@pytest.fixture(scope="module")
def plain(training):
    return training(_KNOWN)


def _assert_same(mine, theirs, **tolerance):
    for a, b in zip(mine[0], theirs[0], strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))
    assert mine[2] == theirs[2]


def test_eagerly(training, plain):
    eager = training(_KNOWN.take(3), compiled={"run_eagerly": True})
    _assert_same(eager, plain, rtol=1e-3, atol=1e-4)


def test_weights_of_classes_are_those_of_their_examples(training, plain, eagerly):
    by_class = training(_X, _Y, class_weight=_WEIGHTS)
    by_example = training(_X, _Y, _OF_EXAMPLES)
    _assert_same(by_class, by_example)
    assert not np.allclose(by_class[1]["loss"], plain[1]["loss"], rtol=0.01)


def test_a_data_set_of_unknown_length(training, plain):
    _assert_same(training(_UNKNOWN), plain)


def test_an_epoch_goes_on_where_the_one_before_ended(training, eagerly):
    ends, never_ends = (training(d, steps_per_epoch=2) for d in (_KNOWN.repeat(), _batches()))
    _assert_same(ends, never_ends)


def test_several_steps_at_once(training, plain):
    _assert_same(training(_KNOWN, compiled={"steps_per_execution": 3}), plain)


def test_gradients_are_clipped(training, plain):
    rate, clip = 0.1, 1e-5
    clipped = keras.optimizers.SGD(rate, clipvalue=clip)
    trained = training(_KNOWN, compiled={"optimizer": clipped})
    begin = _model().get_layer("head").kernel.numpy()
    near, far = (
        np.abs(next(v for v in variables if v.shape == begin.shape) - begin).max()
        for variables, *_ in (trained, plain)
    )
    steps = 9
    assert 0 < near <= 1.1 * steps * rate * clip < far


def test_a_part_for_validation(training, eagerly):
    given = (_X[36:], _Y[36:])
    split = training(_X, _Y, validation_split=0.25)
    apart = training(_X[:36], _Y[:36], validation_data=given)
    assert split[1]["val_loss"] == apart[1]["val_loss"]
    _assert_same(split, apart)


def test_averages_of_the_optimizer_become_the_weights_of_a_search(eagerly):
    def moved(**arguments):
        optimizer = keras.optimizers.SGD(0.1, **arguments)
        kernel = _TRAININGS["search"](_KNOWN, compiled={"optimizer": optimizer})[0][0]
        return np.abs(kernel - _model().get_layer("head").kernel.numpy()).max()

    assert moved(use_ema=True, ema_momentum=0.999) < 0.5 * moved()


def test_averages_of_the_optimizer_become_the_weights_of_finetuning(eagerly):
    def moved(**arguments):
        optimizer = keras.optimizers.SGD(0.1, **arguments)
        norms = _TRAININGS["finetuning"](_KNOWN, compiled={"optimizer": optimizer})[1]
        return norms["weight_norm"][-1] / norms["weight_norm"][0] - 1

    # An average that hardly moves from the weights of the first step, where each stage begins.
    assert abs(moved(use_ema=True, ema_momentum=0.999)) < 0.5 * abs(moved())


def test_what_cannot_be_split_is_refused():
    with pytest.raises(ValueError, match=r"`validation_split` splits arrays.*Received"):
        _TRAININGS["finetuning"](_KNOWN, validation_split=0.25)
    for training in _TRAININGS.values():
        with pytest.raises(ValueError, match="never ends: give `steps_per_epoch`"):
            training(_KNOWN.repeat())
