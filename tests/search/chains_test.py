"""Which layers stand or fall together."""

import keras
from keras import layers as kl

import udc_tf
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.trace import trace
from udc_tf.search.chains import chains_of
from udc_tf.search.plan import plan_search


def _chains(inputs, outputs) -> set[frozenset[str]]:
    graph = trace(keras.Model(inputs, outputs))
    plan = plan_search(graph, ChannelGroups(graph), udc_tf.SearchSpace.preset("ethos_u55"))
    chains = chains_of(plan)
    return {
        frozenset(name for name, number in chains.items() if number == of) for of in chains.values()
    }


def _conv(x, filters, name):
    x = kl.Conv2D(filters, 3, padding="same", use_bias=False, name=name)(x)
    return kl.ReLU()(kl.BatchNormalization()(x))


def _head(x):
    return kl.Dense(3, name="head")(kl.GlobalAveragePooling2D()(x))


def test_towers_are_chains_up_to_where_they_meet():
    inputs, ends = [keras.Input((8, 8, 1)) for _ in range(2)], []
    for x, name in zip(inputs, "ab", strict=True):
        x = kl.DepthwiseConv2D(3, name=f"{name}_dw")(_conv(x, 8, f"{name}_1"))
        ends.append(_conv(x, 12, f"{name}_2"))
    found = _chains(inputs, _head(kl.Concatenate()(ends)))
    assert found == {frozenset({f"{n}_1", f"{n}_dw", f"{n}_2"}) for n in "ab"}


def test_a_residual_branch_is_one_and_the_trunk_is_none():
    inputs = keras.Input((8, 8, 1))
    trunk = _conv(inputs, 8, "stem")
    x = kl.Add()([trunk, _conv(_conv(trunk, 12, "branch_1"), 8, "branch_2")])
    assert _chains(inputs, _head(x)) == {frozenset({"branch_1", "branch_2"})}


def test_what_two_layers_read_ends_a_chain():
    inputs = keras.Input((8, 8, 1))
    x = _conv(_conv(inputs, 8, "first"), 8, "second")
    ends = [_conv(x, 4, "left"), _conv(x, 4, "right")]
    assert _chains(inputs, _head(kl.Concatenate()(ends))) == {frozenset({"first", "second"})}


def test_a_block_that_can_be_left_out_is_a_chain_of_its_own():
    inputs = keras.Input((8, 8, 1))
    block_input = keras.Input((8, 8, 8))
    block = keras.Model(block_input, _conv(_conv(block_input, 4, "in"), 8, "out"))
    x = udc_tf.Choice([block, kl.Identity()], name="block")(_conv(inputs, 8, "before"))
    (chain,) = (c for c in _chains(inputs, _head(x)) if any("/in" in name for name in c))
    assert len(chain) == 2 and all("functional" in name or "block" in name for name in chain)
