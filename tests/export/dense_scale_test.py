"""Dense layers whose sums lie on halves: there the last bits of a multiplier decide."""

import keras
import numpy as np
import pytest

from udc_tf.export import compile_with_vela, dense_scale, int8, run
from udc_tf.export.integer_network import Kernel


def _halves(output_scale: float) -> keras.Model:
    """Biases halfway between two outputs, and weights so small that sums have all their bits."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(256)])
    kernel = np.full((2, 256), output_scale * 0.003, np.float32)
    bias = (np.arange(-128, 128) + 0.5) * output_scale
    model.set_weights([kernel * [[1], [-1]], bias.astype(np.float32)])
    return model


class TestTflmAndNpu:
    @pytest.mark.parametrize("output_scale", [0.011, 0.013, 0.017, 0.019])
    def test_agree_on_halves(self, output_scale, tmp_path):
        # Equal inputs cancel: the outputs' range is the biases' own, and so is its scale.
        data = np.array([[1, 1], [-1, -1]], np.float32)
        exact = int8.to_int8(_halves(output_scale), calibration=data)
        assert exact.quantizations[-1].scale == pytest.approx(output_scale, rel=1e-6)
        assert np.abs(exact.network.steps[0].kernel.bias_codes).max() > 1 << 27
        path = tmp_path / "dense.tflite"
        path.write_bytes(exact.content)
        compiled = compile_with_vela(path, tmp_path)
        inputs = exact.quantize_inputs([data])
        expected = run(path, inputs, on="tflm").outputs[0]
        np.testing.assert_array_equal(run(compiled.path, inputs, on="npu").outputs[0], expected)


def _scales(rng: np.random.Generator) -> np.ndarray:
    """Of an input, of weights, of an output."""
    return np.exp(rng.uniform(-8, 0, 3)).astype(np.float32)


def _kernel(scale: np.float32) -> Kernel:
    return Kernel("dense", np.ones((1, 1), np.int8), 0, np.array([scale]), np.zeros(1))


class TestSettle:
    def test_products_of_either_precision_give_one_multiplier(self):
        rng = np.random.default_rng(0)
        moved = []
        for _ in range(100):
            source, weights, output = _scales(rng)
            settled = dense_scale.settle(_kernel(weights), source, output)
            scale = np.float32(settled.scales[0])
            assert scale == settled.scales[0], "the file would round it once more"
            products = np.array([source * scale, np.float64(source) * np.float64(scale)])
            assert np.ptp(dense_scale.multiplier(products / np.float64(output))) == 0
            moved.append(abs(settled.scales[0] / weights - 1))
        assert np.median(moved) < 1e-5 and max(moved) < 5e-4

    def test_scale_that_agrees_stays(self):
        # A power of two multiplies without rounding.
        settled = dense_scale.settle(_kernel(np.float32(0.1)), np.float32(2**-7), np.float32(0.3))
        assert settled.scales.tolist() == [float(np.float32(0.1))]
