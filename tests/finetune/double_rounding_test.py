"""A finetuned network rounds as the int8 network does, not only to the same values."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from tests.support.eager import run_eagerly
from udc_tf.export import tflm_check
from udc_tf.export.int8 import to_int8
from udc_tf.finetune.double_rounding import match_double_rounding
from udc_tf.finetune.preparation import prepare
from udc_tf.finetune.run import finetune
from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.inventory import activation_quantizers

_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(96, 8, 8, 3)).astype("float32")
_Y = np.arange(96) % 4


@pytest.mark.parametrize("end", [6.0, 6.000001, 5.999999])
def test_what_relu6_cut_off_is_no_accumulator(end):
    quantizer = ActivationQuantizer(fixed_range=(0.0, end))
    quantizer(tf.zeros((1, 1)))
    quantizer.enabled.assign(1.0)
    quantizer.round_as_integers(units=4.1, fractions=1.0)  # 62 are 254.2 steps, 63 are 258.3
    steps = quantizer(tf.constant([[6.0], [100 * 6 / 255]])).numpy().ravel() * 255 / end
    np.testing.assert_allclose(steps, [255, 98], atol=1e-3)  # 24 units are 98.4


def _network(bits, joined=False):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(12, 3, padding="same", use_bias=False, name="conv")(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(name="bn")(x))
    for n in range(2):
        y = keras.layers.DepthwiseConv2D(3, padding="same", use_bias=False, name=f"dw{n}")(x)
        y = keras.layers.ReLU(6.0)(keras.layers.BatchNormalization()(y))
        y = keras.layers.Conv2D(12, 1, name=f"pw{n}")(y)
        x = keras.layers.Concatenate()([x, y]) if joined else keras.layers.Add()([x, y])
    x = keras.layers.GlobalAveragePooling2D(name="mean")(keras.layers.MaxPooling2D(2)(x))
    x = keras.layers.Dense(4, name="head")(x)
    return udc_tf.compact(keras.Model(inputs, x), bits=bits, nonzeros=0.7)


def _finetune(tiny, *epochs):
    with run_eagerly():  # what is tested is how the network computes when all is done
        stages = udc_tf.Stages(epochs=epochs)
        finetune(tiny, (_X, _Y), stages=stages, batch_size=16, verbose=0)
    return tiny


@pytest.fixture(scope="module")
def finetuned():
    """A network of 4 bits, finetuned; to be left as it is."""
    return _finetune(_network(4), 0, 1, 1)


def _differences(tiny, inputs, **calibration):
    """How many steps each output of Keras is away from TFLM's."""
    exact = to_int8(tiny, **calibration)
    output = exact.quantizations[exact.network.outputs[0]]
    keras_codes = output.quantize(tiny.predict(inputs, verbose=0)).astype(int)
    tflm_codes = tflm_check.run(exact.content, exact.quantize_inputs([inputs]))[0]
    return np.abs(keras_codes - tflm_codes)


@pytest.mark.parametrize("bits", [1, 8])
def test_finetuned_network_computes_what_tflm_does(bits):
    tiny = _finetune(_network(bits), 1, 2, 1)
    unseen = np.random.default_rng(1).normal(size=(32, 8, 8, 3)).astype("float32")
    twice = _differences(tiny, unseen)
    assert np.mean(twice <= 1) >= 0.99 and np.mean(twice == 0) >= 0.9
    # Calibration data must not undo it.
    np.testing.assert_array_equal(_differences(tiny, unseen, calibration=_X), twice)

    for quantizer in activation_quantizers(tiny):
        quantizer.round_once()
    once = _differences(tiny, unseen)
    if bits < 8:
        assert np.mean(once == 0) < np.mean(twice == 0) - 0.05
    assert match_double_rounding(tiny) == 7
    np.testing.assert_array_equal(_differences(tiny, unseen), twice)


