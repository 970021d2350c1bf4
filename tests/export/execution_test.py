"""What export runs of a compiled network: what the executor knows, and what it does not."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
import udc_tf.export
from udc_tf.export import execution
from udc_tf.export.errors import MismatchError
from udc_tf.export.runners import RunnerUnavailableError

SAMPLES = np.random.default_rng(0).normal(size=(8, 8, 8, 3)).astype("float32")


@pytest.fixture(scope="module")
def tiny():
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3))
    y = kl.Conv2D(12, 3, activation="relu")(x)
    y = kl.DepthwiseConv2D(3, activation="relu")(y)
    return udc_tf.compact(keras.Model(x, kl.Dense(5)(kl.Flatten()(y))), bits=4, nonzeros=0.5)


@pytest.fixture(scope="module", params=["ethos-u55-32", "ethos-u65-512", "ethos-u85-256"])
def exported(request, tiny, tmp_path_factory):
    target = udc_tf.Flash("16KiB", request.param)
    return udc_tf.export.export(tiny, tmp_path_factory.mktemp("out"), target, SAMPLES)


def test_the_manifest_says_what_ran(exported):
    executed, accelerator = exported.manifest["executed"], exported.manifest["accelerator"]
    assert executed["tflite"] == {"on": "tflm", "samples": 8}
    if "u85" in accelerator:
        assert executed["compiled"]["on"] is None
        assert accelerator in executed["compiled"]["why_not"]
    else:
        assert executed["compiled"] == {"on": "npu", "samples": 2, "values_unlike_tflm": 0}


def test_runners_say_what_they_run(exported):
    inputs = np.load(exported.folder / "golden" / "input_0.npy")
    accelerator = exported.manifest["accelerator"]
    if "u85" in accelerator:
        with pytest.raises(RunnerUnavailableError, match=f"Received: one for {accelerator}"):
            udc_tf.export.run(exported.vela_path, inputs, on="npu")
    else:
        ran = udc_tf.export.run(exported.vela_path, inputs, on="npu")
        np.testing.assert_array_equal(
            ran.outputs[0], np.load(exported.folder / "golden" / "output_0.npy")
        )
        assert (ran.cycles is not None) == ("u55" in accelerator)


def test_another_network_is_found_out(exported):
    inputs, golden = (
        np.load(exported.folder / "golden" / f"{kind}_0.npy") for kind in ("input", "output")
    )
    compiled = exported.vela_path.read_bytes()
    if "u85" in exported.manifest["accelerator"]:
        return
    with pytest.raises(MismatchError, match=r"output 0 is .* steps apart, 2\.0 are allowed"):
        execution.execute(compiled, [inputs], [golden[:, ::-1]], [2.0])


def test_a_value_unlike_tflms_is_said(exported, caplog):
    inputs, golden = (
        np.load(exported.folder / "golden" / f"{kind}_0.npy") for kind in ("input", "output")
    )
    if "u85" in exported.manifest["accelerator"]:
        return
    golden[0, 0] += 1 if golden[0, 0] < 127 else -1
    with caplog.at_level("WARNING", logger="absl"):
        found = execution.execute(exported.vela_path.read_bytes(), [inputs], [golden], [2.0])
    assert found["compiled"]["values_unlike_tflm"] == 1
    assert "has 1 output values otherwise than TFLM" in caplog.text
