"""What measured losses change in the harm of options."""

import dataclasses

import keras
import numpy as np
import pytest

import udc_tf
from udc_tf.cost.priced_network import Decision
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.trace import trace
from udc_tf.search import evidence, moves
from udc_tf.search.plan import plan_search

_WIDTHS = (0.25, 0.5, 1.0)
_HARM = np.array([1.0, 0.5, 0.0])


def _losses(slopes, noise, options=3):
    """Of so many options, by so much per unit of harm."""
    rng = np.random.default_rng(0)
    losses = {
        (row, option): slope * _HARM[option] + noise * rng.normal(size=16)
        for row, slope in enumerate(slopes)
        for option in range(3)
    }
    return {move: loss for move, loss in losses.items() if move[1] < options}


def _measured(per_layer: dict[str, float], kind: str = "width", noise: float = 0.01):
    """Decisions of one kind, their harms, and what was measured."""
    decisions = [Decision(kind, name, _WIDTHS) for name in per_layer]
    harms = np.tile(_HARM, (len(decisions), 1))
    bases = np.ones((len(decisions), len(decisions)), int)
    options = 2 if kind == "width" else 3  # of widths none above the base is measured
    losses = _losses(per_layer.values(), noise, options)
    return decisions, harms, moves.steps_between(decisions, harms, bases, losses)


def _factors(per_layer, chains=None, **kwargs):
    """By what the harm of the smallest option is multiplied, by layer."""
    decisions, harms, steps = _measured(per_layer, **kwargs)
    updated = evidence.updated_harms(decisions, harms, steps, chains)
    return dict(zip(per_layer, updated[:, 0], strict=True))


