"""The gate of `export`: a file that computes something else than the Keras model is not written."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf.export
from tests.support.networks import normal
from udc_tf.export import agreement, errors, int8, lowering, tflite_writer
from udc_tf.export.integer_network import Quantization
from udc_tf.export.lowering import lower
from udc_tf.graph import layer_rules, unrolling
from udc_tf.graph.trace import trace

images = functools.partial(normal, count=16)


def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = kl.Conv2D(8, 3, padding="same", name="first")(inputs)
    x = kl.ReLU(name="cut")(kl.BatchNormalization()(x))
    y = kl.Conv2D(8, 3, padding="same", activation="relu", name="second")(x)
    x = kl.MaxPooling2D(name="pool")(kl.Add(name="sum")([x, y]))
    return keras.Model(inputs, kl.Dense(4, name="head")(kl.Flatten()(x)))


def _step(lowered, name: str):
    return next(step for step in lowered.steps if step.name == name)


def _flip_one_channel(lowered):
    step = _step(lowered, "second")
    codes = step.kernel.codes.copy()
    codes[2] *= -1
    step.kernel = dataclasses.replace(step.kernel, codes=codes)


def _swap_axes(lowered):
    step = _step(lowered, "second")
    codes = np.ascontiguousarray(step.kernel.codes.transpose(0, 2, 1, 3))
    step.kernel = dataclasses.replace(step.kernel, codes=codes)


def _drop_bias(lowered):
    step = _step(lowered, "second")
    step.kernel = dataclasses.replace(step.kernel, bias=step.kernel.bias + 1)


def _drop_activation(lowered):
    _step(lowered, "first").activation = "NONE"


def _drop_layer(lowered):
    step = _step(lowered, "sum")
    step.kind, step.inputs = "RESHAPE", step.inputs[:1]  # to the same shape: nothing happens


def _pool_otherwise(lowered):
    _step(lowered, "pool").kind = "AVERAGE_POOL_2D"


def _swap_operands(lowered):
    _step(lowered, "sum").kind = "SUB"


@pytest.mark.parametrize(
    "fault,layer",
    [
        (_flip_one_channel, "second"),
        (_swap_axes, "second"),
        (_drop_bias, "second"),
        (_drop_activation, "first"),
        (_drop_layer, "sum"),
        (_pool_otherwise, "pool"),
        (_swap_operands, "sum"),
    ],
)
@pytest.mark.parametrize("is_compact", [False, True], ids=["plain", "compact"])
def test_planted_fault_is_caught_and_named(monkeypatch, tmp_path, is_compact, fault, layer):
    def faulty(model, copy=True):
        lowered = lower(model)
        fault(lowered)
        return lowered

    model = udc_tf.compact(network(), bits=4, nonzeros=0.6) if is_compact else network()
    monkeypatch.setattr(int8, "lower", faulty)
    # The integers of compact layers are also compared one by one.
    monkeypatch.setattr(int8, "checked_codes", lambda *args: [])
    with pytest.raises(errors.MismatchError, match=f"layer `{layer}`"):
        udc_tf.export.export(model, tmp_path, calibration=images(8, 8, 3))
    assert list(tmp_path.iterdir()) == []


def newer_network() -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4, 8))
    x = kl.Conv1DTranspose(8, 3, padding="same", name="up")(inputs)
    x = kl.LayerNormalization(name="norm")(x)
    x = kl.MultiHeadAttention(2, 4, name="heads")(x, x)
    x = kl.Conv1D(6, 1, activation="softplus", name="soft")(x)
    x = keras.ops.max(x, axis=-1, keepdims=True) + x
    return keras.Model(inputs, kl.Dense(4, name="head")(kl.Flatten()(x)))


def _kind(lowered, kind: str, name: str):
    return next(step for step in lowered.steps if step.kind == kind and step.name == name)


def _flip_transposed(lowered):
    step = _step(lowered, "up")
    codes = step.kernel.codes.copy()
    codes[3] *= -1
    step.kernel = dataclasses.replace(step.kernel, codes=codes)


def _drop_root(lowered):
    _step(lowered, "norm/root").kind = "RESHAPE"


def _swap_axes_of_keys(lowered):
    _step(lowered, "heads/transpose_2").options["order"] = (0, 2, 1, 3)  # as long as wide


def _swap_matrices(lowered):
    step = _step(lowered, "heads/matmul")
    step.inputs = step.inputs[::-1]


def _bend_otherwise(lowered):
    _kind(lowered, "ADD", "soft").kind = "SUB"


def _forget_channels(lowered):
    step = next(s for s in lowered.steps if s.kind == "MAX_POOL_2D")
    step.kind = "AVERAGE_POOL_2D"


@pytest.mark.parametrize(
    "fault,layer",
    [
        (_flip_transposed, "up"),
        (_drop_root, "norm/root"),
        (_swap_axes_of_keys, "heads/transpose_2"),
        (_swap_matrices, "heads/matmul"),
        (_bend_otherwise, "soft"),
        (_forget_channels, "max.*"),
    ],
)
def test_planted_fault_in_newer_operators(fault, layer):
    model, data = newer_network(), images(4, 8)
    exact = int8.to_int8(model, data)
    assert agreement.check(model, exact, [data])["worst_layer"] < 0.5
    fault(exact.network)
    with pytest.raises(errors.MismatchError, match=f"layer `{layer}`"):
        agreement.check(model, exact, [data])


def network_over_time() -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3, 4))
    x = kl.TimeDistributed(kl.Dense(4, activation="tanh", name="each"), name="frames")(inputs)
    x = kl.LSTM(4, return_sequences=True, name="memory")(x)
    return keras.Model(inputs, kl.Dense(3, name="head")(kl.GRU(4, name="gates")(x)))


def _flip_frames(lowered):
    step = _step(lowered, "frames_each")
    step.kernel = dataclasses.replace(step.kernel, codes=-step.kernel.codes)


def _flip_recurrent(lowered):
    step = _step(lowered, "memory_cell_recurrent")
    codes = step.kernel.codes.copy()
    codes[1] *= -1
    step.kernel = dataclasses.replace(step.kernel, codes=codes)


def _swap_gates(lowered):
    step = _step(lowered, "memory_forget_sum")
    step.inputs = _step(lowered, "memory_input_sum").inputs


def _drop_memory(lowered):
    step = _step(lowered, "memory_carry")
    step.kind, step.inputs = "RESHAPE", step.inputs[1:]


def _swap_steps(lowered):
    first, second = (_step(lowered, f"memory_step_{n}_of_3") for n in (0, 1))
    first.options, second.options = second.options, first.options


def _drop_tanh(lowered):
    _step(lowered, "gates_candidate").kind = "LOGISTIC"


@pytest.mark.parametrize(
    "fault,layer",
    [
        (_flip_frames, "frames_each"),
        (_flip_recurrent, "memory_cell_recurrent"),
        (_swap_gates, "memory_forget_sum"),
        (_drop_memory, "memory_carry"),
        (_swap_steps, "memory_step_0_of_3"),
        (_drop_tanh, "gates_candidate"),
    ],
)
def test_planted_fault_in_layers_over_time(fault, layer):
    model, data = network_over_time(), images(3, 4)
    exact = int8.to_int8(model, data)
    assert agreement.check(model, exact, [data])["worst_layer"] < 0.5
    fault(exact.network)
    with pytest.raises(errors.MismatchError, match=f"layer `{layer}`"):
        agreement.check(model, exact, [data])


def test_layer_that_is_taken_apart_wrongly(monkeypatch):
    monkeypatch.setattr(unrolling._Lstm, "gates", ("input", "cell", "forget", "output"))
    model, data = network_over_time(), images(3, 4)
    with pytest.raises(errors.MismatchError, match="taken apart into do not compute what it does"):
        agreement.check(model, int8.to_int8(model, data), [data])


def test_layer_that_lowering_takes_for_nothing(monkeypatch):
    model = keras.Sequential(
        [keras.Input((6,)), kl.Dense(4), kl.LeakyReLU(name="leaky"), kl.Dense(2)]
    )
    nothing = layer_rules.rule_of(kl.Identity())
    monkeypatch.setattr(
        lowering,
        "rule_of_node",
        lambda node: nothing if node.name == "leaky" else layer_rules.rule_of_node(node),
    )
    data = images(6)
    with pytest.raises(errors.MismatchError, match="`leaky`"):
        agreement.check(model, int8.to_int8(model, data), [data])


def test_fault_of_the_writer_is_found_in_what_tflm_computes(monkeypatch, tmp_path):
    write = tflite_writer.write

    def without_relu(lowered, quantizations):
        steps = [
            dataclasses.replace(s, activation="NONE") if s.name == "second" else s
            for s in lowered.steps
        ]
        return write(dataclasses.replace(lowered, steps=steps), quantizations)

    monkeypatch.setattr(tflite_writer, "write", without_relu)
    # The file's range of that value begins at zero, which hides a ReLU; so it is widened.
    of_range = Quantization.of_range
    widened = classmethod(lambda cls, low, high: of_range(min(low, -high), high))
    monkeypatch.setattr(Quantization, "of_range", widened)
    with pytest.raises(errors.MismatchError, match=r"first layer that departs is `second`"):
        udc_tf.export.export(network(), tmp_path, calibration=images(8, 8, 3))
    assert list(tmp_path.iterdir()) == []


def test_network_that_8_bits_do_not_hold(tmp_path):
    # One feature a thousand times as large as the others, and the head looks at the others only.
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), kl.Dense(8, name="spread"), kl.Dense(4)])
    kernel = np.eye(8, dtype="float32")
    kernel[0, 0] = 3000.0
    head = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    head[0] = 0.0
    model.layers[0].set_weights([kernel, np.zeros(8)])
    model.layers[1].set_weights([head, np.zeros(4)])
    with pytest.raises(errors.MismatchError, match=r"8 bits do not hold .*finetune"):
        udc_tf.export.export(model, tmp_path, calibration=images(8))
    assert list(tmp_path.iterdir()) == []


def _two_ways() -> keras.Model:
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    x = kl.Dense(5, activation="relu")(a)
    y = kl.Dense(5, activation="tanh")(b)
    outputs = {"sum": kl.Add()([x, y]), "both": kl.Softmax()(kl.Concatenate()([x, y]))}
    return keras.Model({"a": a, "b": b}, outputs)


def _constant(value: str) -> keras.Model:
    zeros = kl.Dense(4, kernel_initializer="zeros", bias_initializer=value)
    return keras.Sequential([keras.Input((6,)), zeros])


def _relu6_alone() -> keras.Model:
    layers = [kl.Conv2D(4, 3), kl.LeakyReLU(0.3), kl.ReLU(6.0), kl.Conv2D(4, 3)]
    return keras.Sequential([keras.Input((8, 8, 3)), *layers])


@pytest.mark.parametrize(
    "model,data",
    [
        (network(), images(8, 8, 3)),
        (network(), images(8, 8, 3, count=1)),
        (_two_ways(), [images(6), images(6)]),
        (_constant("zeros"), images(6)),
        (_constant("ones"), images(6)),
        (_relu6_alone(), 9 * images(8, 8, 3)),
    ],
    ids=["plain", "one image", "several inputs and outputs", "zeros", "constant", "relu6"],
)
def test_honest_networks_pass(model, data):
    samples = data if isinstance(data, list) else [data]
    found = agreement.check(model, int8.to_int8(model, data), samples)
    assert found["inputs"] == len(samples[0]) and found["worst_layer"] < 0.5
    assert all(output["steps"] <= output["allowed_steps"] / 2 for output in found["outputs"])


def test_two_tensors_and_noise_instead_of_data_pass():
    model = udc_tf.compact(network(), bits=4, nonzeros=0.6)
    data = images(8, 8, 3)
    exact = int8.to_int8(model, data, deployment="two_tensors")
    assert agreement.check(model, exact, [data])["worst_layer"] < 0.5
    assert agreement.check(model, exact, None)["inputs"] == 16


@keras.saving.register_keras_serializable("tests")
def relu(x):
    """Not what its name says."""
    return -keras.ops.relu(x)


class _OwnDense(kl.Dense):
    def call(self, inputs):
        return -super().call(inputs)


@pytest.mark.parametrize(
    "shape,layer",
    [
        ((4, 4, 2), lambda: kl.Conv2DTranspose(3, 3, 2, "same", output_padding=1)),
        ((4, 4, 2), lambda: kl.Conv2DTranspose(3, 3, 2, "same", 1, activation="relu")),
        ((4, 4, 2), lambda: kl.Softmax(axis=1)),
        ((6,), lambda: kl.Dense(3, activation=relu)),
        ((6,), lambda: kl.Activation(relu)),
        ((6,), lambda: _OwnDense(3, activation="relu")),
        ((6, 3), lambda: kl.Conv1DTranspose(3, 2, dilation_rate=2, activation="relu")),
        ((6, 3), lambda: kl.LSTM(3, recurrent_dropout=0.1)),
        ((6,), lambda: kl.EinsumDense("ab,cb->ac", 4, activation="relu")),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_what_is_not_known_is_refused(shape, layer):
    made = layer()
    with pytest.raises(errors.ConversionError, match=f"`{made.name}`"):
        lower(keras.Sequential([keras.Input(shape), made]))


def test_function_that_keras_would_take_for_its_own():
    def tanh(x):
        return -x

    model = keras.Sequential([keras.Input((6,)), kl.Dense(3, activation=tanh, name="head")])
    with pytest.raises(ValueError, match=r"activation of the layer `head`.*rename it"):
        trace(model)


def test_a_constraint_is_a_matter_of_training():
    constraint = keras.constraints.MaxNorm(0.5)
    layers = [
        kl.Conv2D(4, 3, activation="relu", kernel_constraint=constraint),
        kl.DepthwiseConv2D(3, activation="relu", depthwise_constraint=constraint),
        kl.Flatten(),
        kl.Dense(3, activation="relu", kernel_constraint="non_neg"),
    ]
    model = keras.Sequential([keras.Input((8, 8, 2)), *layers])
    data = images(8, 8, 2)
    exact = int8.to_int8(model, data)
    kinds = [step.kind for step in exact.network.steps]
    assert kinds == ["CONV_2D", "DEPTHWISE_CONV_2D", "RESHAPE", "FULLY_CONNECTED"]
    agreement.check(model, exact, [data])
