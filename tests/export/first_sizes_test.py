"""Budgets of flash that nothing was measured for: met, or refused before the first step."""

import re

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
import udc_tf.export
from tests.support import npu_networks as nets
from tests.support.eager import run_eagerly
from udc_tf.cost.flash import FlashCost
from udc_tf.export.first_sizes import with_first_sizes
from udc_tf.export.int8 import to_int8
from udc_tf.export.measuring import make_bell_shaped
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.trace import trace
from udc_tf.search.make import searchable
from udc_tf.search.plan import plan_search

SPACE = udc_tf.SearchSpace(widths=(0.25, 0.5, 1.0), bits=(1, 2, 4, 8), sparsities=(0.05, 0.3, 1.0))


def conv(x, channels=16, size=3):
    return kl.Conv2D(channels, size, padding="same", activation="relu")(x)


def network(layers, shape=(8, 8, 3)) -> keras.Model:
    keras.utils.set_random_seed(0)
    x = keras.Input(shape)
    return keras.Model(x, kl.Conv2D(4, 1)(layers(conv(x))))


def shuffled(x):
    """Channels of several groups, exchanged: of operators that are predicted too low."""
    x = kl.Permute((1, 2, 4, 3))(kl.Reshape((8, 8, 4, 4))(x))
    return kl.Conv2D(8, 3, groups=4, padding="same")(kl.Reshape((8, 8, 16))(x))


def multiplied(x):
    return kl.DepthwiseConv2D(3, depth_multiplier=2, padding="same")(x)


def enlarged(x):
    return kl.UpSampling2D(interpolation="bilinear")(x)


def attending(x):
    return keras.ops.matmul(x, kl.Permute((1, 3, 2))(conv(x, size=1)))


def search_of(layers, budget: int) -> udc_tf.SearchModel:
    target, settings = udc_tf.Flash(budget), udc_tf.SearchSettings(samples=1)
    search = udc_tf.make_searchable(network(layers), SPACE, target, settings)
    search.compile("sgd", "mse")
    return search


def fit(search: udc_tf.SearchModel) -> None:
    data = np.random.default_rng(0).normal(size=(16, 8, 8, 3)).astype("float32")
    with run_eagerly():
        search.fit(data, np.zeros((16, 8, 8, 4), "float32"), batch_size=8, verbose=0)


class TestBudgets:
    def test_what_is_too_small_is_refused_early_and_what_is_just_enough_is_met(self, tmp_path):
        predicted = searchable(network(shuffled), SPACE, udc_tf.Flash("1MiB")).reachable()[0]
        search = search_of(shuffled, round(1.01 * predicted.smallest))
        with pytest.raises(ValueError, match="the smallest needs, by what Vela says") as refusal:
            fit(search)
        assert search.state.steps_done() == 0
        (least,) = re.findall(r"says, ([\d,]+) bytes", str(refusal.value))
        enough = udc_tf.Flash(round(1.02 * int(least.replace(",", ""))))
        search = search_of(shuffled, enough.budget)
        fit(search)
        tiny = search.architecture().build()
        data = np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("float32")
        result = udc_tf.export.export(tiny, tmp_path, enough, data)
        assert result.flash_bytes <= enough.budget

    def test_a_search_knows_its_extremes_and_other_budgets_know_them_too(self):
        search = search_of(shuffled, 5000)
        before = search.reachable()[0]
        search.problem = with_first_sizes(search.problem)
        after, model = search.reachable()[0], search.targets[0].size_model
        assert after.smallest > before.smallest
        search.retarget(udc_tf.Flash(5500))
        assert search.targets[0].budget == 5500 and search.targets[0].size_model == model

    def test_what_is_predicted_too_high_stays(self):
        search = search_of(enlarged, 6000)
        assert with_first_sizes(search.problem) is search.problem


class TestPrices:
    @pytest.mark.parametrize(
        "layers, shape",
        [
            (multiplied, (8, 8, 3)),
            (multiplied, (16, 16, 3)),
            (enlarged, (8, 8, 3)),
            (lambda x: kl.Softmax()(x), (8, 8, 3)),
            (attending, (4, 32, 3)),
            (lambda x: kl.Conv2D(16, 3, groups=4)(x), (8, 8, 3)),
        ],
    )
    def test_operators_that_are_many_small_ones(self, layers, shape):
        model = network(layers, shape)
        graph = trace(model)
        plan = plan_search(graph, ChannelGroups(graph), udc_tf.SearchSpace(bits=(8, 4)))
        bound = FlashCost().bind(plan)
        largest = np.array([len(d.options) - 1 if d.kind == "width" else 0 for d in plan.decisions])
        counts = bound.maps.counts(bound.maps.one_hot(largest))
        tiny = udc_tf.compact(model)
        make_bell_shaped(tiny, np.random.default_rng(0))
        exact = to_int8(tiny, [np.random.default_rng(0).normal(size=(1, *shape)).astype("float32")])
        compiled = len(nets.compile_in_process(exact.content))
        # A small network's container is predicted some hundred bytes too large.
        assert compiled - 300 < bound.cost(counts) < compiled + 1500
