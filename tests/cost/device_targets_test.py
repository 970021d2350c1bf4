"""Working memory and cycles: predictions against Vela, budgets from search to export."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as kl

import udc_tf
import udc_tf.export
from udc_tf.cost.accelerators import ACCELERATORS
from udc_tf.cost.steps import Engine
from udc_tf.cost.targets import target_from_dict
from udc_tf.export import device_fit, measuring, size_coefficients, size_fit, trials, vela
from udc_tf.export.errors import BudgetError
from udc_tf.search.make import UnreachableError, searchable, searchable_to_fit

SPACE = udc_tf.SearchSpace(widths=(0.25, 0.5, 0.75, 1.0), bits=(2, 4, 8), sparsities=(0.3, 1.0))


def residual() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((16, 16, 3))
    x = kl.Conv2D(32, 3, padding="same", activation="relu", name="stem")(x)
    y = kl.Conv2D(48, 3, padding="same", activation="relu", name="inner")(x)
    y = kl.Conv2D(32, 1, name="back")(y)
    x = kl.ReLU()(kl.Add(name="add")([x, y]))
    x = kl.DepthwiseConv2D(3, strides=2, padding="same", name="depthwise")(x)
    x = kl.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, kl.Dense(5, name="head")(x), name="residual")


def predicted(target, plan, chosen):
    bound = target.bind(plan)
    return bound.cost(bound.maps.counts(bound.maps.one_hot(np.asarray(chosen))))


@pytest.fixture(scope="module")
def search():
    return searchable(residual(), SPACE, udc_tf.Flash("8KiB"))


class TestPredictions:
    @pytest.fixture(scope="class")
    def networks(self, search):
        rng = np.random.default_rng(0)
        chosen = size_fit.configurations_near(search, 4, rng)
        return [(c, measuring.trial_network(search, c, rng)) for c in chosen]

    @pytest.fixture(scope="class", params=["ethos-u55-64", "ethos-u65-256", "ethos-u85-256"])
    def measured(self, request, search, networks):
        system = vela.System(request.param)
        rows = [measuring.compiled_measurement(search, *network, system) for network in networks]
        return system, rows

    def test_working_memory_before_any_fit(self, search, measured):
        system, rows = measured
        chosen = [row.options for row in rows]
        guess = predicted(udc_tf.Sram(1, system.accelerator), search.problem.plan, chosen)
        assert guess == pytest.approx([row.sram_bytes for row in rows], rel=0.1)

    def test_weights_that_are_in_sram_already_are_not_buffered(self, search, networks):
        system = vela.System("ethos-u55-128", memory_mode="Sram_Only")
        row = measuring.compiled_measurement(search, *networks[0], system)
        target = udc_tf.Sram(1, memory_mode="Sram_Only")
        guess = predicted(target, search.problem.plan, row.options)
        assert guess == pytest.approx(row.sram_bytes, rel=0.01)

    def test_many_weights_of_few_positions_are_buffered(self):
        accelerator = "ethos-u85-512"
        x = inputs = keras.Input((28, 28, 1))
        for channels, strides in ((32, 1), (16, 2), (48, 2)):
            x = kl.Conv2D(channels, 3, strides, padding="same", activation="relu")(x)
        model = keras.Model(inputs, kl.Dense(10)(kl.GlobalAveragePooling2D()(x)))
        space = udc_tf.SearchSpace(widths=(1.0,), bits=(8, 4), sparsities=(1.0,))
        search = searchable(model, space, udc_tf.Flash("64KiB"))
        chosen = np.array([d.options.index(8) for d in search.problem.plan.decisions])
        row = measuring.measure_one(
            search, chosen, vela.System(accelerator), np.random.default_rng(0)
        )
        guess = predicted(udc_tf.Sram(1, accelerator), search.problem.plan, chosen)
        assert guess == pytest.approx(row.sram_bytes, rel=0.03)

    def test_cycles_after_a_fit(self, search, measured):
        system, rows = measured
        plan = search.problem.plan
        model = device_fit.fit_device(rows[:3], plan, system, size_coefficients.fit(rows[:3]))
        target = udc_tf.Cycles(1, system.accelerator, device_model=model)
        guess = predicted(target, plan, rows[3].options)
        assert guess == pytest.approx(rows[3].cycles, rel=0.25) and model.fitted

    def test_the_sigmoid_of_a_swish_counts_for_it(self):
        x = inputs = keras.Input((16, 16, 8))
        x = kl.Activation("swish", name="swish")(kl.Conv2D(16, 3, name="conv")(x))
        model = keras.Model(inputs, kl.Dense(5)(kl.GlobalAveragePooling2D()(x)))
        search, rng = searchable(model, SPACE, udc_tf.Flash("8KiB")), np.random.default_rng(0)
        system, plan = vela.System("ethos-u55-64"), search.problem.plan
        chosen = size_fit.configurations_near(search, 2, rng)
        rows = [measuring.measure_one(search, c, system, rng) for c in chosen]
        fitted = device_fit.fit_device(rows, plan, system, size_coefficients.fit(rows))
        assert min(row.step_cycles["swish_gate"] for row in rows) > 0.05 * rows[0].cycles
        assert abs(fitted.rest) < 0.02 * rows[0].cycles

    def test_a_fit_for_all_targets_at_once(self):
        targets, model = (
            [udc_tf.Flash("8KiB"), udc_tf.Sram("20KiB"), udc_tf.Cycles(1e5)],
            residual(),
        )
        fitted = udc_tf.export.fit_size_model(model, SPACE, targets, configurations=1)
        assert fitted[1].device_model.fitted and fitted[1].device_model == fitted[2].device_model
        assert fitted[0].size_model == fitted[1].device_model.size
        again = udc_tf.export.fit_size_model(
            model, SPACE, targets, configurations=1, progress=lambda *_: pytest.fail("anew")
        )
        assert again == fitted


class TestFormulas:
    def test_tensors_lie_in_bricks_of_16_channels(self, search):
        plan = search.problem.plan
        bound = udc_tf.Sram(1).bind(plan)
        widths = plan.decision_index("width", "inner")
        chosen = np.array([len(d.options) - 1 for d in plan.decisions])
        peaks = []
        for option in range(4):  # 12, 24, 36 and 48 channels: 1, 2, 3 and 3 bricks
            chosen[widths] = option
            peaks.append(float(bound.cost(bound.maps.counts(bound.maps.one_hot(chosen)))))
        bricks = np.diff(peaks) // (16 * 16 * 16)
        assert bricks.tolist() == [1, 1, 0]

    def test_the_gradient_goes_through_the_widths(self, search):
        plan = search.problem.plan
        for target in (udc_tf.Sram(1), udc_tf.Cycles(1)):
            bound = target.bind(plan)
            z = tf.Variable(np.full((2, len(plan.decisions) * bound.maps.options), 0.25, "float32"))
            with tf.GradientTape() as tape:
                cost = bound.cost(bound.maps.counts(tf.convert_to_tensor(z)))
            slope = tape.gradient(cost, z).numpy().reshape(2, len(plan.decisions), -1)
            row = slope[0, plan.decision_index("width", "inner")]
            assert np.isfinite(slope).all() and (np.diff(row) >= 0).all() and row[3] > row[0]

    def test_every_accelerator_has_an_engine(self):
        speeds = {a: Engine.of(a) for a in ACCELERATORS}
        assert (speeds["ethos-u55-256"].rows, speeds["ethos-u55-256"].columns) == (2, 2)
        assert speeds["ethos-u65-512"].cores == 2 and len(speeds) == 11

    def test_subclassed_models_are_refused(self):
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.head = udc_tf.UDCDense(4, bits=(2, 4), width_group="head")

            def call(self, x):
                return self.head(x)

        model = Own()
        model(np.zeros((1, 4), "float32"))
        with pytest.raises(ValueError, match="known for functional models"):
            udc_tf.make_searchable(model, SPACE, udc_tf.Sram("1MiB"))


class TestTargets:
    def test_round_trip(self):
        model = udc_tf.DeviceModel(steps={"conv": (1.2, 30.0)}, rest=5.0, sram=1.01, fitted=True)
        targets = [
            udc_tf.Sram("64KiB", "ethos-u65-256", memory_mode="Dedicated_Sram_256KB"),
            udc_tf.Latency("5ms", clock="400MHz", device_model=model),
        ]
        assert [target_from_dict(t.to_dict()) for t in targets] == targets
        assert targets[1].describe(4e5) == "400,000 cycles (estimated, 1 ms)"

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: udc_tf.Sram("64KiB", "ethos-u99"), "must be one of"),
            (lambda: udc_tf.Sram("64KiB", memory_mode="Dedicated_Sram"), "no SRAM besides"),
            (lambda: udc_tf.Cycles(-1), "positive number"),
            (lambda: udc_tf.Latency("5 parsecs", clock="1MHz"), "number with a unit"),
            (lambda: udc_tf.Sram(0), "at least one byte"),
        ],
    )
    def test_refusals(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()

    def test_what_no_configuration_reaches_is_told_with_the_least(self):
        with pytest.raises(ValueError, match=r"reach from 12,\d+ bytes of SRAM .*Received"):
            udc_tf.make_searchable(residual(), SPACE, udc_tf.Sram("1KiB"))
        with pytest.raises(ValueError, match=r"reach from .* cycles \(estimated\)"):
            udc_tf.make_searchable(residual(), SPACE, udc_tf.Cycles(10))

    def test_what_nothing_was_measured_for_is_refused_only_if_it_is_far_off(self):
        target = udc_tf.Sram("1MiB", "ethos-u85-256")
        least = searchable(residual(), SPACE, target).reachable()[0].smallest
        near, far = (udc_tf.Sram(int(x * least), "ethos-u85-256") for x in (0.95, 0.7))
        assert searchable_to_fit(residual(), SPACE, near).problem.targets[0].budget > least
        with pytest.raises(UnreachableError, match=f"Received: a budget of {far.budget:,} bytes"):
            searchable_to_fit(residual(), SPACE, far)

    def test_widths_snap_to_bricks(self, search):
        def options(space, target):
            plan = searchable(residual(), space, target).problem.plan
            return {plan.groups[g].name: n for g, n in plan.widths.items()}

        assert options(SPACE, udc_tf.Flash("8KiB"))["inner"] == (12, 24, 36, 48)
        assert options(SPACE, udc_tf.Sram("30KiB")) == {"stem": (16, 32), "inner": (16, 32, 48)}
        off = udc_tf.SearchSpace(widths=(0.25, 1.0), snap=1)
        assert options(off, udc_tf.Sram("30KiB"))["inner"] == (12, 48)
        with pytest.raises(ValueError, match=r"`snap` must be .* Received: 0"):
            udc_tf.SearchSpace(snap=0)


class TestFromSearchToExport:
    @pytest.fixture(scope="class")
    def found(self):
        targets = [udc_tf.Flash("6KiB"), udc_tf.Sram("17KiB"), udc_tf.Cycles(1.1e5)]
        targets = udc_tf.export.fit_size_model(residual(), SPACE, targets, configurations=2)
        search = udc_tf.make_searchable(residual(), SPACE, targets)
        return search, search.architecture(), targets

    def test_the_architecture_is_inside_by_what_vela_says(self, found):
        _, architecture, _ = found
        assert [n["excess"] for n in architecture.needs] == [0, 0, 0]
        assert architecture.needs[1]["need"] % 16 == 0  # as Vela plans it, not as it is predicted
        assert "bytes of SRAM, has 17,408" in architecture.table()

    def test_export_holds_all_targets(self, found, tmp_path):
        _, architecture, targets = found
        data = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype("float32")
        result = udc_tf.export.export(architecture.build(), tmp_path, targets, data)
        lines = {line["what"]: line for line in result.manifest["budgets"]}
        assert lines["sram bytes"]["need"] == result.sram_bytes <= 17 * 1024
        assert len(lines) == 3 and all(line["excess"] == 0 for line in lines.values())
        with pytest.raises(BudgetError, match="cycles as Vela estimates, the budget is 1,000"):
            udc_tf.export.export(architecture.build(), tmp_path, udc_tf.Cycles(1000), data)
        with pytest.raises(
            BudgetError, match=r"at least [\d,]+ bytes of SRAM, the budget is 1,000"
        ):
            udc_tf.export.export(architecture.build(), tmp_path, udc_tf.Sram(1000), data)
        # Vela makes do with less memory than it would take.
        less = udc_tf.Sram(int(0.9 * result.sram_bytes))
        again = udc_tf.export.export(architecture.build(), tmp_path, less, data)
        assert again.sram_bytes <= less.budget < result.sram_bytes

    def test_what_vela_says_corrects_a_wrong_prediction(self):
        wrong = udc_tf.DeviceModel(sram=0.5, fitted=True)  # half of what it will be
        search = searchable(residual(), SPACE, [udc_tf.Sram("17KiB", device_model=wrong)])
        chosen = trials.choose_within(search).chosen
        row = measuring.measure_one(
            search, chosen, vela.System("ethos-u55-128"), np.random.default_rng(0)
        )
        assert row.sram_bytes <= 17 * 1024

    def test_the_smallest_is_taken_where_nothing_is_left_by_what_vela_says(self):
        wrong = udc_tf.DeviceModel(sram=0.5, fitted=True)
        search = searchable(residual(), SPACE, [udc_tf.Sram(12000, device_model=wrong)])
        assert trials.choose_within(search).holds  # with Vela saving memory

    def test_a_target_that_is_not_fitted_says_so(self, caplog):
        with caplog.at_level("WARNING", logger="absl"):
            udc_tf.make_searchable(residual(), SPACE, udc_tf.Flash("6KiB"))
        assert "udc_tf.export.fit_size_model" in caplog.text
