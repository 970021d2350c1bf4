"""The table of a compact network's weights."""

import keras
import numpy as np

from udc_tf.compact.summary import layer_summaries, summary_bits
from udc_tf.layers.compact_kernels import CompactDense


def network():
    normal = keras.initializers.RandomNormal(seed=1)
    model = keras.Sequential(
        [
            keras.Input((40,)),
            CompactDense(30, bits=4, nonzeros=0.25, kernel_initializer=normal, name="first"),
            CompactDense(10, bits=8, kernel_initializer=normal, name="second"),
        ]
    )
    model.get_layer("first").refresh_mask(shifted=True)
    return model


class TestSummary:
    def test_numbers_are_those_of_the_deployed_weights(self):
        first, second = layer_summaries(network())
        assert (first.weights, first.nonzeros, first.bits) == (1200, 300, 4)
        assert 2 < first.distinct <= 16
        assert 0 < first.beta < first.range + first.beta
        np.testing.assert_allclose(first.beta / first.step, round(first.beta / first.step))
        assert first.entropy < 0.25 * 4 + 0.82  # s*b + H(s)
        assert first.predicted_bytes == -(-1200 * first.entropy // 8)
        assert (second.beta, second.weights) == (0.0, 300)

    def test_table_has_a_line_per_layer_and_a_total(self):
        lines = []
        summary_bits(network(), lines.append)
        assert [line.split()[0] for line in lines] == ["layer", "first", "second", "total"]
        assert len({len(line) for line in lines}) == 1
