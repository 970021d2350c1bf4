"""One call that checks what every Keras layer promises."""

import json
import pathlib
from typing import Any

import keras
import numpy as np

from tests.support.networks import normal


def run_layer_test(
    layer: keras.layers.Layer,
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...],
    folder: pathlib.Path,
    *,
    trainable: int = 0,
    non_trainable: int = 0,
) -> keras.layers.Layer:
    """Builds, calls, serializes, saves, loads and trains a layer.

    Args:
        layer: a new one, or one that was built for these inputs and changed.
        input_shape: without the batch.
        output_shape: that it must have, without the batch.
        folder: for the saved model.
        trainable: how many weights it must have that a training step changes.
        non_trainable: how many others.

    Returns:
        The layer in the trained model, for further checks.
    """
    inputs = keras.Input(input_shape)
    model = keras.Model(inputs, layer(inputs))
    x = normal(*input_shape, count=4)
    assert layer.built and model.output_shape == (None, *output_shape)
    assert tuple(layer.compute_output_shape((4, *input_shape))) == (4, *output_shape)
    assert model(x).shape == (4, *output_shape)
    assert len(layer.trainable_weights) == trainable
    assert len(layer.non_trainable_weights) == non_trainable
    _check_config(layer, x)
    _check_saving(model, x, folder / f"{layer.name}.keras")
    _check_training(model, x)
    return layer


def _check_config(layer: keras.layers.Layer, x: np.ndarray) -> None:
    """The configuration is plain, and another layer of it computes the same with these weights."""
    config = layer.get_config()
    written = json.dumps(keras.saving.serialize_keras_object(layer))
    copy = keras.saving.deserialize_keras_object(json.loads(written))
    assert type(copy) is type(layer) and _plain(copy.get_config()) == _plain(config)
    for again in (copy, type(layer).from_config(layer.get_config())):
        if not again.built:  # a serialized layer knows for what it was built
            again.build(x.shape)
        again.set_weights(layer.get_weights())
        np.testing.assert_array_equal(again(x), layer(x))


def _check_saving(model: keras.Model, x: np.ndarray, path: pathlib.Path) -> None:
    model.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(loaded(x), model(x))
    for one, other in zip(loaded.weights, model.weights, strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one, other)


def _check_training(model: keras.Model, x: np.ndarray) -> None:
    """A step moves all weights that are to be trained, and loss and outputs stay finite."""
    before = [w.numpy() for w in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=True)
    loss = model.train_on_batch(x, np.ones(model(x).shape, "float32"))
    assert np.isfinite(loss) and np.isfinite(model(x)).all()
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.any(weight.numpy() != old), f"{weight.path} was not trained"


def _plain(config: Any) -> Any:
    """With lists for tuples, as JSON has it."""
    return json.loads(json.dumps(keras.saving.serialize_keras_object(config)))
