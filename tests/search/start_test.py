"""Where a search starts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from udc_tf.cost.priced_network import Decision
from udc_tf.models import resnet8
from udc_tf.search import decisions
from udc_tf.search.start import first_guess, harm, harm_of_operators, harm_of_widths, harms_of

_X = np.random.default_rng(0).normal(size=(16, 16, 16, 3)).astype("float32")
_Y = np.arange(16) % 10


def _search(budget, **settings):
    keras.utils.set_random_seed(0)
    model = resnet8((16, 16, 3), 10)
    settings = udc_tf.SearchSettings(samples=1, **settings)
    search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash(budget), settings)
    search.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return search


def _begun(budget, **settings):
    """A search as `fit` begins it."""
    search = _search(budget, **settings)
    search.set_out()
    return search


def _expected(search):
    return float(search.cost_ratios(tf.exp(search.state.log_probabilities())[None])[0])


def _likely(search, kind):
    """The most likely option of each decision of a kind."""
    chosen = search.state.log_probabilities().numpy().argmax(axis=-1)
    return [
        d.options[c]
        for d, c in zip(search.problem.plan.decisions, chosen, strict=True)
        if d.kind == kind
    ]


def _nonzeros(search):
    """The most likely share of each layer, by its name."""
    names = [d.subject for d in search.problem.plan.decisions if d.kind == "sparsity"]
    return dict(zip(names, _likely(search, "sparsity"), strict=True))


class TestHarm:
    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            ("width", (0.1, 0.5, 1.0)),
            ("kernel", (1, 3, 5)),
            ("sparsity", (0.01, 0.3, 1.0)),
            ("bits", (1, 2, 4, 8)),
        ],
    )
    def test_larger_options_harm_less(self, kind, options):
        theta = np.random.default_rng(0).normal(size=(3, 3, 8, 8)).astype("float32")
        harms = harm(Decision(kind, "layer", options), theta)
        assert (np.diff(harms) < 0).all() and harms[-1] >= 0 and np.isfinite(harms).all()

    def test_channels_beyond_what_they_are_made_from_harm_less(self):
        widths = Decision("width", "layer", (0.0625, 0.25, 1.0))
        plain = harm(widths, None)
        np.testing.assert_allclose(harm_of_widths(widths, 64, 32), plain)
        few = harm_of_widths(widths, 64, 2)  # with a ReLU, four of the 64
        np.testing.assert_allclose(few, plain / 2)
        some = harm_of_widths(widths, 64, 8)
        np.testing.assert_allclose(some, plain - plain[1] / 2 * (plain > 0))

    def test_layers_of_zeros(self):
        harms = harm(Decision("bits", "layer", (1, 8)), np.zeros((3, 3, 2, 2), "float32"))
        assert np.isfinite(harms).all()

    def test_operators_with_fewer_weights_harm_more_and_none_at_all_most(self):
        full, separable, left_out = harm_of_operators([9216, 1168, 0])
        assert 0 == full < separable < left_out
        assert harm_of_operators([0, 0]).tolist() == [0, 0]


class TestFirstGuess:
    @pytest.mark.parametrize("budget", ["8KiB", "14KiB", "30KiB"])
    def test_is_at_the_budget(self, budget):
        search = _begun(budget)
        assert abs(_expected(search) - 1) < 0.06
        assert float(decisions.entropy(search.state.log_probabilities(), search.state.valid)) > 0.1

    def test_prefers_everything_where_all_fits(self):
        search = _begun("1MiB")
        for kind in ("width", "sparsity"):
            assert set(_likely(search, kind)) == {1.0}
        assert set(_likely(search, "bits")) == {8}

    def test_does_without_what_costs_most(self):
        search = _begun("14KiB")
        kept = _nonzeros(search)
        assert kept["block3_conv2"] < kept["stem"]
        assert min(_likely(search, "bits")) >= 2 and min(kept.values()) > 0.01

    def test_leaves_small_layers_alone(self):
        kept = _nonzeros(_begun("24KiB"))
        small = ("stem", "block2_shortcut", "block3_shortcut", "head")
        assert all(kept[name] == 1 for name in small) and kept["block3_conv2"] < 0.5

    def test_a_short_search_stays_near(self):
        search = _search("16KiB", warmup=0.5)
        guesses, guess = [], search.set_out
        search.set_out = lambda: (guess(), guesses.append(search.state.logits.numpy()))
        search.fit(_X, _Y, batch_size=8, epochs=8, verbose=0)
        moved = np.abs(search.state.logits.numpy() - guesses[0])
        assert 0 < moved.max() < 0.5  # eight steps

    def test_uniform_on_demand(self):
        search = _begun("14KiB", certainty=0.0)
        assert not search.state.logits.numpy().any()

    def test_projection_leaves_it_and_lets_it_rise_by_xi(self):
        search = _begun("14KiB")
        start = search.state.logits.numpy()
        peaks = np.exp(search.state.log_probabilities().numpy().max(axis=-1))
        np.testing.assert_allclose(search.state.peaks.numpy()[:, 0], peaks, rtol=1e-3)
        now = search.state.schedule()._replace(xi=tf.constant(0.1))
        search.state.logits.assign(10 * start)
        search.state.finish_step(now)
        risen = np.exp(search.state.log_probabilities().numpy().max(axis=-1))
        assert (risen <= peaks + 0.1 + 1e-4).all() and (risen > peaks).any()

    def test_is_made_once_when_the_warm_up_has_shaped_the_weights(self):
        search = _search("14KiB", warmup=0.5)
        made, guess = [], search.set_out
        search.set_out = lambda: (made.append(search.state.steps_done()), guess())
        search.fit(_X, _Y, batch_size=8, epochs=1, planned_epochs=4, verbose=0)
        around = search.state.logits.numpy()
        assert not made and around.any()  # which the warm-up samples around
        search.fit(_X, _Y, batch_size=8, epochs=4, initial_epoch=1, verbose=0)
        assert made == [4] and np.ptp(search.state.logits.numpy()) > 2 * np.ptp(around)

    def test_an_optional_block_is_not_dropped_as_long_as_it_can_be_made_smaller(self):
        x = keras.Input((8, 8, 16))
        block = keras.layers.Conv2D(16, 3, padding="same", name="conv")
        y = udc_tf.Choice([block, keras.layers.Identity()], name="block")(x)
        y = keras.layers.Dense(4, name="head")(keras.layers.GlobalAveragePooling2D()(y))
        model = keras.Model(x, y)
        reach = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("1MiB")).reachable()[0]
        for share, kept in ((0.5, 0), (0.02, 1)):
            budget = reach.smallest + share * (reach.largest - reach.smallest)
            search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash(int(budget)))
            search.set_out()
            assert _likely(search, "choice") == [kept]

    def test_layers_inside_of_a_choice(self):
        x = keras.Input((8, 8, 8))
        branches = [keras.layers.Conv2D(8, k, padding="same", name=f"conv{k}") for k in (1, 3)]
        y = udc_tf.Choice(branches, name="block")(x)
        y = keras.layers.Dense(2, name="head")(keras.layers.GlobalAveragePooling2D()(y))
        search = udc_tf.make_searchable(keras.Model(x, y), "ethos_u55", udc_tf.Flash("3KiB"))
        search.set_out()
        assert np.isfinite(search.state.logits.numpy()).all() and _expected(search) < 1.1


def test_any_harm_finds_the_pressure_that_meets_the_budget():
    # As evidence made them of two kernel sizes, of which the budget holds one large one.
    harms = np.array([[11.0, 3.5, 0.0], [39.0, 38.2, 0.0]])
    sizes = tf.constant([[0.005, 0.047, 0.136]] * 2)

    def cost_ratios(z):
        return 0.85 + tf.reduce_sum(z * sizes, axis=[1, 2])

    logits, pressure = first_guess(harms, np.ones((2, 3), bool), cost_ratios, 60.0)
    assert pressure > 1e4
    assert logits.argmax(axis=1).tolist() == [0, 2]


def test_a_first_convolution_minds_pruning_most():
    search = _search(20_000)
    plan = search.problem.plan
    thetas = {p.name: k.theta for p, k in zip(plan.layers, search.kernel_layers, strict=True)}
    rows = zip(plan.decisions, harms_of(plan, thetas, search.state.options), strict=True)
    first, *others = [row for d, row in rows if d.kind == "sparsity"]
    np.testing.assert_allclose(first, 3 * others[0])
    assert all((row == others[0]).all() for row in others)
