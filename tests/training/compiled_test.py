"""Searches and finetunings under XLA and in 16 bits."""

import keras
import numpy as np
import pytest

import udc_tf
from tests.support import networks
from udc_tf.finetune.step import Finetuner
from udc_tf.layers.compact_kernels import WeightTraining
from udc_tf.layers.inventory import activation_quantizers, kernel_layers
from udc_tf.layers.precision import computing_in, global_policy

_X, _Y = networks.blobs(32)


def _searched(**compile_arguments) -> udc_tf.SearchModel:
    keras.utils.set_random_seed(0)
    settings = udc_tf.SearchSettings(warmup=0.5, samples=2, mask_refresh=2)
    model, target = networks.small_cnn(), udc_tf.Flash(2900)
    search = udc_tf.make_searchable(model, "ethos_u55", target, settings)
    search.compile(loss=networks.cross_entropy(), **compile_arguments)
    search.fit(_X, _Y, batch_size=16, epochs=2, verbose=0)
    return search


def _stepped(jit_compile: bool) -> keras.Model:
    """Two steps, with activations rounded and four weights in five quantized."""
    keras.utils.clear_session()  # the names of layers, too, seed what is drawn
    keras.utils.set_random_seed(0)
    tiny = udc_tf.compact(networks.small_cnn(), bits=4, nonzeros=0.5)
    for layer in kernel_layers(tiny):
        layer.weight_training = WeightTraining(random_quantization=True)
        layer.alpha.assign(0.8)
    for quantizer in activation_quantizers(tiny):
        quantizer.set_range(-2.0, 2.0)
        quantizer.enabled.assign(1.0)
    finetuner = Finetuner(tiny, udc_tf.Stages(epochs=1, l2=1e-4))
    sgd = keras.optimizers.SGD(0.01)
    finetuner.compile(sgd, networks.cross_entropy(), jit_compile=jit_compile)
    for _ in range(2):
        finetuner.train_on_batch(_X[:16], _Y[:16])
    return tiny


@pytest.fixture(scope="module")
def plain():
    return _searched()


class TestXla:
    def test_a_search_is_the_same(self, plain):
        compiled = _searched(jit_compile=True)
        for mine, theirs in zip(compiled.variables, plain.variables, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-4)

    def test_finetuning_steps_are_the_same(self):
        mine, theirs = (_stepped(jit_compile) for jit_compile in (True, False))
        for a, b in zip(mine.variables, theirs.variables, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)

    def test_on_a_processor_it_is_not_chosen(self, plain):
        assert plain.jit_compile is False  # slower there, and so "auto" leaves it


class TestMixedPrecision:
    @pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
    def test_a_search_decides_in_float32(self, policy, plain):
        with global_policy(policy):
            search = _searched()
        scales = isinstance(search.optimizer, keras.optimizers.LossScaleOptimizer)
        assert scales == (policy == "mixed_float16")
        assert search.kernel_layers[0].compute_dtype == policy.removeprefix("mixed_")
        assert {v.dtype for v in search.ranges} == {search.state.logits.dtype} == {"float32"}
        found, expected = (s.state.logits.numpy() for s in (search, plain))
        # The harm of few bits is read off the weights, which were trained to bfloat16's precision.
        np.testing.assert_allclose(found, expected, rtol=2**-8, atol=0.05)
        assert search.architecture().flash_bytes <= 2900

    def test_is_left_when_an_error_ends_it(self):
        tiny = udc_tf.compact(networks.small_cnn(), bits=4)
        with pytest.raises(KeyError), computing_in(tiny, "mixed_bfloat16"):
            assert kernel_layers(tiny)[0].compute_dtype == "bfloat16"
            assert tiny.layers[-1].compute_dtype == "float32"
            raise KeyError
        assert {layer.compute_dtype for layer in tiny.layers} == {"float32"}

    @pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
    def test_the_file_is_exact(self, policy, tmp_path):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        with global_policy(policy):
            tiny = udc_tf.compact(networks.small_cnn(), bits=4, nonzeros=0.5)
            stages = udc_tf.Stages(epochs=3, alpha=0.8)
            history = udc_tf.finetune(tiny, (_X, _Y), stages=stages, batch_size=16, verbose=0)
            result = udc_tf.export.export(tiny, tmp_path, calibration=_X)  # compares every layer
        assert history.history["loss"][-1] < history.history["loss"][0]
        assert {layer.compute_dtype for layer in tiny.layers} == {"float32"}
        folder = result.tflite_path.parent / "golden"
        real = {}
        for kind in ("input", "output"):
            (side,) = result.manifest[f"{kind}s"]
            codes = np.load(folder / f"{kind}_0.npy").astype("float32")
            real[kind] = (codes - side["zero_point"]) * side["scale"]
        found = tiny.predict(real["input"], verbose=0)
        np.testing.assert_allclose(found, real["output"], atol=1e-5)
