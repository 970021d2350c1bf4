"""Weight streams: decoded as Vela's own encoder wrote them, and safe to decode when damaged."""

import numpy as np
import pytest

from udc_tf.export.npu import WeightStreamError, weight_order, weights
from udc_tf.export.npu.weight_order import WeightShape


def _encode(values) -> bytes:
    from ethosu import mlw_codec

    return bytes(mlw_codec.encode([int(v) for v in values]))


def _drawn(kind: str, rng: np.random.Generator, count: int) -> np.ndarray:
    if kind == "full range":
        return rng.integers(-255, 256, count)
    if kind == "bell":
        return np.round(rng.normal(0, rng.uniform(0.5, 30), count)).clip(-127, 127).astype(int)
    if kind == "sparse":
        return rng.integers(-127, 128, count) * (rng.random(count) < 0.1)
    if kind == "signs":
        return rng.choice([-1, 1], count) * (rng.random(count) < rng.random())
    if kind == "few levels":
        return rng.choice(rng.integers(-255, 256, int(rng.integers(1, 40))), count)
    return np.concatenate([rng.integers(1, 128, count // 2), np.zeros(count - count // 2, int)])


class TestDecode:
    @pytest.mark.parametrize(
        "kind", ["full range", "bell", "sparse", "signs", "few levels", "long zero run"]
    )
    def test_gives_back_what_was_encoded(self, kind):
        rng = np.random.default_rng(len(kind))
        for _ in range(12):
            values = _drawn(kind, rng, int(rng.integers(1, 4000)))
            decoded = weights.decode(_encode(values), len(values))
            np.testing.assert_array_equal(decoded, values)

    def test_counts_the_weights(self):
        stream = _encode([1, 2, 3, 4] * 8)
        with pytest.raises(WeightStreamError, match="should hold 33 weights"):
            weights.decode(stream, 33)
        with pytest.raises(WeightStreamError):
            weights.decode(stream, 31)

    def test_an_empty_stream_holds_nothing(self):
        assert weights.decode(b"", 0).size == 0
        with pytest.raises(WeightStreamError):
            weights.decode(b"", 1)

    def test_damage_ends_in_an_error_or_in_other_weights(self):
        rng = np.random.default_rng(0)
        values = _drawn("bell", rng, 600)
        stream = _encode(values)
        outcomes = set()
        for _ in range(300):
            broken = bytearray(stream)
            broken[int(rng.integers(len(broken)))] ^= 1 << int(rng.integers(8))
            try:
                outcomes.add(len(weights.decode(bytes(broken), len(values))))
            except WeightStreamError:
                outcomes.add("error")
        assert outcomes == {len(values), "error"}


class TestStreamOrder:
    @pytest.mark.parametrize("macs", [32, 64, 128, 256])
    @pytest.mark.parametrize("depthwise", [False, True])
    @pytest.mark.parametrize("part_kernel", [False, True])
    @pytest.mark.parametrize("ifm_bits", [8, 16])
    def test_visits_every_weight_once(self, macs, depthwise, part_kernel, ifm_bits):
        shape = WeightShape(
            ofm_depth=37,
            kernel=(9, 3),
            ifm_depth=1 if depthwise else 41,
            block_depth=16,
            dilation=(2, 1),
            part_kernel=part_kernel and not depthwise,
            depthwise=depthwise,
            ifm_bits=ifm_bits,
            macs=macs,
        )
        order = weight_order.stream_order(shape)
        used = np.sort(order[order >= 0])
        np.testing.assert_array_equal(used, np.arange(shape.weights))
        assert shape.blocks == 3 * (1 if depthwise else -(-41 // shape.ifm_block_depth)) * 3

    def test_kernel_is_laid_out_for_matrices(self):
        shape = WeightShape(8, (1, 2), 8, 8, (1, 1), False, False, 8, 128)
        stream = np.zeros(weight_order.stream_order(shape).size, np.int16)
        position = int(np.flatnonzero(weight_order.stream_order(shape) == (3 * 2 + 1) * 8 + 5)[0])
        stream[position] = 7
        kernel = weight_order.to_kernel(stream, shape, weight_order.stream_order(shape))
        assert kernel.shape == (1, 2, 8, 8)
        assert kernel[0, 1, 5, 3] == 7 and kernel.sum() == 7
