"""Several inputs and outputs, as lists, tuples and dictionaries, from `fit` to the int8 file."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as kl

import udc_tf
from udc_tf.export.errors import CalibrationError
from udc_tf.export.int8 import to_int8

_RNG = np.random.default_rng(0)
_IMAGE = _RNG.normal(size=(32, 6, 6, 2)).astype("float32")
_EXTRA = _RNG.normal(size=(32, 3)).astype("float32")
_KIND = _RNG.integers(0, 4, 32)
_SIZE = _RNG.normal(size=(32, 1)).astype("float32")


def _model(shape):
    """Inputs and outputs packed by `shape`. Names are in another order than the tensors."""
    image, extra = keras.Input((6, 6, 2), name="z_image"), keras.Input((3,), name="a_extra")
    x = kl.BatchNormalization()(kl.Conv2D(8, 3, use_bias=False)(image))
    x = kl.GlobalAveragePooling2D()(kl.ReLU()(x))
    x = kl.Concatenate()([x, kl.Dense(8, activation="relu")(extra)])
    outputs = shape("kind", kl.Dense(4, name="kind")(x), "size", kl.Dense(1, name="size")(x))
    return keras.Model(shape("z_image", image, "a_extra", extra), outputs)


def _as_list(_, first, __, second):
    return [first, second]


def _as_dict(first_name, first, second_name, second):
    return {first_name: first, second_name: second}


class _Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 2

    def __getitem__(self, i):
        part = slice(16 * i, 16 * i + 16)
        batch = keras.tree.map_structure(lambda a: a[part], (self.x, self.y))
        return keras.tree.lists_to_tuples(batch)  # Keras takes no lists here


def _endless(x, y):
    while True:
        yield x, y


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("shape", [_as_list, _as_dict], ids=["list", "dict"])
def test_from_fit_to_export(shape):
    keras.utils.set_random_seed(0)
    x = shape("z_image", _IMAGE, "a_extra", _EXTRA)
    y = shape("kind", _KIND, "size", _SIZE)
    loss = shape(
        "kind", keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size", "mse"
    )
    metrics = shape("kind", ["accuracy"], "size", ["mae"])
    weights = shape("kind", 1.0, "size", 0.5)
    search = udc_tf.make_searchable(_model(shape), "ethos_u55", udc_tf.Flash("5KiB"))
    search.compile("sgd", loss, weights, metrics)
    history = search.fit(x, y, 16, 1, 0, validation_split=0.5).history
    assert {"kind_accuracy", "size_mae", "val_kind_accuracy"} <= set(history)
    search.fit(_Batches(x, y), verbose=0)
    search.fit(_endless(x, y), steps_per_epoch=1, verbose=0)
    predicted = search.predict(x, verbose=0)
    assert type(predicted) is type(y)
    assert [p.shape for p in keras.tree.flatten(predicted)] == [(32, 4), (32, 1)]
    found = search.evaluate(x, y, verbose=0, return_dict=True)
    given = keras.tree.flatten(predicted)[1]
    assert found["size_mae"] == pytest.approx(np.abs(given - _SIZE).mean(), rel=1e-4)

    tiny = search.architecture().build()
    plan = {"loss": loss, "loss_weights": weights, "metrics": metrics, "verbose": 0}
    stages = udc_tf.Stages(epochs=(1, 1, 1))
    logs = udc_tf.finetune(tiny, (x, y), (x, y), stages, batch_size=32, **plan).history
    assert {"kind_accuracy", "val_size_mae"} <= set(logs)
    assert type(tiny.predict(x, verbose=0)) is type(y)
    # The inputs are known by their names, in whatever order and structure they come.
    first, _ = to_int8(tiny).network.input_shapes()
    inputs = [_IMAGE, _EXTRA] if len(first) == 3 else [_EXTRA, _IMAGE]
    plain = _model(shape)
    wanted = to_int8(plain, inputs).content
    by_name = {"a_extra": _EXTRA, "z_image": _IMAGE}
    dataset = tf.data.Dataset.from_tensor_slices((by_name, _KIND)).batch(16)
    for calibration in (by_name, x, (x, y), dataset, _Batches(x, y)):
        assert to_int8(plain, calibration).content == wanted


def test_calibration_by_wrong_names():
    with pytest.raises(CalibrationError, match=r"z_image.*Received: image"):
        to_int8(_model(_as_list), {"image": _IMAGE, "extra": _EXTRA})


def test_finetuning_of_several_outputs_needs_a_loss():
    tiny = udc_tf.compact(_model(_as_dict))
    with pytest.raises(ValueError, match=r"several outputs needs a `loss`.*Received: loss=None"):
        udc_tf.finetune(tiny, ({"z_image": _IMAGE, "a_extra": _EXTRA}, {"kind": _KIND}))
