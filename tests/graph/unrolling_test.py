"""Layers over time, written out, against the layers themselves."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.quantization_points import quantization_points
from udc_tf.graph.trace import trace
from udc_tf.graph.unrolling import MOST_STEPS
from udc_tf.graph.verdicts import Verdict, refusals, rows_of

STEPS, FEATURES = 4, 6


def images(x):
    return kl.Reshape((STEPS, 3, 2, 1))(x)


LAYERS = {
    "LSTM": lambda x: kl.LSTM(3)(x),
    "LSTM of all steps, backwards": lambda x: kl.LSTM(
        3, return_sequences=True, go_backwards=True, unit_forget_bias=False
    )(x),
    "LSTM without bias": lambda x: kl.LSTM(3, use_bias=False, dropout=0.5, activation=None)(x),
    "LSTM of one step": lambda x: kl.LSTM(3, return_sequences=True)(kl.Reshape((1, 24))(x)),
    "GRU": lambda x: kl.GRU(3, return_sequences=True)(x),
    "GRU that resets before": lambda x: kl.GRU(3, reset_after=False)(x),
    "GRU without bias": lambda x: kl.GRU(3, use_bias=False, go_backwards=True)(x),
    "SimpleRNN": lambda x: kl.SimpleRNN(3, activation="relu")(x),
    **{
        f"Bidirectional {mode}": lambda x, mode=mode: kl.Bidirectional(
            kl.SimpleRNN(3, return_sequences=mode != "mul"), merge_mode=mode
        )(x)
        for mode in ("concat", "sum", "mul", "ave")
    },
    "Bidirectional of two kinds": lambda x: kl.Bidirectional(
        kl.LSTM(3, return_sequences=True),
        backward_layer=kl.GRU(2, return_sequences=True, go_backwards=True),
    )(x),
    "TimeDistributed Dense": lambda x: kl.TimeDistributed(kl.Dense(3))(x),
    "TimeDistributed batch norm": lambda x: kl.TimeDistributed(kl.BatchNormalization())(images(x)),
    "TimeDistributed convolutions": lambda x: kl.TimeDistributed(kl.Flatten())(
        kl.TimeDistributed(kl.MaxPooling2D((2, 1)))(
            kl.TimeDistributed(kl.Conv2D(3, 2, padding="same", name="conv"))(
                kl.TimeDistributed(kl.Conv2D(2, 2, padding="same", name="conv"))(images(x))
            )
        )
    ),
    "TimeDistributed Conv1D": lambda x: kl.TimeDistributed(kl.Conv1D(3, 2))(
        kl.Reshape((STEPS, 3, 2))(x)
    ),
    "TimeDistributed pooling": lambda x: kl.TimeDistributed(kl.GlobalAveragePooling2D())(images(x)),
    "TimeDistributed network": lambda x: kl.TimeDistributed(
        keras.Sequential([keras.Input((3, 2, 1)), kl.Conv2D(2, 2), kl.Flatten()])
    )(images(x)),
    "one LSTM, two lengths": lambda x: _called_twice(kl.LSTM(3), x),
}


def _called_twice(layer, x):
    return kl.Concatenate()([layer(x), layer(kl.Cropping1D((0, 2))(x))])


def network(layers, shape=(STEPS, FEATURES)) -> keras.Model:
    keras.utils.set_random_seed(0)
    x = keras.Input(shape)
    model = keras.Model(x, layers(x))
    rng = np.random.default_rng(0)
    for variable in model.trainable_weights:  # biases, too
        variable.assign(variable + 0.3 * rng.normal(size=variable.shape))
    return model


@pytest.mark.parametrize("kind", LAYERS)
def test_computes_what_the_layer_does(kind):
    model = network(LAYERS[kind])
    graph = trace(model)
    assert not {"LSTM", "GRU", "SimpleRNN", "Bidirectional", "TimeDistributed"} & {
        type(node.layer).__name__ for node in graph.nodes
    }
    written_out = graph.rebuild(lambda node: node.layer)
    data = np.random.default_rng(1).normal(size=(5, STEPS, FEATURES)).astype("float32")
    np.testing.assert_allclose(written_out(data), model(data), atol=1e-6)


def test_calls_of_one_layer_share_its_kernels():
    graph = trace(network(LAYERS["one LSTM, two lengths"]))
    kernels = {id(node.layer) for node in graph.nodes if isinstance(node.layer, kl.Dense)}
    assert len(kernels) == 8


def test_width_is_that_of_all_gates():
    graph = trace(network(lambda x: kl.Dense(2)(kl.LSTM(4, name="memory")(x))))
    groups = ChannelGroups(graph).groups
    assert [(g.channels, g.frozen is None) for g in groups] == [(4, True), (2, False)]


def test_steps_share_their_ranges():
    graph = trace(network(lambda x: kl.LSTM(3, name="memory")(x)))
    points = quantization_points(graph, lambda node: True, lambda node: 0)
    names = {point.name for point in points.tensors.values()}
    # Sums of all gates, four products with the state, four gates, the carry and its tanh, ...
    assert len(names) == 1 + 1 + 4 + 4 + 1 + 1 + 1 + 1
    by_name = {node.name: points.tensors[node.output.id] for node in graph.nodes[-8:]}
    assert by_name["memory_carry"].shared


REFUSED = {
    "stateful": (lambda: kl.LSTM(3, stateful=True), "stateful"),
    "masked": (lambda: kl.LSTM(3), "a mask"),
    "recurrent dropout": (lambda: kl.GRU(3, recurrent_dropout=0.1), "take `dropout`"),
    "not merged": (lambda: kl.Bidirectional(kl.LSTM(3), merge_mode=None), "merge_mode='concat'"),
    "other cells": (lambda: kl.RNN(kl.LSTMCell(3)), "take LSTM, GRU or SimpleRNN"),
    "other cells twice": (
        lambda: kl.Bidirectional(kl.RNN(kl.LSTMCell(3))),
        "take LSTM, GRU or SimpleRNN",
    ),
    "activation": (lambda: kl.SimpleRNN(3, activation="sparsemax"), "sparsemax"),
    "layer inside": (lambda: kl.TimeDistributed(kl.Dense(3, "sparsemax")), "sparsemax"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_written_out_is_refused(kind):
    make, why = REFUSED[kind]
    layer = make()
    layer.name = "memory"
    x = keras.Input(batch_shape=(1, STEPS, FEATURES))
    y = layer(kl.Masking()(x) if kind == "masked" else x)
    rows = refusals(trace(keras.Model(x, y)))
    row = next(row for row in rows if row.name == "memory")
    assert row.verdict is Verdict.REFUSED and row.instead
    assert why in str(row)


def test_too_many_steps():
    def rows(layer):
        return refusals(trace(network(layer, (MOST_STEPS + 1, 2))))

    (row,) = rows(lambda x: kl.GRU(2, name="memory")(x))
    assert f"its {MOST_STEPS + 1} steps" in row.reason and "strides or pooling" in row.instead
    assert not rows(lambda x: kl.TimeDistributed(kl.Dense(2))(x))  # one call


def test_a_first_state_is_refused():
    x, state = keras.Input((STEPS, FEATURES)), keras.Input((3,))
    model = keras.Model([x, state], kl.GRU(3, name="memory")(x, initial_state=state))
    (row,) = refusals(trace(model))
    assert row.name == "memory" and "a first state" in row.reason


def test_a_subclass_is_refused():
    class Own(kl.LSTM):
        pass

    (row,) = refusals(trace(network(lambda x: Own(3, name="memory")(x))))
    assert "take LSTM, GRU or SimpleRNN themselves" in str(row)


def test_function_that_keras_would_take_for_its_own():
    def sigmoid(x):
        return -x

    inner = kl.LSTM(3, recurrent_activation=sigmoid, name="inner")
    with pytest.raises(ValueError, match="activation of the layer `inner`"):
        trace(network(inner))


def test_the_table_has_one_row_for_a_layer():
    model = network(lambda x: kl.Dense(2, name="head")(kl.LSTM(4, name="memory")(x)))
    graph = trace(model)
    searched = {"memory_input_kernel", "head"}
    rows = rows_of(graph, searched, {})
    assert [(row.name, row.kind, row.verdict) for row in rows] == [
        ("memory", "LSTM", Verdict.SEARCHED),
        ("head", "Dense", Verdict.SEARCHED),
    ]
    assert "written out step by step" in rows[0].reason and "LOGISTIC" in rows[0].reason


def test_price_grows_with_the_steps():
    def smallest(steps):
        model = network(lambda x: kl.Dense(2)(kl.LSTM(4)(x)), (steps, 3))
        (reach,) = udc_tf.make_searchable(model, target=udc_tf.Flash("1MiB")).reachable()
        return reach.smallest

    # What Vela writes for a step of an LSTM: benchmarks/results/recurrent_steps.json.
    assert smallest(4) - smallest(2) == pytest.approx(2 * 850, rel=0.1)
