"""Fitting the size model to what Vela writes."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from tests.support import networks
from udc_tf.cost.flash import BIT_COST
from udc_tf.export import measuring, size_coefficients, size_fit, size_truth, trials, vela
from udc_tf.export.int8 import to_int8
from udc_tf.export.size_coefficients import Measurement
from udc_tf.export.size_fit import SizeFit
from udc_tf.layers.compact_kernels import CompactDense


def rows(truth: udc_tf.SizeModel, count: int = 24) -> list[Measurement]:
    """Measurements of a world in which the size model is exact."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        coding = {f"bit_cost/{bits}": rng.uniform(1e2, 5e3) for bits in (1, 2, 4, 8)}
        coding |= {"mask_cost": rng.uniform(1e3, 1e4), "dense_bits/8": rng.uniform(0, 2e3)}
        others = {"fixed": 1.0, "per_operator": 12.0, "per_channel": rng.uniform(100, 400)}
        streams = round(Measurement((), coding, 0.0, 0, 0).predicted(truth))
        whole = Measurement((), coding | others, 50.0, streams, 0)
        made.append(dataclasses.replace(whole, flash_bytes=round(whole.predicted(truth))))
    return made


class TestFit:
    def test_finds_the_coefficients_behind_the_sizes(self):
        truth = udc_tf.SizeModel(
            fixed=1700.0,
            per_operator=310.0,
            per_channel=11.0,
            mask_cost=0.95,
            bit_cost={1: 1.0, 2: 2.1, 4: 3.5, 8: 7.9},
            dense_bits={8: 6.5},
        )
        measured = rows(truth)
        fitted = SizeFit(
            udc_tf.DeviceModel(size_coefficients.fit(measured[:16])), "ethos-u55-128", ()
        )
        assert np.abs(fitted.errors(measured[16:])).max() < 0.01
        assert fitted.size_model.bit_cost[8] == pytest.approx(7.9, rel=0.03)

    def test_few_rows_stay_near_the_defaults(self):
        fitted = size_coefficients.fit(rows(udc_tf.SizeModel(), 2))
        assert fitted.per_channel == pytest.approx(10, rel=0.1)
        assert fitted.bit_cost[4] == pytest.approx(BIT_COST[4], rel=0.1)


class TestMeasuredWeights:
    def test_are_what_finetuning_leaves(self):
        layer = CompactDense(64, bits=4, nonzeros=0.25)
        model = keras.Sequential([keras.Input((64,)), layer])
        measuring.make_bell_shaped(model, np.random.default_rng(0))
        codes = layer.integer_kernel().codes
        assert np.count_nonzero(codes) == 1024
        # All levels in use, none of them inside the pruned zone.
        assert len(np.unique(np.abs(codes))) == 1 + 8 and np.abs(codes[codes != 0]).min() > 1

    def test_count_once_what_the_steps_of_a_layer_share(self, tmp_path):
        x = keras.Input((3, 4))
        model = keras.Model(x, kl.Dense(4)(kl.LSTM(6)(x)))
        exact = to_int8(udc_tf.compact(model, bits=4), np.ones((1, 3, 4), np.float32))
        path = tmp_path / "model.tflite"
        path.write_bytes(exact.content)
        compiled = vela.compile_with_vela(path, tmp_path, accelerator="ethos-u55-128")
        sizes = size_truth.layer_sizes(exact.network, compiled)
        assert len(sizes) == len({size.layer for size in sizes}) == 4 * 2 + 1
        assert sum(size.vela_bytes for size in sizes) == compiled.encoded_weight_bytes


class TestFeatures:
    def test_predict_what_the_search_counts_with(self):
        truth = udc_tf.SizeModel(1700.0, 310.0, 11.0, 0.9, {4: 3.5}, {8: 6.5}, direct_bits={8: 7.0})
        target = udc_tf.Flash("64KiB", size_model=truth)
        model = networks.resnet(filters=(32, 32, 32, 64))
        search = udc_tf.make_searchable(model, "ethos_u55", target)
        bound, decisions = search.problem.bound[0], search.problem.plan.decisions
        flash = target.cost.bind(search.problem.plan)
        rng = np.random.default_rng(0)
        for _ in range(20):
            chosen = np.array([rng.integers(len(d.options)) for d in decisions])
            row = Measurement((), *size_coefficients.features_of(flash, chosen), 0, 0)
            cost = bound.cost(bound.maps.counts(bound.maps.one_hot(chosen)))
            assert row.predicted(truth) == pytest.approx(float(cost), rel=1e-5)


