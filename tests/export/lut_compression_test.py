"""TFLM's look-up tables: smaller, and the same output bit by bit."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf.export
from udc_tf.export import errors, int8, lut_compression, tflite_file, tflm_check


def network(bits: int) -> keras.Model:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 16))
    x = kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(24, 3, use_bias=False, name="a")(inputs)))
    x = kl.ReLU()(kl.BatchNormalization()(kl.DepthwiseConv2D(3, use_bias=False, name="b")(x)))
    model = keras.Model(inputs, kl.Dense(10, name="head")(kl.Flatten()(x)))
    return udc_tf.compact(model, bits=bits, nonzeros=0.5)


@pytest.fixture(scope="module")
def data() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(8, 8, 8, 16)).astype("float32")


class TestCompress:
    @pytest.mark.parametrize("bits", [1, 4])
    def test_computes_the_same(self, bits, data):
        exact = int8.to_int8(network(bits), data)
        smaller = lut_compression.compress(exact.content)
        assert len(smaller) < len(exact.content)
        codes = exact.quantize_inputs([data])
        lut_compression.check_equal(
            tflm_check.run(smaller, codes), tflm_check.run(exact.content, codes)
        )

    def test_tables_follow_the_scales(self, data):
        exact = int8.to_int8(network(4), data)
        file = tflite_file.read(exact.content)
        found = {
            file.tensors[i].name: rest for i, *rest in lut_compression.worthwhile(exact.content)
        }
        assert found["a_weights"][0] == 0 and found["head_weights"][0] is None
        assert "b_weights" not in found  # 216 weights: a table a channel would only cost

    def test_eight_bits_gain_nothing(self, data):
        exact = int8.to_int8(network(8), data)
        with pytest.raises(errors.ExportError, match="No weight tensor becomes smaller"):
            lut_compression.compress(exact.content)

    def test_a_different_output_is_refused(self):
        golden = [np.array([[1, 2]], np.int8)]
        lut_compression.check_equal(golden, golden)
        with pytest.raises(errors.ConversionError, match="1 of 2 outputs differ, by up to 3 steps"):
            lut_compression.check_equal([np.array([[1, 5]], np.int8)], golden)


class TestExport:
    def test_is_written_on_request(self, data, tmp_path):
        result = udc_tf.export.export(network(4), tmp_path, calibration=data, lut=True)
        content = (tmp_path / "model_lut.tflite").read_bytes()
        assert result.report["lut"]["bytes"] == len(content)
        assert len(content) < result.report["lut"]["without_bytes"]
        assert result.manifest["files"]["model_lut.tflite"]["bytes"] == len(content)
