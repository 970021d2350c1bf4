"""Our padding rules against Vela's own coder, which says how many weights it coded."""

import keras
import numpy as np
import pytest

import udc_tf.export
from udc_tf.cost.padding import Padding, round_up
from udc_tf.export.int8 import to_int8
from udc_tf.export.npu import container, weights

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
    fan_in = Padding().fan_in(inputs, size * size)
    both = [coded(outputs, inputs, size, part_kernel=p) for p in (False, True)]
    assert fan_in * round_up(outputs, 8) in both
    # Vela takes the order with less filling; for few inputs always the second.
    assert fan_in * round_up(outputs, 8) == (both[1] if inputs <= 8 else min(both))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_depthwise(size):
    assert Padding().fan_in(None, size * size) * 24 == coded(20, 1, size, depthwise=True)


def test_dense_layers_are_read_depth_first():
    assert Padding().fan_in(20, 1, image=False) * 8 == coded(8, 20, 1)


def test_the_smallest_chip_codes_four_outputs_together():
    padding = Padding.of("ethos-u55-32")
    assert padding.fan_in(32, 1) * padding.padded_outputs(10) == coded(10, 32, 1, together=4)


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "depthwise"),
    [(20, 12, 3, False), (70, 12, 1, False), (20, 20, 3, True)],
)
def test_an_ethos_u85(inputs, outputs, size, depthwise, tmp_path):
    """Vela's file has a record per channel, by sixteen, and then the weights that we count."""
    rng = np.random.default_rng(0)
    layer = keras.layers.DepthwiseConv2D(size) if depthwise else keras.layers.Conv2D(outputs, size)
    model = keras.Sequential([keras.Input((8, 8, inputs)), layer])
    layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])
    path = tmp_path / "model.tflite"
    path.write_bytes(to_int8(model, [rng.normal(size=(2, 8, 8, inputs))]).content)
    compiled = udc_tf.export.compile_with_vela(path, tmp_path, "ethos-u85-256")
    tensors = container.parse(compiled.path.read_bytes()).tensors
    (stored,) = [tensor.data for tensor in tensors if tensor.name == "read_only"]
    padding = Padding.of("ethos-u85-256")
    records = 10 * round_up(outputs, padding.records)
    count = padding.fan_in(None if depthwise else inputs, size * size)
    count *= padding.padded_outputs(outputs, depthwise=depthwise)
    assert len(stored) == records + compiled.encoded_weight_bytes
    assert len(weights.decode(stored[records:], count)) == count
