"""Every layer and activation of Keras that is not refused is right after finetuning.

All are in a few networks, each with an output of its own: TFLite Micro must correlate with the
finetuned Keras network at each of them, and the NPU be equal to it, bit for bit.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from tests.export.layers_test import check_arrives
from tests.support.every_layer import (
    ACTIVATIONS,
    AUGMENTATIONS,
    LAYERS,
    network_of_activations,
    network_of_all,
    takes_numbers,
)
from tests.support.networks import normal
from udc_tf.graph.trace import trace
from udc_tf.graph.verdicts import refusals


@pytest.fixture
def eagerly():
    """To trace so many layers takes longer than to run the few steps of these trainings."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def _accepted(make, names: list[str]) -> list[str]:
    """Those that the rulebook does not refuse, asked about all in one network."""
    refused = {row.name for row in refusals(trace(make(names)))}
    return [name for name in names if name not in refused]


def _finetuned(model: keras.Model, data: np.ndarray) -> keras.Model:
    keras.utils.set_random_seed(0)
    tiny = udc_tf.compact(model)
    aims = [output.numpy() for output in model(data, training=False)]
    udc_tf.finetune(
        tiny,
        (data, aims),
        stages=udc_tf.Stages(epochs=3),
        loss=["mse"] * len(aims),
        loss_weights=[1e-4] * len(aims),  # so many losses on one stem, and some of large sums
        batch_size=16,
        verbose=0,
        accelerator=None,
    )
    return tiny


def _images(model: keras.Model) -> np.ndarray:
    return normal(*model.input.shape[1:], count=16)


def test_activations(eagerly):
    accepted = _accepted(network_of_activations, ACTIVATIONS)
    assert len(accepted) >= 25
    model = network_of_activations(accepted)
    check_arrives(_finetuned(model, _images(model)), [_images(model)])


def test_layers(eagerly):
    in_training = set(AUGMENTATIONS) - {"RandomFlip"}
    names = [name for name in LAYERS if takes_numbers(name) and name not in in_training]
    accepted = _accepted(network_of_all, names)
    assert len(accepted) >= 60
    model = network_of_all(accepted)
    check_arrives(_finetuned(model, _images(model)), [_images(model)])


def test_nothing_is_left_of_augmentations():
    accepted = _accepted(network_of_all, AUGMENTATIONS)
    assert len(accepted) >= 20
    model = network_of_all(accepted)
    operators = check_arrives(udc_tf.compact(model), [_images(model)])
    assert operators == ["CONV_2D"] * (1 + len(accepted))
