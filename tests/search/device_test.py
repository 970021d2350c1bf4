"""Training steps stay on their device, whichever it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from tests.support import networks
from tests.support.gpu_kernels import nodes_of, without_gpu_kernel
from udc_tf.finetune.step import Finetuner
from udc_tf.quantize import ranking
from udc_tf.search.state import SearchState
from udc_tf.training import batch_norm

_NETWORKS = {
    "resnet": (lambda: networks.resnet(8, (4, 4, 8, 8)), 9000),
    "separable": (networks.separable, 25000),
    "u_net": (networks.u_net, 12000),
    "autoencoder": (networks.autoencoder, 5000),
    "small_cnn": (networks.small_cnn, 2900),
}
_ON_THE_HOST = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}


def _graph(trained: keras.Model, model: keras.Model):
    """The training step of `trained` for examples of the model's shapes."""
    x, y = (tf.TensorSpec([None, *t.shape[1:]]) for t in (model.inputs[0], model.outputs[0]))
    with batch_norm.fused(trained.network):  # as `fit` traces it
        return tf.function(lambda x, y: trained.train_step((x, y))).get_concrete_function(x, y)


def _check(concrete) -> None:
    assert not without_gpu_kernel(concrete)
    assert not _ON_THE_HOST & {node.op for node in nodes_of(concrete)}


class TestGraphs:
    @pytest.mark.parametrize("name", _NETWORKS)
    def test_search_steps_have_gpu_kernels_only(self, name, monkeypatch):
        monkeypatch.setattr(ranking, "sorts_here", lambda _=False: True)  # as on a GPU
        build, budget = _NETWORKS[name]
        model, settings = build(), udc_tf.SearchSettings(samples=2)
        search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash(budget), settings)
        search.compile(loss="mse", metrics=["mae"])
        _check(_graph(search, model))

    @pytest.mark.parametrize("name", _NETWORKS)
    def test_finetuning_steps_have_gpu_kernels_only(self, name):
        tiny = udc_tf.compact(_NETWORKS[name][0](), bits=4, nonzeros=0.5)
        teacher = keras.Sequential([keras.Input(tiny.input_shape[1:]), keras.layers.Identity()])
        teacher = None if tiny.input_shape != tiny.output_shape else teacher
        finetuner = Finetuner(tiny, udc_tf.Stages(epochs=1, l2=1e-4), teacher)
        finetuner.compile("sgd", "mse", metrics=["mae"])
        _check(_graph(finetuner, tiny))

    def test_what_has_no_kernel_is_found(self):
        counted = tf.function(lambda i, w: tf.numpy_function(np.bincount, [i, w], tf.float64))
        concrete = counted.get_concrete_function(
            tf.TensorSpec([4], tf.int32), tf.TensorSpec([4], tf.float64)
        )
        assert without_gpu_kernel(concrete) == {"PyFunc"}
        doubles = tf.function(lambda i, w: tf.math.bincount(i, weights=w))
        concrete = doubles.get_concrete_function(
            tf.TensorSpec([4], tf.int32), tf.TensorSpec([4], tf.float64)
        )
        assert "Bincount" in " ".join(without_gpu_kernel(concrete))


def _searched(**compile_arguments):
    """Twelve steps, of which the first five are the warm-up."""
    keras.utils.set_random_seed(0)
    settings = udc_tf.SearchSettings(warmup=0.42, samples=2, mask_refresh=3)
    model, target = networks.small_cnn(), udc_tf.Flash(2900)
    search = udc_tf.make_searchable(model, "ethos_u55", target, settings)
    search.compile(loss=networks.cross_entropy(), **compile_arguments)
    search.fit(*networks.blobs(48), batch_size=8, epochs=2, verbose=0)
    return search


@pytest.fixture(scope="module")
def step_by_step():
    return _searched()


class TestExecutions:
    def test_several_steps_at_once_decide_as_single_ones(self, step_by_step):
        search = _searched(steps_per_execution=4)  # the guess comes inside of the second four
        assert search.state.steps_done() == 12
        assert np.abs(search.state.logits.numpy()).max() > 1  # the guess was made
        for mine, theirs in zip(search.variables, step_by_step.variables, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)

    def test_the_decisions_clock_starts_with_them(self, step_by_step):
        assert int(step_by_step.decision_optimizer.iterations) == 12 - 5

    def test_no_variable_is_read_in_a_batch(self, step_by_step, monkeypatch):
        reads, read = [], SearchState.steps_done
        monkeypatch.setattr(SearchState, "steps_done", lambda s: reads.append(0) or read(s))
        step_by_step.fit(*networks.blobs(256), batch_size=8, epochs=1, verbose=0)
        assert len(reads) < 16  # where something is decided, not in each of 32 batches
