"""Layers in a stack have the kernels, and the gradients, that each has by itself."""

import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from tests.support import networks
from udc_tf.layers.kernels_together import kernels_of_layers, stacks_of


def _kernels_and_gradients(search, z, together):
    layers = search.kernel_layers
    with tf.GradientTape() as tape:
        tape.watch(z)
        if together:
            kernels = kernels_of_layers(layers, z)
        else:
            kernels = [kernels_of_layers([layer], z)[0] for layer in layers]
        total = tf.add_n([tf.reduce_sum(tf.sin(3 * k)) for of in kernels for k in of])
    trained = [z, *(layer.theta.value for layer in layers), *(v.value for v in search.ranges)]
    return [*kernels, *tape.gradient(total, trained, unconnected_gradients="zero")]


@pytest.mark.parametrize(
    ("budget", "space"),
    [
        (10_000, {"bits": (1, 2, 8), "sparsities": (0.1, 0.5, 1.0), "widths": (0.5, 1.0)}),
        (10_000, {"widths": (0.5, 1.0), "bits": (4,)}),
        (40_000, {"sparsities": (0.25, 1.0), "kernels": (1, 3)}),
    ],
    ids=["all", "bits settled", "floats"],
)
def test_together_as_alone(budget, space):
    model, target = networks.resnet(8, (4, 4, 8, 8)), udc_tf.PaperSize(budget)
    search = udc_tf.make_searchable(model, udc_tf.SearchSpace(**space), target)
    search.refresh_masks()
    z = tf.nn.softmax(tf.random.stateless_normal([3, *search.state.logits.shape], [1, 2]))
    z = tf.where(search.state.valid, z, 0.0)
    one, other = (_kernels_and_gradients(search, z, together) for together in (True, False))
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_stacks_are_few_and_not_large():
    sizes = [18_816] * 5 + [300, 900, 5] + [200_000]
    stacks = stacks_of(sizes, ["same"] * len(sizes))
    assert sorted(len(s) for s in stacks) == [1, 2, 3, 3]
    assert sorted(i for s in stacks for i in s) == list(range(len(sizes)))
