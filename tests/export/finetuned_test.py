"""A finetuned network: what training computed is what TFLM computes."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
import udc_tf.export
from udc_tf.export import int8, tflm_check


def stripes(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Four directions of noisy stripes: learned in a few epochs."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    rows, columns = np.mgrid[:12, :12]
    angles = np.stack([rows, columns, rows + columns, rows - columns])
    phase = rng.uniform(0, 6, count)[:, None, None]
    images = np.sin(1.2 * angles[labels] + phase) + rng.normal(0, 0.3, (count, 12, 12))
    return images[..., None].astype("float32"), labels


@pytest.fixture(scope="module", params=[1, 4])
def finetuned(request) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12, 12, 1))
    x = kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(12, 3, use_bias=False)(inputs)))
    y = kl.Conv2D(12, 3, padding="same", use_bias=False)(x)
    x = kl.ReLU()(kl.Add()([x, kl.BatchNormalization()(y)]))
    outputs = kl.Dense(4)(kl.GlobalAveragePooling2D()(x))
    tiny = udc_tf.compact(keras.Model(inputs, outputs), bits=request.param, nonzeros=0.6)
    udc_tf.finetune(tiny, stripes(512, 0), stages=udc_tf.Stages(epochs=6), batch_size=32, verbose=0)
    return tiny


def _difference(model: keras.Model, calibration) -> np.ndarray:
    """Steps between TFLM and the Keras model on images that neither has seen."""
    images, _ = stripes(64, 1)
    exact = int8.to_int8(model, calibration)
    (last,) = exact.network.outputs
    from_keras = exact.quantizations[last].quantize(model.predict(images, verbose=0))
    (golden,) = tflm_check.run(exact.content, exact.quantize_inputs([images]))
    return np.abs(golden.astype(int) - from_keras)


class TestFinetuned:
    def test_tflm_equals_the_keras_model(self, finetuned):
        difference = _difference(finetuned, stripes(128, 2)[0])
        assert np.mean(difference <= 1) >= 0.99, np.bincount(difference.ravel())

    def test_without_data_biases_are_only_rounded(self, finetuned):
        # Then one-bit weights, whose accumulators count in coarse units, miss 99%: 96% here.
        difference = _difference(finetuned, None)
        coarse = finetuned.layers[-2].bits == 1
        assert difference.max() <= 2
        assert np.mean(difference <= 1) >= (0.95 if coarse else 0.99), np.bincount(
            difference.ravel()
        )

    def test_integers_are_the_layers_own(self, finetuned):
        exact = int8.to_int8(finetuned)
        checks = int8.checked_codes(finetuned, exact)
        assert len(checks) == 3
        assert not any(check.different or check.collapsed for check in checks)

    def test_exports_without_calibration(self, finetuned, tmp_path):
        result = udc_tf.export.export(finetuned, tmp_path, target=udc_tf.Flash("8KiB"))
        assert result.flash_bytes <= 8192
