"""Costs, targets, and the repair that makes every target hold."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as kl

import udc_tf
from tests.support import networks
from udc_tf.cost.byte_sizes import parse_bytes
from udc_tf.cost.flash import BIT_COST, DENSE_BITS, DENSE_SHARE, DIRECT_BITS, mask_bits
from udc_tf.cost.targets import target_from_dict
from udc_tf.search.extract import describe, repaired_choice
from udc_tf.search.repair import Budget, extreme, preferences

_PLAIN_SIZES = udc_tf.SizeModel(fixed=0.0, per_operator=0.0, per_channel=0.0)


def _chosen(search, pick):
    return np.asarray([pick(len(d.options)) for d in search.problem.plan.decisions])


def _convolution():
    """3x3, 64 to 256 channels of which half are active on either side at the smallest width."""
    inputs = keras.Input((8, 8, 3))
    x = kl.Conv2D(64, 1, use_bias=False, name="first")(inputs)
    x = kl.Conv2D(256, 3, padding="same", name="middle")(x)
    return keras.Model(inputs, kl.Conv2D(2, 1, name="last")(x))


_BAD_SIZES = ("0.0001KiB", 0.5, float("inf"), float("nan"), True, None, "9" * 400 + "B")


class TestParsing:
    @pytest.mark.parametrize(
        "text", ["12", "", "KiB", "1.2.3KiB", "-4KiB", "4 parsecs", 0, -1, *_BAD_SIZES]
    )
    def test_bad_sizes(self, text):
        with pytest.raises(ValueError, match="size"):
            parse_bytes(text)

    @pytest.mark.parametrize("budget", [0, -1, float("inf"), float("nan"), True, "5e6", None, 1e99])
    def test_bad_counts(self, budget):
        with pytest.raises(ValueError, match=r"positive number below 1e18\. Received"):
            udc_tf.Macs(budget)

    def test_numpys_numbers_are_numbers(self):
        targets = [
            udc_tf.Flash(np.int64(2000)),
            udc_tf.Macs(np.float32(1e6)),
            udc_tf.PaperSize(np.uint16(9)),
        ]
        assert [json.loads(json.dumps(t.to_dict()))["budget"] for t in targets] == [2000, 1e6, 9]

    def test_kinds_that_nobody_registered(self):
        with pytest.raises(ValueError, match=r"udc_tf\.register_target.* Received: 'joules'"):
            target_from_dict({"kind": "joules", "budget": 3})
        with pytest.raises(ValueError, match=r"another class with this kind\. Received: 'flash'"):
            udc_tf.register_target("flash")(udc_tf.Macs)

    @pytest.mark.parametrize("accelerator", ["ethos-u99", "ethos-u65-128", None])
    def test_bad_accelerator(self, accelerator):
        with pytest.raises(ValueError, match="ethos-u55-128"):
            udc_tf.Flash("1KiB", accelerator=accelerator)

    def test_round_trip(self):
        targets = [
            udc_tf.Flash("1KiB", "ethos-u55-64", udc_tf.SizeModel(bit_cost={4: 3.4})),
            udc_tf.Macs(1e6),
            udc_tf.PaperSize("1MB"),
        ]
        assert [target_from_dict(t.to_dict()) for t in targets] == targets

    def test_size_models_of_earlier_versions_lack_tables(self):
        values = udc_tf.SizeModel(fixed=1700.0).to_dict()
        del values["direct_bits"]
        assert udc_tf.SizeModel.from_dict(values) == udc_tf.SizeModel(fixed=1700.0)


class TestFlash:
    def _bytes(self, bits, nonzeros, width=1.0, target=None):
        space = udc_tf.SearchSpace(
            widths=(width, 1.0), bits=(bits, 8), sparsities=(nonzeros, 1.0),
            overrides={"last": {"bits": None, "sparsities": None}},
        )  # fmt: skip
        target = target or udc_tf.Flash("64MiB", size_model=_PLAIN_SIZES)
        search = udc_tf.make_searchable(_convolution(), space, target)
        arch = describe(search, _chosen(search, lambda n: 0))
        return next(row.bytes for row in arch.layers if row.name == "middle")

    @pytest.mark.parametrize("bits, nonzeros", [(4, 0.2), (8, 0.01), (2, 0.5)])
    def test_nonzeros_cost_their_bits_and_the_mask_its_entropy(self, bits, nonzeros):
        bits_each = nonzeros * BIT_COST[bits] + mask_bits(np.float64(nonzeros))
        assert self._bytes(bits, nonzeros) == pytest.approx(9 * 64 * 256 * bits_each / 8, rel=1e-3)

    @pytest.mark.parametrize("bits", [1, 2, 4])
    def test_rounding_makes_zeros_in_dense_layers(self, bits):
        bits_each = DENSE_BITS[bits] + mask_bits(np.float64(DENSE_SHARE[bits]))
        assert self._bytes(bits, 1.0) == pytest.approx(9 * 64 * 256 * bits_each / 8, rel=1e-3)

    @pytest.mark.parametrize("bits", [2, 8])
    def test_scattered_zeros_cost_what_any_weight_does(self, bits):
        weights = 9 * 64 * 256
        assert self._bytes(bits, 0.8) == pytest.approx(weights * DIRECT_BITS[bits] / 8, rel=1e-3)
        # 60 of 64 inputs: their padding is in runs, as then are most zeros.
        weights, coded = 9 * 60 * 240, 9 * 64 * 240
        expected = weights * 0.8 * BIT_COST[bits] + coded * mask_bits(0.8 * weights / coded)
        assert self._bytes(bits, 0.8, width=60 / 64) == pytest.approx(expected / 8, rel=1e-3)

    @pytest.mark.parametrize(
        "bits, nonzeros, measured",
        [
            *((1, 1.0, 1.02), (1, 0.2, 0.95), (4, 1.0, 3.44), (4, 0.2, 1.36)),
            *((4, 0.1, 0.77), (8, 0.2, 2.46), (8, 0.01, 0.24)),
        ],
    )
    def test_is_near_what_vela_stored_for_other_weights(self, bits, nonzeros, measured):
        """Bits a weight of this convolution, measured once with weights the model never saw."""
        bits_each = 8 * self._bytes(bits, nonzeros) / (9 * 64 * 256)
        assert bits_each == pytest.approx(measured, rel=0.12)

    def test_padding_is_coded_too(self):
        """3x3 with 34 of 64 inputs: 40 of them are coded, with 12 taps; 8 outputs at a time."""
        plain = self._bytes(4, 0.2, width=34 / 64)
        weights, coded = 9 * 34 * 136, 12 * 40 * 136
        bits = weights * 0.2 * BIT_COST[4] + coded * mask_bits(np.float64(0.2 * weights / coded))
        assert plain == pytest.approx(bits / 8, rel=1e-3)

    def test_active_channels_count_on_both_sides(self):
        assert self._bytes(4, 0.2, width=0.5) == pytest.approx(self._bytes(4, 0.2) / 4, rel=1e-3)

    def test_overheads_and_unsearched_parts_count(self):
        inputs = keras.Input((8, 8, 3))
        x = kl.Concatenate()([kl.Conv2D(4, 1)(inputs), kl.Conv2D(4, 1)(inputs)])
        x = kl.PReLU(shared_axes=[1, 2])(kl.BatchNormalization()(x))
        model = keras.Model(inputs, kl.Conv2D(2, 1)(x))
        model_of_size = udc_tf.SizeModel(1000.0, 100.0, 10.0, mask_cost=0.0, dense_bits={8: 8.0})
        target = udc_tf.Flash("1MiB", size_model=model_of_size)
        space = udc_tf.SearchSpace(bits=(4, 8))
        search = udc_tf.make_searchable(model, space, target)
        arch = describe(search, _chosen(search, lambda n: n - 1))
        kernels = 12 + 12 + 16
        channels = 10 * (4 + 4 + 2)
        # Six operators: three convolutions, concatenation, the batch norm that cannot be folded
        # (with a weight and a scale per channel) and PReLU (with a slope).
        assert arch.flash_bytes == 1000 + 600 + kernels + channels + 8 * 11 + 8 * 1

    def test_activations_that_are_operators_are_not_free(self):
        def predicted(activation):
            inputs = keras.Input((8,))
            model = keras.Model(inputs, kl.Dense(4, activation=activation)(inputs))
            target = udc_tf.Flash("1MiB")
            search = udc_tf.make_searchable(model, udc_tf.SearchSpace(bits=(4, 8)), target)
            return describe(search, _chosen(search, lambda n: 0)).flash_bytes

        each = udc_tf.SizeModel().per_operator
        assert predicted("softmax") == predicted(None) + 10 * each + 4 * 4.5
        # The latter has five factors and offsets per channel.
        assert predicted("silu") == predicted(None) + 2 * each
        assert predicted("softplus") == predicted(None) + 4 * each + 4 * 5 * 11
        assert predicted("relu") == predicted("tanh") == predicted(None)


class TestBoundFlash:
    """One cost, whether decisions are soft in a training step or hard in the repair."""

    def _bound(self, make=networks.u_net):
        space = udc_tf.SearchSpace(
            widths=(0.3, 0.5, 1.0), bits=(1, 2, 8), sparsities=(0.1, 0.5, 0.8, 1)
        )
        search = udc_tf.make_searchable(make(), space, udc_tf.Flash("64KiB"))
        return search.problem.bound[0], search.state.valid.numpy()

    @pytest.mark.parametrize("make", [networks.u_net, _convolution])
    def test_soft_and_hard_agree(self, make):
        bound, valid = self._bound(make)
        chosen = np.random.default_rng(0).integers(valid.sum(axis=1))
        moves = bound.cost(bound.maps.counts_of_moves(chosen))
        soft = bound.cost(bound.maps.counts(tf.constant(bound.maps.one_hot(chosen)[None])))
        expected = moves[np.arange(len(chosen)), chosen]
        np.testing.assert_allclose(expected, float(soft[0]), rtol=1e-5)
        pairs = bound.cost(bound.maps.counts_of_pairs(chosen, 0, 1))
        assert pairs[chosen[0], chosen[1]] == pytest.approx(float(soft[0]), rel=1e-5)

    @pytest.mark.parametrize("make", [networks.u_net, _convolution])
    @pytest.mark.parametrize("hard", [True, False])
    def test_gradients_are_finite(self, hard, make):
        bound, valid = self._bound(make)
        z = valid / valid.sum(axis=1, keepdims=True)
        if hard:
            z = np.eye(valid.shape[1])[valid.sum(axis=1) - 1]
        z = tf.constant(z.reshape(1, -1), tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(z)
            cost = bound.cost(bound.maps.counts(z))
        gradient = tape.gradient(cost, z).numpy()
        assert np.isfinite(gradient).all() and gradient.any()


class TestMacs:
    def test_counts_multiplications(self):
        model = networks.resnet(32, (16, 16, 32, 64))
        space = udc_tf.SearchSpace(widths=(0.5, 1.0))
        search = udc_tf.make_searchable(model, space, udc_tf.Macs(1e9))
        arch = describe(search, _chosen(search, lambda n: n - 1))
        expected = sum(
            np.prod(layer.kernel.shape) * np.prod(layer.output.shape[1:-1] or (1,))
            for layer in model.layers
            if isinstance(layer, (kl.Conv2D, kl.Dense))
        )
        assert arch.macs == expected

    def test_unknown_image_size(self):
        inputs = keras.Input((None, None, 3))
        model = keras.Model(inputs, kl.Conv2D(2, 3)(kl.Conv2D(4, 3)(inputs)))
        with pytest.raises(ValueError, match="known image sizes"):
            udc_tf.make_searchable(model, udc_tf.SearchSpace(widths=(0.5, 1)), udc_tf.Macs(1e6))


class TestPaperSize:
    def test_never_rewards_sparsity(self):
        space = udc_tf.SearchSpace(sparsities=(0.1, 1.0), bits=(4, 32))
        search = udc_tf.make_searchable(networks.small_cnn(), space, udc_tf.PaperSize("1MB"))
        ratios = [Budget(search.problem.bound).ratio(_chosen(search, lambda n: 0))]
        sparse = [d.kind == "sparsity" for d in search.problem.plan.decisions]
        ratios.append(Budget(search.problem.bound).ratio(np.asarray(sparse, int)))
        assert ratios[0] > ratios[1]


class TestReachable:
    def test_no_configuration_is_outside(self):
        search = udc_tf.make_searchable(networks.resnet(), "ethos_u55", udc_tf.Flash("64MiB"))
        target, plan = search.problem.bound[0], search.problem.plan
        (reach,) = search.reachable()
        low, high = reach.smallest, reach.largest
        rng = np.random.default_rng(0)
        maps = target.maps
        random = np.stack([_chosen(search, rng.integers) for _ in range(500)])
        costs = target.cost(maps.counts(maps.one_hot(random)))
        assert low <= costs.min() and costs.max() <= high
        # And both ends are really reached.
        budget = Budget((target,))
        assert budget.ratio(extreme(target, plan, True)) * target.budget == pytest.approx(low)
        moves = budget.after_moves(extreme(target, plan, True)) * target.budget
        assert (moves[search.state.valid.numpy()] >= low - 0.1).all()


class TestRepair:
    """Whatever the decisions look like: inside every target, at least 97% of the budget used."""

    @pytest.mark.parametrize("make", [networks.resnet, networks.separable, networks.u_net])
    def test_every_budget_is_met_and_used(self, make):
        model = make()
        wide = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("64MiB"))
        (reach,) = wide.reachable()
        low, high = reach.smallest, reach.largest
        rng = np.random.default_rng(0)
        for share in (0.05, 0.2, 0.5, 0.9):
            target = udc_tf.Flash(low + share * (high - low))
            search = udc_tf.make_searchable(model, "ethos_u55", target)
            budget = Budget(search.problem.bound)
            for _ in range(10):
                scale = rng.choice([0.1, 1.0, 5.0])
                log_pi = rng.normal(scale=scale, size=search.state.valid.shape)
                ratio = budget.ratio(repaired_choice(search, log_pi))
                assert 0.97 <= ratio <= 1.0

    def test_several_targets_hold_at_once(self):
        targets = [udc_tf.Flash("8KiB"), udc_tf.Macs(150e3)]
        search = udc_tf.make_searchable(networks.resnet(), "ethos_u55", targets)
        rng = np.random.default_rng(0)
        for _ in range(10):
            log_pi = rng.normal(size=search.state.valid.shape)
            arch = describe(search, repaired_choice(search, log_pi))
            assert arch.flash_bytes <= 8 * 1024 and arch.macs <= 150e3

    def test_changes_little_and_the_unlikely(self):
        search = udc_tf.make_searchable(networks.resnet(), "ethos_u55", udc_tf.Flash("9KiB"))
        budget = Budget(search.problem.bound)
        rng = np.random.default_rng(1)
        log_pi = rng.normal(scale=3.0, size=search.state.valid.shape)
        valid = search.state.valid.numpy()
        likely = np.where(valid, log_pi, -np.inf).argmax(axis=1)
        chosen = repaired_choice(search, log_pi)
        assert budget.ratio(likely) != pytest.approx(budget.ratio(chosen))
        rows = np.arange(len(chosen))

        def log_probability(options):
            return log_pi[rows, options].sum()

        random = [_chosen(search, rng.integers) for _ in range(2000)]
        inside = [log_probability(r) for r in random if budget.ratio(r) <= 1]
        assert log_probability(chosen) > max(inside)


class TestPreferences:
    def _search(self):
        return udc_tf.make_searchable(networks.resnet(), "ethos_u55", udc_tf.Flash("9KiB"))

    def test_the_most_likely_stays_the_best(self):
        search = self._search()
        plan, valid = search.problem.plan, search.state.valid.numpy()
        rng = np.random.default_rng(0)
        for scale in (0.01, 1.0, 10.0):
            log_pi = np.where(valid, rng.normal(scale=scale, size=valid.shape), -np.inf)
            log_pi -= np.logaddexp.reduce(log_pi, axis=1, keepdims=True)
            scores = preferences(log_pi, plan)
            best = scores[np.arange(len(scores)), log_pi.argmax(axis=1)]
            assert (scores <= best[:, None] + 1e-9).all()

    def test_near_options_come_before_far_ones_that_noise_lifted(self):
        search = self._search()
        plan, valid = search.problem.plan, search.state.valid.numpy()
        row = next(i for i, d in enumerate(plan.decisions) if d.kind == "sparsity")
        pi = np.where(valid, 1e-4, 0.0)
        last = len(plan.decisions[row].options) - 1
        pi[row, last], pi[row, 0] = 0.95, 0.03
        with np.errstate(divide="ignore"):
            scores = preferences(np.log(pi), plan)[row]
        assert scores[last] > scores[last - 1] > scores[last - 2] > scores[0]
