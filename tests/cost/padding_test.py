"""Our padding rules against Vela's own coder, which says how many weights it coded."""

import numpy as np
import pytest

from udc_tf.cost.padding import outputs_together, padded_fan_in, round_up

mlw_codec = pytest.importorskip("ethosu.mlw_codec")


def coded(outputs, inputs, size, depthwise=False, part_kernel=False, together=8) -> int:
    weights = np.ones((outputs, size, size, inputs), np.int16)
    block = round_up(min(outputs, 128), together)
    _, count = mlw_codec.reorder_encode(
        8, together, weights, block, depthwise, part_kernel, 8, 8, 8
    )
    return count


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("inputs", [1, 3, 8, 17, 33, 64])
@pytest.mark.parametrize("outputs", [3, 8, 20])
def test_convolutions(size, inputs, outputs):
    fan_in = padded_fan_in(inputs, size * size)
    both = [coded(outputs, inputs, size, part_kernel=p) for p in (False, True)]
    assert fan_in * round_up(outputs, 8) in both
    # Vela takes the order with less filling; for few inputs always the second.
    assert fan_in * round_up(outputs, 8) == (both[1] if inputs <= 8 else min(both))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_depthwise(size):
    assert padded_fan_in(None, size * size) * 24 == coded(20, 1, size, depthwise=True)


def test_dense_layers_are_read_depth_first():
    assert padded_fan_in(20, 1, image=False) * 8 == coded(8, 20, 1)


def test_the_smallest_chip_codes_four_outputs_together():
    assert outputs_together("ethos-u55-32") == 4
    assert padded_fan_in(32, 1) * 12 == coded(10, 32, 1, together=4)
