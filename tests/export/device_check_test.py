"""What Vela leaves to the CPU is known before the first step, by whatever way one comes."""

import random

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from tests.support import networks
from udc_tf.cli import commands
from udc_tf.export import device_check
from udc_tf.finetune.stages import Stages
from udc_tf.graph.verdicts import Verdict

_SMALL = udc_tf.SearchSpace(widths=(0.5, 1.0), bits=(4, 8))
_REASON = "`up` .*RESIZE_BILINEAR to the CPU .*scale-factor=3.*allow_cpu=True"


def _thrice(name="up"):
    """The NPU enlarges by two, four and eight."""
    x = keras.Input((4, 4, 1))
    y = kl.Conv2D(4, 3, padding="same", activation="relu", name="stem")(x)
    y = kl.UpSampling2D(3, interpolation="bilinear", name=name)(y)
    return keras.Model(x, kl.Dense(2, name="head")(kl.GlobalAveragePooling2D(name="pool")(y)))


_DATA = np.zeros((8, 4, 4, 1), "float32"), np.zeros(8, int)


class TestCheck:
    def test_one_row_per_layer_with_what_becomes_of_it(self):
        found = udc_tf.check(networks.small_cnn())
        verdicts = {row.kind: row.verdict for row in found.rows}
        assert found.ok and not found.refused
        assert verdicts["Conv2D"] is Verdict.SEARCHED and verdicts["Dense"] is Verdict.SEARCHED
        assert len(str(found).splitlines()) == 1 + len(found.rows) + 1

    def test_what_is_left_to_the_cpu_is_refused_or_named(self):
        refused = udc_tf.check(_thrice(), space=_SMALL)
        assert not refused.ok and [row.name for row in refused.refused] == ["up"]
        assert "does not run" in str(refused)
        allowed = udc_tf.check(_thrice(), space=_SMALL, allow_cpu=True)
        assert allowed.ok and [row.name for row in allowed.on_cpu] == ["up"]
        assert "1 on the CPU" in str(allowed)

    def test_every_branch_of_a_choice_is_asked_about(self):
        x = keras.Input((4, 4, 4))
        large = keras.Sequential([kl.UpSampling2D(3, interpolation="bilinear"), kl.MaxPooling2D(3)])
        y = udc_tf.Choice([kl.Conv2D(4, 1), large], name="block")(kl.Conv2D(4, 1)(x))
        found = udc_tf.check(keras.Model(x, kl.Conv2D(2, 1)(y)), space=_SMALL)
        (row,) = found.refused
        assert row.name.startswith("block/") and row.kind == "UpSampling2D"

    def test_an_unknown_accelerator(self):
        with pytest.raises(ValueError, match="Received: 'ethos-u56'"):
            udc_tf.check(networks.small_cnn(), "ethos-u56")

    def test_leaves_the_network_and_the_dice_alone(self):
        model = _thrice()
        before = model.get_weights()
        keras.utils.set_random_seed(5)
        expected = random.random()
        keras.utils.set_random_seed(5)
        udc_tf.check(model, space=_SMALL)
        assert random.random() == expected  # where Keras takes its seeds from
        assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))

    def test_networks_of_one_structure_are_asked_about_once(self, monkeypatch):
        udc_tf.check(networks.small_cnn(), space=_SMALL)
        monkeypatch.setattr(device_check, "_compiled", None)
        assert udc_tf.check(networks.small_cnn(), space=_SMALL).ok
        with pytest.raises(TypeError):
            udc_tf.check(networks.small_cnn(), "ethos-u55-32", space=_SMALL)


class TestBeforeTheFirstStep:
    def test_of_a_search(self):
        search = udc_tf.make_searchable(_thrice(), _SMALL, udc_tf.Flash("64KiB"))
        search.compile(loss=networks.cross_entropy())
        with pytest.raises(ValueError, match=_REASON):
            search.fit(*_DATA, verbose=0)
        assert search.state.steps_done() == 0

    def test_of_a_search_that_allows_it(self, tmp_path):
        target = udc_tf.Flash("64KiB")
        search = udc_tf.make_searchable(_thrice(), _SMALL, target, allow_cpu=True)
        search.compile(loss=networks.cross_entropy())
        search.save(tmp_path / "search.keras")
        search = keras.saving.load_model(tmp_path / "search.keras")
        search.fit(*_DATA, verbose=0)
        assert search.state.steps_done() > 0

    def test_of_finetuning(self):
        tiny = udc_tf.compact(_thrice())
        with pytest.raises(ValueError, match=_REASON):
            udc_tf.finetune(tiny, _DATA, stages=Stages(epochs=3), verbose=0)

    def test_of_finetuning_what_no_device_runs(self):
        x = keras.Input((4, 4, 1))
        y = kl.LayerNormalization(1, name="norm")(kl.Conv2D(4, 3)(x))
        tiny = udc_tf.compact(keras.Model(x, kl.Dense(2)(kl.Flatten()(y))))
        with pytest.raises(ValueError, match=r"`norm` .*take axis=-1"):
            udc_tf.finetune(tiny, _DATA, stages=Stages(epochs=3), verbose=0)
        stages = Stages(epochs=3)
        history = udc_tf.finetune(tiny, _DATA, stages=stages, verbose=0, accelerator=None)
        assert len(history.history["loss"]) == 3


class TestCommands:
    @pytest.fixture
    def saved(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        _thrice().save("thrice.keras")
        x, y = np.zeros((40, 4, 4, 1), np.uint8), np.arange(40) % 2
        np.savez("own.npz", x=x, y=y)
        return tmp_path

    def _run(self, command, *flags):
        said = []
        flags = ("--model=thrice.keras", "--widths=0.5,1", *flags)
        return commands.main(command, [command, *flags], said.append), "\n".join(said)

    def test_check(self, saved):
        code, said = self._run("udc-check")
        assert code == 1 and "does not run" in said
        code, said = self._run("udc-check", "--allow_cpu")
        assert code == 0 and "1 on the CPU" in said

    @pytest.mark.parametrize(
        "flags",
        [
            ("--flash=64KiB", "--workdir=w"),
            ("--macs=1e6", "--workdir=w"),  # it would be exported in the end
            ("--flash=64KiB", "--dry_run"),
        ],
    )
    def test_udc_refuses_in_one_sentence(self, saved, capsys, flags):
        code, _ = self._run("udc", "--data=own.npz", *flags)
        (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("udc: ")]
        assert code == 1 and "`up` (UpSampling2D)" in line and "--allow_cpu" in line
        assert not (saved / "w").exists()
