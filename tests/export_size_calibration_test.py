"""Fitting the size model to what Vela writes."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from udc_tf.export import size_calibration
from udc_tf.export.size_calibration import Measurement, SizeFit


def rows(truth: udc_tf.SizeModel, count: int = 24) -> list[Measurement]:
    """Measurements of a world in which the size model is exact."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        features = {"fixed": 1.0, "per_operator": 12.0, "per_channel": rng.uniform(100, 400)}
        features["mask_cost"] = rng.uniform(1e3, 1e4)
        for bits in (1, 2, 4, 8):
            features[f"bits_{bits}"] = rng.uniform(1e2, 5e3)
        row = Measurement((0,), features, 50.0, 0)
        made.append(Measurement((0,), features, 50.0, round(row.predicted(truth))))
    return made


class TestFit:
    def test_finds_the_coefficients_behind_the_sizes(self):
        truth = udc_tf.SizeModel(
            fixed=1700.0,
            per_operator=310.0,
            per_channel=12.0,
            mask_cost=0.9,
            bit_cost={1: 1.2, 2: 1.9, 4: 3.7, 8: 7.5},
        )
        measured = rows(truth)
        fitted = SizeFit(size_calibration.fit(measured[:16]), "ethos-u55-128", ())
        assert np.abs(fitted.errors(measured[16:])).max() < 0.01
        assert fitted.size_model.bit_cost[8] == pytest.approx(7.5, rel=0.05)

    def test_few_rows_stay_near_the_defaults(self):
        truth = udc_tf.SizeModel()
        fitted = size_calibration.fit(rows(truth, 2))
        assert fitted.per_channel == pytest.approx(10, rel=0.1)
        assert fitted.bit_cost[4] == pytest.approx(4, rel=0.1)


class TestCalibrate:
    def test_compiles_keeps_the_fit_and_reads_it_again(self, tmp_path):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((8, 8, 3))
        x = kl.Conv2D(24, 3, activation="relu", name="a")(inputs)
        x = kl.Conv2D(24, 3, activation="relu", name="b")(x)
        model = keras.Model(inputs, kl.Dense(4, name="head")(kl.GlobalAveragePooling2D()(x)))
        path, done = tmp_path / "size.json", []
        target = udc_tf.export.calibrate(
            model,
            udc_tf.SearchSpace(widths=(0.5, 1.0), bits=(2, 4), sparsities=(0.2, 0.5, 1.0)),
            udc_tf.Flash(4096),
            path=path,
            configurations=3,
            progress=lambda n, of: done.append((n, of)),
        )
        assert done == [(1, 3), (2, 3), (3, 3)]
        assert target.budget == 4096 and target.size_model != udc_tf.SizeModel()
        assert np.abs(SizeFit.load(path).errors()).max() < 0.1
        again = udc_tf.export.calibrate(model, "ethos_u55", udc_tf.Flash(4096), path=path)
        assert again.size_model == target.size_model
