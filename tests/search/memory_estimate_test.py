"""What a search step is said to need in memory."""

import pytest

import udc_tf
from tests.support import networks
from udc_tf.search.memory_estimate import step_memory


@pytest.fixture(scope="module")
def memory():
    def of(batch_size=32, **settings):
        search = udc_tf.make_searchable(
            networks.small_cnn(), "ethos_u55", udc_tf.Flash(2900), udc_tf.SearchSettings(**settings)
        )
        search.compile(loss=networks.cross_entropy())
        return step_memory(search, batch_size)

    return of


def test_activations_follow_the_examples_of_a_pass(memory):
    whole = memory(32)
    assert memory(64).activations == 2 * whole.activations
    assert memory(32, samples_per_pass=1).activations == whole.activations / 4
    assert memory(32, full_batches=True).activations == whole.activations * 4


def test_kernels_follow_the_samples_of_a_pass(memory):
    four, eight, two = memory(), memory(samples=8), memory(samples=8, samples_per_pass=2)
    assert eight.kernels > four.kernels > two.kernels
    assert eight.variables == four.variables == two.variables
    assert two.gradients == 2 * eight.gradients  # of this pass, and of those before


def test_it_is_said_in_one_line(memory):
    said = str(memory())
    assert said.startswith("about 1 MiB per step: variables 1 MiB") and "\n" not in said