class TestMeasure:
    @pytest.mark.parametrize("nonzeros", [0.7, 0.8, 0.9])
    def test_scattered_zeros_take_what_vela_stores(self, nonzeros):
        """Vela makes no use of runs above 71%: 8,700 bytes at 80%, not the 7,600 of a mask."""
        inputs = keras.Input((8, 8, 32))
        model = keras.Model(inputs, kl.Conv2D(32, 3, padding="same")(inputs))
        only_weights = udc_tf.SizeModel(fixed=0.0, per_operator=0.0, per_channel=0.0)
        target = udc_tf.Flash("9KiB", size_model=only_weights)
        space = udc_tf.SearchSpace(sparsities=(0.01, nonzeros))
        search = udc_tf.make_searchable(model, space, target)
        chosen, rng = np.array([1]), np.random.default_rng(0)
        row = measuring.measure_one(search, chosen, vela.System(target.accelerator), rng)
        assert row.predicted(only_weights) == pytest.approx(row.weight_bytes, rel=0.05)


class TestFitSizeModel:
    def test_compiles_keeps_the_fit_and_reads_it_again(self, tmp_path):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((8, 8, 3))
        x = kl.Conv2D(24, 3, activation="relu", name="a")(inputs)
        x = kl.Conv2D(24, 3, activation="relu", name="b")(x)
        model = keras.Model(inputs, kl.Dense(4, name="head")(kl.GlobalAveragePooling2D()(x)))
        path, done = tmp_path / "size.json", []
        space = udc_tf.SearchSpace(widths=(0.5, 1.0), bits=(2, 4), sparsities=(0.2, 0.5, 1.0))
        target = udc_tf.export.fit_size_model(
            model,
            space,
            udc_tf.Flash(4096),
            path=path,
            configurations=3,
            progress=lambda n, of: done.append((n, of)),
        )
        assert done == [(1, 3), (2, 3), (3, 3)]
        assert target.budget == 4096 and target.size_model != udc_tf.SizeModel()
        assert np.abs(SizeFit.load(path).errors()).max() < 0.1
        size_fit._FITS.clear()  # what only this process remembers
        again = udc_tf.export.fit_size_model(
            model, space, udc_tf.Flash(4096), path=path, configurations=3, progress=done.append
        )
        assert again.size_model == target.size_model and len(done) == 3

    def test_a_fit_of_another_version_is_made_anew(self, tmp_path):
        path = tmp_path / "size.json"
        path.write_text('{"format": 1}')
        assert SizeFit.load(path) is None

    def test_the_former_name_still_serves(self):
        assert udc_tf.export.calibrate is udc_tf.export.fit_size_model

    def test_memory_is_what_vela_plans_where_it_has_to_save(self):
        """Vela buffers the weights behind 32 channels, which triples what they take, but need not.

        A search that took them for too large would train without them and then get them.
        """
        keras.utils.set_random_seed(0)
        x = inputs = keras.Input((14, 14, 1))
        for number, strides in enumerate((1, 2)):
            x = kl.Conv2D(48, 3, strides, padding="same", use_bias=False, name=f"conv{number}")(x)
            x = kl.ReLU()(kl.BatchNormalization()(x))
        model = keras.Model(inputs, kl.Dense(10, name="head")(kl.GlobalAveragePooling2D()(x)))
        space = udc_tf.SearchSpace(widths=(1 / 3, 2 / 3, 1.0), bits=(8,), sparsities=(1.0,))
        targets = [udc_tf.Flash("256KiB"), udc_tf.Sram("10KiB")]
        fitted = udc_tf.export.fit_size_model(model, space, targets, configurations=1)
        search = udc_tf.make_searchable(model, space, fitted)
        search.set_out()
        (first, *_), (_, memory) = search.probabilities().values(), search.problem.bound
        assert max(first, key=first.get) == pytest.approx(2 / 3)
        likely = search.state.log_probabilities().numpy().argmax(axis=1)
        saving = vela.System("ethos-u55-128", sram_limit=10_240)
        found = measuring.measure_one(search, likely, saving, np.random.default_rng(0))
        assert trials.predicted(memory, likely) == pytest.approx(found.sram_bytes, rel=0.03)