class TestUpdatedHarms:
    def test_ordinary_layers_keep_the_prior(self):
        found = _factors({"a": 0.2, "b": 0.1, "c": 0.4, "d": 0.25})
        assert set(found.values()) == {1.0}

    @pytest.mark.parametrize("idle", [1, 3, 6])
    def test_what_the_loss_does_not_miss_harms_next_to_nothing(self, idle):
        found = _factors({**dict.fromkeys("abc", 0.5), **dict.fromkeys("uvwxyz"[:idle], 0.0)})
        worst = max(found[name] for name in "uvwxyz"[:idle])
        assert worst < 0.15 * min(found[name] for name in "abc")

    def test_what_it_misses_most_harms_more(self):
        found = _factors({"a": 0.1, "b": 0.1, "c": 0.1, "exact": 5.0})
        assert found["exact"] > 15 and found["a"] == found["b"] == found["c"] == 1.0

    def test_uncertain_differences_change_nothing(self):
        found = _factors({"a": 0.02, "b": 0.0, "c": 0.03}, noise=0.5)
        assert set(found.values()) == {1.0}

    def test_layers_in_a_row_say_together_what_one_alone_could_not(self):
        slopes = {"a": 0.4, "b": 0.5, "c": 0.45, "x": 0.075, "y": 0.075}
        assert set(_factors(slopes).values()) == {1.0}
        found = _factors(slopes, chains={"x": 3, "y": 3})
        assert max(found["x"], found["y"]) < 0.6 and found["a"] == found["b"] == found["c"] == 1.0
        found = _factors(slopes, chains={"a": 0, "x": 0})
        assert set(found.values()) == {1.0}

    def test_one_of_a_row_that_matters_does_not_raise_the_others(self):
        slopes = {"a": 0.1, "b": 0.1, "c": 0.1, "exact": 5.0}
        found = _factors(slopes, chains={"c": 2, "exact": 2})
        assert found["c"] == 1.0 and found["exact"] > 15

    def test_a_second_round_that_says_more_of_the_same_is_compared_with_the_prior(self):
        decisions, prior, _ = _measured({"a": 0.5, "b": 0.5, "x": 0.0})
        harms = prior * np.array([[1.0], [1.0], [0.3]])  # by the first round
        bases = np.ones((3, 3), int)

        def second(slope):
            losses = _losses((0.5, 0.5, slope), 0.001, options=2)
            steps = moves.steps_between(decisions, harms, bases, losses, prior)
            return evidence.updated_harms(decisions, harms, steps)[2, 0]

        assert second(0.02) < 0.15
        np.testing.assert_allclose([second(0.08), second(0.4)], 0.3)

    @pytest.mark.parametrize("kind", ["bits", "sparsity"])
    def test_steps_up_count_only_if_they_gain_more(self, kind):
        decisions, harms, steps = _measured({"a": 0.2, "b": 0.2, "c": 0.2}, kind=kind)

        def with_gain(gain):
            changed = [
                dataclasses.replace(s, measured=gain) if s.upward and s.decision == 0 else s
                for s in steps
            ]
            return evidence.updated_harms(decisions, harms, changed)[0]

        np.testing.assert_allclose(with_gain(-0.3), _HARM)
        more = with_gain(3.0)
        assert more[1] - more[2] > 10 * (_HARM[1] - _HARM[2])
        np.testing.assert_allclose(more[0] - more[1], _HARM[0] - _HARM[1])

    def test_a_gain_counts_for_more_than_a_loss(self):
        # Training gets losses back; so what is gained at once is worth more units of harm.
        decisions, harms, steps = _measured({"a": 0.2, "b": 0.2, "c": 0.2}, kind="bits")
        both = [dataclasses.replace(s, measured=1.0) if s.decision == 0 else s for s in steps]
        updated = evidence.updated_harms(decisions, harms, both)[0]
        gain, loss = updated[1] - updated[2], updated[0] - updated[1]
        assert gain > 2 * loss > 2 * (_HARM[0] - _HARM[1])

    @pytest.mark.parametrize("kind", ["bits", "sparsity"])
    def test_what_is_missed_below_says_nothing_of_more(self, kind):
        decisions, harms, steps = _measured({"a": 0.2, "b": 0.2, "c": 0.2}, kind=kind)
        missed = [
            dataclasses.replace(s, measured=0.0 if s.upward else 10.0) if s.decision == 0 else s
            for s in steps
        ]
        updated = evidence.updated_harms(decisions, harms, missed)[0]
        assert updated[0] - updated[1] > 20 * (_HARM[0] - _HARM[1])
        np.testing.assert_allclose(updated[1] - updated[2], _HARM[1] - _HARM[2])

    def test_a_gain_is_what_it_says_where_the_prior_expects_none(self):
        decisions, harms, steps = _measured({"a": 0.2, "b": 0.2, "c": 0.2}, kind="bits")
        harms[0] = (0.51, 0.01, 0.0)
        changed = [
            dataclasses.replace(s, prior=0.01, harm=0.01, measured=0.5)
            if s.upward and s.decision == 0
            else s
            for s in steps
        ]
        assert evidence.updated_harms(decisions, harms, changed)[0, 1] > 1

    def test_parts_that_do_not_matter_do_not_make_the_others_matter_more(self):
        found = _factors({"a": 0.5, "b": 0.5, **dict.fromkeys("vwxyz", 0.0)})
        assert found["a"] == found["b"] == 1.0

    def _beside_widths(self, bits: dict[str, float]):
        """By layer, the factor on its bits, where 0.2 of loss per unit is usual for widths."""
        kinds = ["width"] * len(bits) + ["bits"] * len(bits)
        decisions = [Decision(k, n, _WIDTHS) for k, n in zip(kinds, [*bits, *bits], strict=True)]
        harms = np.tile(_HARM, (len(decisions), 1))
        losses = _losses([0.2] * len(bits) + list(bits.values()), 0.001)
        bases = np.full((len(decisions), len(decisions)), 2)
        steps = moves.steps_between(decisions, harms, bases, losses)
        updated = evidence.updated_harms(decisions, harms, steps)
        return dict(zip(bits, updated[len(bits) :, 0], strict=True))

    def test_a_kind_that_matters_in_one_layer_only_keeps_its_prior_in_the_others(self):
        found = self._beside_widths({"a": 0.001, "b": 0.0, "c": 0.0, "d": 0.001, "head": 0.3})
        assert found["a"] == found["d"] == 1.0
        assert min(found.values()) > 0.1

    def test_a_gain_must_count_beside_all_kinds(self):
        kinds = [("width", name) for name in "abc"] + [("bits", name) for name in "abc"]
        decisions = [Decision(kind, name, _WIDTHS) for kind, name in kinds]
        harms = np.tile(_HARM, (6, 1))
        losses = _losses([0.2] * 3 + [0.004] * 3, 0.0001)

        def factor_of_more_bits(gain: float) -> float:
            gained = {**losses, (3, 2): losses[3, 1] - gain}
            steps = moves.steps_between(decisions, harms, np.ones((6, 6), int), gained)
            updated = evidence.updated_harms(decisions, harms, steps)
            return (updated[3, 1] - updated[3, 2]) / (harms[3, 1] - harms[3, 2])

        assert factor_of_more_bits(0.004) == 1.0
        assert factor_of_more_bits(2.0) > 10

    def test_what_looks_large_by_chance_does_not_count(self):
        decisions, harms, steps = _measured({"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.1}, kind="bits")
        uncertain = [
            dataclasses.replace(s, measured=3.0, error=2.0) if s.decision == 0 else s for s in steps
        ]
        np.testing.assert_allclose(evidence.updated_harms(decisions, harms, uncertain)[0], _HARM)

    def test_order_of_options_stays(self):
        for kind in ("width", "bits"):
            decisions, harms, steps = _measured({"a": 0.5, "b": 0.0, "c": 9.0}, kind=kind)
            assert (np.diff(evidence.updated_harms(decisions, harms, steps)) <= 0).all()

    def test_what_was_found_to_matter_does_not_say_what_is_usual_later(self):
        decisions, prior, _ = _measured({"near": 0.1, "far": 0.1}, kind="kernel")
        harms = prior * np.array([[1.0], [40.0]])
        losses = _losses((0.1, 4.0), 0.001)
        bases = np.array([[0, 2], [0, 2]])  # the budget holds one of them
        steps = moves.steps_between(decisions, harms, bases, losses, prior)
        updated = evidence.updated_harms(decisions, harms, steps)
        assert updated[1, 0] > 5 * updated[0, 0]
        alone = [dataclasses.replace(s, measured=0.0) if s.decision == 0 else s for s in steps]
        np.testing.assert_allclose(evidence.updated_harms(decisions, harms, alone), harms)


class TestOperators:
    def _harms(self, losses, prior=(0.0, 1.0)):
        """The harm of two branches, beside layers in which a unit of harm is 0.2."""
        layers = [Decision("width", name, _WIDTHS) for name in "abc"]
        decisions = [*layers, Decision("choice", "block", (0, 1))]
        harms = np.vstack([np.tile(_HARM, (3, 1)), [*prior, 0.0]])
        noise = 0.001 * np.random.default_rng(1).normal(size=(2, 16))
        both = {(3, k): loss + noise[k] for k, loss in enumerate(losses)}
        measured = {**_losses((0.2, 0.2, 0.2), 0.01), **both}
        steps = moves.steps_between(decisions, harms, np.ones((4, 4), int), measured)
        return evidence.updated_harms(decisions, harms, steps)[3, :2]

    def test_a_block_that_is_not_missed_may_go(self):
        kept, dropped = self._harms((0.5, 0.5))
        assert abs(dropped - kept) < 0.1

    def test_a_block_that_is_missed_stays(self):
        kept, dropped = self._harms((0.5, 5.5))
        assert dropped - kept > 5

    def test_of_equal_operators_the_better_one_leads(self):
        first, second = self._harms((1.5, 0.5), prior=(0.0, 0.0))
        assert first - second > 0.1
        first, second = self._harms((0.5, 1.5), prior=(0.0, 0.0))
        assert second - first > 0.1

    def test_a_block_out_of_which_all_can_be_taken_may_go(self):
        layers = [Decision("width", name, _WIDTHS) for name in ("a", "b", "inside")]
        decisions = [*layers, Decision("choice", "block", (0, 1))]
        harms = np.vstack([np.tile(_HARM, (3, 1)), [0.0, 1.0, 0.0]])

        def harm_of_leaving_out(inside: float) -> float:
            losses = _losses((0.2, 0.2, inside), 0.001)
            noise = 0.001 * np.random.default_rng(1).normal(size=(2, 16))
            # What the layers behind a block are used to is missed, whatever the block does.
            losses |= {(3, 0): 0.5 + noise[0], (3, 1): 0.7 + noise[1]}
            steps = moves.steps_between(decisions, harms, np.ones((4, 4), int), losses)
            contents = {"block": {0: ["inside"]}}
            updated = evidence.updated_harms(decisions, harms, steps, contents=contents)
            return updated[3, 1] - updated[3, 0]

        assert harm_of_leaving_out(0.2) == 1.0
        assert harm_of_leaving_out(0.0) < 0.2


def test_decisions_inside_a_branch_are_measured_with_it():
    x = keras.Input((8, 8, 4))
    conv = keras.layers.Conv2D(4, 3, padding="same", name="conv")
    y = udc_tf.Choice([conv, keras.layers.Identity()], name="block")(x)
    y = keras.layers.Dense(2, name="head")(keras.layers.GlobalAveragePooling2D()(y))
    graph = trace(keras.Model(x, y))
    plan = plan_search(graph, ChannelGroups(graph), udc_tf.SearchSpace(bits=(2, 4, 8)))
    rows = {d.name: i for i, d in enumerate(plan.decisions)}
    likely = np.ones(len(rows), int)  # the identity
    bases = moves.bases_of(plan, likely)
    choice = rows["choice/block"]
    inside = next(name for name in rows if name.startswith("bits/") and "conv" in name)
    assert bases[rows[inside], choice] == 0
    assert bases[rows["bits/head"], choice] == bases[choice, choice] == 1
