"""What Vela says before the first step, and while unused flash is given to layers."""

import dataclasses
import pathlib
import re

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
import udc_tf.export
from udc_tf.export import measuring, trials, vela
from udc_tf.export.budgets import Budgets
from udc_tf.search.make import searchable

SPACE = udc_tf.SearchSpace(widths=(0.5, 1.0), bits=(2, 4, 8), sparsities=(0.3, 1.0))
INI = """
[System_Config.Mine]
axi0_port=Sram
axi1_port=Dram
Sram_clock_scale=1.0
Dram_clock_scale=0.2
[Memory_Mode.All_In_Sram]
const_mem_area=Axi0
arena_mem_area=Axi0
cache_mem_area=Axi0
"""


def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8, 8, 4))
    x = kl.Conv2D(32, 3, padding="same", activation="relu", name="one")(x)
    x = kl.Conv2D(32, 3, padding="same", activation="relu", name="two")(x)
    x = kl.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, kl.Dense(5, name="head")(x), name="network")


def fit(target) -> None:
    search = udc_tf.make_searchable(network(), SPACE, target)
    search.compile(loss="mse")
    search.fit(np.zeros((4, 8, 8, 4), "float32"), np.zeros((4, 5), "float32"), verbose=0)


class TestBeforeTraining:
    def test_what_the_smallest_network_needs_by_vela_is_told(self):
        low = udc_tf.DeviceModel(sram=0.1, fitted=True)  # a tenth of what it will be
        with pytest.raises(
            ValueError, match=r"the smallest needs, .*Received: a budget of 500 bytes of SRAM"
        ):
            fit(udc_tf.Sram(500, device_model=low))

    def test_names_that_vela_does_not_have(self, tmp_path: pathlib.Path):
        with pytest.raises(ValueError, match=r"`memory_mode` is one of Sram_Only, .*'Sram'"):
            fit(udc_tf.Sram("64KiB", memory_mode="Sram"))
        own = tmp_path / "vela.ini"
        own.write_text(INI)
        settings = {"memory_mode": "All_In_Sram", "vela_config": str(own)}
        with pytest.raises(ValueError, match=r"`system_config` is one of Mine, as .*High_End"):
            fit(udc_tf.Sram("64KiB", **settings))
        system = vela.System.of([udc_tf.Sram("64KiB", system_config="Mine", **settings)])
        assert system.config == str(own)
        own.write_text("no section")
        with pytest.raises(ValueError, match="File contains no section headers"):
            vela.System.of([], vela_config=own)
        with pytest.raises(ValueError, match="which is no file"):
            vela.System.of([], vela_config=tmp_path / "other.ini")

    def test_a_file_of_commands_alone_leaves_room_for_what_training_changes(self, monkeypatch):
        compiled = []

        def told(*args, **kwargs):
            compiled.append(measuring.measure_one(*args, **kwargs))
            return compiled[-1]

        def search_of(budget: int) -> udc_tf.SearchModel:
            keras.utils.set_random_seed(0)
            x = inputs = keras.Input((8, 4))
            x = kl.Dense(4, name="head")(kl.SimpleRNN(8, name="over_time")(x))
            low = udc_tf.SizeModel(fixed=10.0, per_operator=10.0)
            return searchable(keras.Model(inputs, x), SPACE, udc_tf.Flash(budget, size_model=low))

        monkeypatch.setattr(trials, "measure_one", told)
        trials.require_smallest(search_of(64 * 1024))
        besides = [found.flash_bytes - found.encoded_bytes for found in compiled]
        assert len(set(besides)) == 2  # ranges that are alike, and all different
        most = max(found.flash_bytes for found in compiled)
        with pytest.raises(ValueError, match="the smallest needs, by what Vela says") as refusal:
            trials.require_smallest(search_of(round(1.01 * most)))
        (least,) = re.findall(r"says, ([\d,]+) bytes", str(refusal.value))
        assert 1.015 * most < int(least.replace(",", "")) < 1.025 * most
        trials.require_smallest(search_of(int(least.replace(",", ""))))


