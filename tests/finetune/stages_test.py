"""Plans of finetuning."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udc_tf.finetune.stages import Cosine, StagedCosine, Stages, split_epochs


class TestStages:
    def test_presets_are_the_papers(self):
        cifar, imagenet = Stages.cifar100(), Stages.imagenet()
        assert (cifar.epochs, cifar.l2, cifar.train_batch_norm) == ((254, 60, 30), 5e-4, False)
        assert (imagenet.epochs, imagenet.l2) == ((126, 60, 30), 1e-4)
        assert imagenet.label_smoothing == 0.1
        assert cifar.learning_rates[0].pieces(254) == [2, 4, 8, 16, 32, 64, 128]
        assert imagenet.learning_rates[0].pieces(126) == [2, 4, 8, 16, 32, 64]
        assert Stages.cifar100(epochs=10).epochs == (3, 5, 2)

    @given(st.integers(1, 500))
    def test_any_number_of_epochs_is_split(self, epochs):
        parts = split_epochs(epochs)
        assert sum(parts) == epochs
        assert min(parts) >= 0
        assert parts[1] >= 1

    @given(st.tuples(*[st.integers(0, 9)] * 3).filter(any), st.floats(0, 1))
    def test_pruning_rises_from_nothing_to_all(self, epochs, until):
        plan = Stages(epochs=epochs, prune_until=until)
        shares = [plan.pruned_share(e) for e in np.linspace(0, plan.total_epochs, 40)]
        assert np.all(np.diff(shares) >= 0)
        assert plan.pruned_share(plan.boundaries[1]) == 1
        if epochs[0]:
            assert shares[0] == 0

    def test_stages_are_found_by_epoch(self):
        plan = Stages(epochs=(0, 2, 3))
        assert [plan.stage_of(e) for e in range(5)] == [2, 2, 3, 3, 3]

    @pytest.mark.parametrize(
        "bad",
        [
            {"epochs": 0},
            {"epochs": (1, 2)},
            {"alpha": 1.5},
            {"number_format": "Q"},
            {"start": "zero"},
            {"refresh_every": 0},
            {"prune_until": 2.0},
            {"epochs": True},
            {"epochs": 2.5},
            {"alpha": float("nan")},
            {"learning_rates": (0.1, 0.1, 0.1)},
            {"temperature": 0.0},
            {"range_learning_rate": float("inf")},
            {"momentum": 1.0},
            {"l2": -1e-4},
            {"calibration_batches": -1},
        ],
    )
    def test_bad_plans_name_what_was_received(self, bad):
        with pytest.raises(ValueError, match="Received"):
            Stages(**bad)

    def test_numpys_numbers_are_numbers(self):
        plan = Stages(epochs=np.int64(10), alpha=np.float32(0.5), refresh_every=np.int32(4))
        assert json.loads(json.dumps(dataclasses.asdict(plan)))["epochs"] == [3, 5, 2]
        assert plan.alpha == (0.5,) * 3 and plan == Stages(epochs=10, alpha=0.5, refresh_every=4)


class TestLearningRate:
    @pytest.mark.parametrize("bad", [(0, 0), (-1, 0), (0.1, -1), (float("inf"), 0), (0.1, 0, 0)])
    def test_bad_rates_name_what_was_received(self, bad):
        with pytest.raises(ValueError, match="Received"):
            Cosine(*bad)

    def test_each_stage_has_its_cosine(self):
        rates = (Cosine(0.1, 0.01, cycle=1), Cosine(0.05, 0.0), Cosine(0.001, 0.0))
        rate = Stages(epochs=(3, 2, 1), learning_rates=rates).learning_rate(steps_per_epoch=10)
        assert rate.steps == [10, 20, 20, 10]
        values = [float(rate(step)) for step in (0, 10, 30, 40, 50, 60, 99)]
        np.testing.assert_allclose(values, [0.1, 0.1, 0.05, 0.025, 0.001, 0, 0], atol=1e-7)

    def test_serialized(self):
        rate = StagedCosine([0.1], [0.0], [10])
        copy = StagedCosine.from_config(rate.get_config())
        assert float(copy(3)) == float(rate(3))