def test_what_scales_channels_on_its_own_rounds_as_tflm_does():
    """Batch norms in front of kernels, as in ResNet V2, and sums and products with numbers."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Rescaling(0.7, offset=0.1, name="given")(inputs)
    x = keras.layers.Conv2D(12, 3, padding="same")(x)
    for n in range(2):
        y = keras.layers.ReLU()(keras.layers.BatchNormalization(name=f"before{n}")(x))
        x = keras.layers.Add()([x, keras.layers.Conv2D(12, 3, padding="same")(y)])
    x = keras.layers.BatchNormalization(name="behind")(x) * 1.3 + 0.2
    x = keras.layers.Dense(4, name="head")(keras.layers.GlobalAveragePooling2D()(x))
    tiny = _finetune(udc_tf.compact(keras.Model(inputs, x), bits=8), 0, 1, 1)
    once = {q.name for q in activation_quantizers(tiny) if not q.rounds_twice}
    assert all(name.startswith(("input", "add_quantizer", "add_")) for name in once), once
    unseen = np.random.default_rng(1).normal(size=(64, 8, 8, 3)).astype("float32")
    assert np.mean(_differences(tiny, unseen) == 0) > 0.98
    exact = to_int8(tiny)
    found = tflm_check.run(exact.content, exact.quantize_inputs([unseen]))[0]
    assert np.mean(exact.reference([unseen])[0] == found) > 0.98


def test_only_ranges_of_one_kernel_round_twice():
    tiny = _finetune(_network(2, joined=True), 0, 1, 1)
    twice = {q.name for q in activation_quantizers(tiny) if q.rounds_twice}
    assert len(twice) == 4 and {"mean_quantizer", "head_quantizer"} < twice  # and two depthwise
    shared = [q for q in activation_quantizers(tiny) if q.hold_peaks]
    assert shared and all(q.fractions is None for q in shared)


def test_what_was_averaged_is_no_whole_number():
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8, 8, 3))
    for kind in (keras.layers.MaxPooling2D, keras.layers.AveragePooling2D):
        x = kind(2)(keras.layers.Conv2D(8, 3, padding="same")(x))
    x = keras.layers.Dense(4, name="head")(keras.layers.Conv2D(8, 2, name="last")(x)[:, 0, 0])
    tiny = _finetune(udc_tf.compact(keras.Model(inputs, x), bits=2), 0, 1, 1)
    once = {q.name for q in activation_quantizers(tiny) if not q.rounds_twice}
    assert "last_quantizer" in once and "head_quantizer" not in once


def test_without_ranges_nothing_rounds_twice():
    assert match_double_rounding(_network(2)) == 0


def test_training_again_forgets_it_and_saving_does_not(finetuned, tmp_path):
    finetuned.save(tmp_path / "tiny.keras")
    loaded = keras.models.load_model(tmp_path / "tiny.keras")
    np.testing.assert_array_equal(loaded.predict(_X, verbose=0), finetuned.predict(_X, verbose=0))
    assert sum(q.rounds_twice for q in activation_quantizers(loaded)) == 7
    prepare(loaded)
    assert not any(q.rounds_twice for q in activation_quantizers(loaded))


def test_a_tightened_network_is_settled_again(finetuned, tmp_path):
    free = udc_tf.export.export(finetuned, tmp_path / "free", calibration=_X)
    budget = udc_tf.Flash(free.flash_bytes - 300)
    tight = udc_tf.export.export(finetuned, tmp_path / "tight", target=budget, calibration=_X)
    assert tight.report["tightening"]
    agreement = tight.report["tflm_against_fake_quant"]
    assert agreement["within_1"] >= 0.99, agreement
    assert np.mean(_differences(tight.model, _X[:32]) <= 1) >= 0.99


def test_products_and_gates_round_as_tflm_does():
    """Swish, which is a sigmoid and a product in the file; layer norm and attention."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3, strides=2, padding="same", activation="swish")(inputs)
    x = keras.layers.Activation("swish", name="swish")(keras.layers.Conv2D(8, 1)(x))
    x = keras.layers.Reshape((16, 8))(x)
    y = keras.layers.LayerNormalization(name="norm")(x)
    x = x + keras.layers.MultiHeadAttention(2, 4)(y, y)
    x = keras.layers.Dense(4, name="head")(keras.layers.GlobalAveragePooling1D()(x))
    tiny = _finetune(udc_tf.compact(keras.Model(inputs, x), bits=4), 0, 1, 1)
    unseen = np.random.default_rng(1).normal(size=(64, 8, 8, 3)).astype("float32")
    same = np.mean(_differences(tiny, unseen) == 0)
    assert same > 0.94  # export moves scales of products a little
    exact = to_int8(tiny)
    found = tflm_check.run(exact.content, exact.quantize_inputs([unseen]))[0]
    assert np.mean(exact.reference([unseen])[0] == found) > 0.99
    for quantizer in activation_quantizers(tiny):
        quantizer.round_once()
    assert np.mean(_differences(tiny, unseen) == 0) < same - 0.3