class TestTrials:
    def test_of_two_targets_the_one_that_binds_is_used(self):
        targets = [udc_tf.Flash("9000B"), udc_tf.Sram("5KiB"), udc_tf.Macs(5e6)]
        search = searchable(network(), SPACE, targets)
        chosen = trials.choose_within(search).chosen
        trial = trials._try(search, chosen)
        assert trial.holds and trial.use > 0.95
        assert trial.needs[2] is None  # no compiler counts it

    @pytest.mark.parametrize("scale", [0.4, 1.7])
    def test_it_comes_near_to_the_budget_however_wrong_what_is_predicted(self, scale: float):
        limit = trials._Limit(now=100.0, low=20.0, high=np.inf, least=20.0)
        for _ in range(8):
            chosen = 5 * (limit.now // 5)  # only such configurations are there
            share = (scale * chosen + 8) / 100
            if 0.9 < share <= 1:
                break
            limit = limit.after(chosen, share)
        assert 0.9 < share <= 1

    def test_a_limit_that_leaves_nothing(self):
        limit = trials._Limit(now=100.0, low=50.0, high=np.inf, least=50.0).after(90.0, 2.0)
        assert limit.now == 70.0  # 45 is below the least
        assert limit.after_nothing().now == 80.0


class TestTightening:
    def test_cycles_of_operators_that_wait_for_their_weights(self, tmp_path: pathlib.Path):
        tiny = udc_tf.compact(network(), width=1.0, bits=8, nonzeros=1.0)
        data = np.random.default_rng(0).normal(size=(4, 8, 8, 4)).astype("float32")
        plain = udc_tf.export.export(tiny, tmp_path, calibration=data)
        few = udc_tf.Cycles(0.9 * plain.manifest["estimated_cycles"])
        tight = udc_tf.export.export(tiny, tmp_path, few, data)
        assert 0.95 * few.budget < tight.manifest["estimated_cycles"] <= few.budget
        changed = {m["layer"] for r in tight.report["tightening"] for m in r["moves"]}
        assert changed and "one" not in changed  # which has more to multiply than to read


class TestGrowing:
    def test_all_budgets_hold(self, tmp_path: pathlib.Path):
        tiny = udc_tf.compact(network(), width=1.0, bits=2, nonzeros=0.3)
        data = np.random.default_rng(0).normal(size=(4, 8, 8, 4)).astype("float32")
        trained = []
        settings = {"calibration": data, "recover": trained.append, "grow_rounds": 2}

        def cycles(result):
            return result.manifest["estimated_cycles"]

        plain = udc_tf.export.export(tiny, tmp_path, udc_tf.Flash("64KiB"), data)
        flash = udc_tf.Flash(2 * plain.flash_bytes)
        grown = udc_tf.export.export(tiny, tmp_path, flash, **settings)
        assert plain.flash_bytes < grown.flash_bytes <= flash.budget
        assert len(trained) == len(grown.report["tightening"]) > 0
        # More weights are read for longer; where cycles do not allow that, they stay out.
        few = udc_tf.Cycles(cycles(plain) + 0.1 * (cycles(grown) - cycles(plain)))
        kept = udc_tf.export.export(tiny, tmp_path, [flash, few], **settings)
        assert cycles(plain) <= cycles(kept) <= few.budget < cycles(grown)

    def test_a_budget_that_does_not_hold(self, tmp_path: pathlib.Path):
        budgets = Budgets.of([udc_tf.Flash("1KiB"), udc_tf.Sram("1KiB"), udc_tf.Cycles(1000)])
        compiled = vela.VelaResult(
            tmp_path, 1024, 1024, (), 1000, 1.0, 0, 0, (), (), "ethos-u55-128", "", "", ""
        )
        assert budgets.hold(compiled)
        for name in ("flash_bytes", "sram_bytes", "cycles"):
            assert not budgets.hold(dataclasses.replace(compiled, **{name: 1025}))
