"""Search spaces: checks, overrides, presets, files."""

import json

import numpy as np
import pytest

from udc_tf import SearchSpace


class TestSearchSpace:
    def test_presets(self):
        npu, paper = SearchSpace.preset("ethos_u55"), SearchSpace.preset("paper")
        assert npu.bits == (1, 2, 4, 8) and paper.bits == (1, 4, 8, 32)
        assert npu.widths == tuple(n / 10 for n in range(1, 11))
        assert npu.sparsities == (0.01, *npu.widths)
        with pytest.raises(ValueError, match="ethos_u55, paper"):
            SearchSpace.preset("ethos")

    def test_later_overrides_win_and_frozen_wins_over_all(self):
        space = SearchSpace(
            bits=(4, 8),
            overrides={"conv*": {"bits": (1, 8)}, "conv_2": {"bits": None, "widths": 0.5}},
            frozen="conv_3",
        )
        assert space.options_for("conv_1").bits == (1, 8)
        assert space.options_for("conv_2").bits is None
        assert space.options_for("conv_2").widths == (0.5,)
        assert space.options_for("conv_3").bits is None
        assert space.options_for("dense").bits == (4, 8)

    def test_survives_json(self):
        space = SearchSpace(widths=(0.5, 1), kernels=(3, 5), overrides={"a*": {"bits": (2,)}})
        assert SearchSpace.from_dict(json.loads(json.dumps(space.to_dict()))) == space

    @pytest.mark.parametrize(
        "wrong",
        [
            {"widths": ()},
            {"widths": (0.0, 1.0)},
            {"widths": (1.5,)},
            {"sparsities": (float("nan"),)},
            {"bits": (0,)},
            {"bits": (16,)},
            {"bits": (4.5,)},
            {"kernels": (0,)},
            {"bits": True},
            {"bits": "48"},
            {"widths": (0.5, None)},
            {"widths": float("inf")},
            {"overrides": {"a": {"bitz": (4,)}}},
        ],
    )
    def test_bad_options(self, wrong):
        with pytest.raises(ValueError):
            SearchSpace(**wrong)

    def test_numpys_numbers_are_numbers(self):
        space = SearchSpace(bits=np.array([8, 4]), widths=np.float32(0.5), kernels=(np.int64(3),))
        assert (space.bits, space.widths, space.kernels) == ((4, 8), (0.5,), (3,))
        assert SearchSpace.from_dict(json.loads(json.dumps(space.to_dict()))) == space
