"""The search through plain `fit`: what it learns, logs, saves, and refuses."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as kl

import udc_tf
from tests.support import networks
from tests.support.processes import run_python
from udc_tf.training.divergence import DivergedError

_BUDGET = udc_tf.Flash("3.5KiB")


def _search(target=_BUDGET, settings=None, model=None, **compile_arguments):
    keras.utils.set_random_seed(1)
    model = model or networks.small_cnn()
    search = udc_tf.make_searchable(model, "ethos_u55", target, settings)
    search.compile(loss=networks.cross_entropy(), metrics=["accuracy"], **compile_arguments)
    return search


class TestFit:
    @pytest.fixture(scope="class")
    def searched(self):
        search = _search()
        x, y = networks.blobs(512)
        history = search.fit(x, y, batch_size=32, epochs=8, validation_split=0.2, verbose=0).history
        return search, history, (x, y)

    def test_learns_and_decides(self, searched):
        _, history, _ = searched
        assert history["loss"][-1] < 0.5 * history["loss"][0]
        assert history["val_accuracy"][-1] > 0.8
        # From uniform probabilities; a search as short as this one stays near its first guess.
        assert history["entropy"][-1] < 0.7 * history["entropy"][0]
        assert abs(history["argmax_ratio"][-1] - 1) < 0.15

    def test_logs_where_the_schedules_are(self, searched):
        _, history, _ = searched
        assert history["tau"][-1] == pytest.approx(0.1, rel=0.05)
        assert history["xi"][-1] == pytest.approx(1.0, rel=0.05)
        assert history["vartheta"][0] == 0 and history["vartheta"][-1] > 0.4
        assert {"size_loss", "expected_ratio"} <= set(history)

    def test_architecture_is_inside_the_budget_and_works(self, searched):
        search, _, (x, y) = searched
        arch = search.architecture()
        assert 0.97 * _BUDGET.budget <= arch.flash_bytes <= _BUDGET.budget
        tiny = arch.build()
        tiny.compile(loss=networks.cross_entropy(), metrics=["accuracy"])
        assert tiny.evaluate(x, y, verbose=0)[1] > 0.75
        kept = sum(layer.weights * layer.nonzeros for layer in arch.layers)
        assert kept < 0.9 * search.network.count_params()

    def test_evaluate_and_predict_agree_and_leave_the_model_as_it_was(self, searched):
        search, _, (x, y) = searched
        metrics = {id(v) for v in search.metrics_variables}
        kept = [v for v in search.variables if id(v) not in metrics]
        before = [v.numpy() for v in kept]
        loss, accuracy = search.evaluate(x, y, verbose=0)
        predicted = search.predict(x, verbose=0)
        for value, variable in zip(before, kept, strict=True):
            np.testing.assert_array_equal(value, variable.numpy(), err_msg=variable.path)
        assert loss == pytest.approx(float(networks.cross_entropy()(y, predicted)), rel=1e-4)
        assert accuracy == pytest.approx(np.mean(predicted.argmax(-1) == y))
        # And the statistics are the configuration's own, not the mixture that `fit` left.
        assert np.abs(search(x[:8]) - predicted[:8]).max() > 1e-3

    def test_reachable(self, searched):
        (reach,) = searched[0].reachable()
        assert reach.target == _BUDGET and reach.smallest < _BUDGET.budget < reach.largest
        assert str(reach) == (
            f"from {reach.smallest:,.0f} bytes of flash to {reach.largest:,.0f} bytes of flash"
        )

    def test_summary_shows_every_layer(self, searched):
        search, _, _ = searched
        lines = []
        search.summary(print_fn=lines.append)
        for layer in search.problem.plan.layers:
            assert layer.name in lines[0] and layer.name in lines[1]
        assert "Output Shape" in lines[0] and "non-zeros" in lines[1]

    def test_saves_and_loads_everything(self, searched, tmp_path):
        search, _, (x, y) = searched
        search.save(tmp_path / "search.keras")
        loaded = keras.saving.load_model(tmp_path / "search.keras")
        np.testing.assert_allclose(loaded(x[:8]), search(x[:8]), rtol=1e-4, atol=1e-5)
        assert loaded.probabilities() == search.probabilities()
        assert loaded.state.steps_done() == search.state.steps_done()
        for name in ("optimizer", "decision_optimizer", "range_optimizer"):
            before, after = getattr(search, name), getattr(loaded, name)
            for a, b in zip(before.variables, after.variables, strict=True):
                np.testing.assert_allclose(a.numpy(), b.numpy(), err_msg=f"{name}/{a.path}")
        loaded.fit(x[:64], y[:64], verbose=0)

    def test_architecture_survives_a_file(self, searched, tmp_path):
        search, _, (x, _) = searched
        arch = search.architecture()
        arch.save(tmp_path / "arch.json")
        loaded = udc_tf.Architecture.load(tmp_path / "arch.json")
        assert loaded.choices == dict(arch.choices) and loaded.layers == arch.layers
        np.testing.assert_array_equal(loaded.build()(x[:4]), arch.build()(x[:4]))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["arch.json", "arch.npz"]

    def test_broken_architecture_file(self, tmp_path):
        (tmp_path / "arch.json").write_text('{"format": 99}')
        with pytest.raises(ValueError, match=r"arch\.json is damaged"):
            udc_tf.Architecture.load(tmp_path / "arch.json")


class TestInputs:
    def test_datasets_weights_and_small_batches(self):
        x, y = networks.blobs(66)
        search = _search()
        data = tf.data.Dataset.from_tensor_slices((x, y, np.ones(66, "float32"))).batch(32)
        search.fit(data, epochs=1, verbose=0)  # the last batch has 2 images for 4 samples
        assert search.state.steps_done() == 3

    def test_generator_of_unknown_length(self):
        def endless():
            while True:
                yield networks.blobs(8)

        search = _search()
        with pytest.raises(ValueError, match="steps_per_epoch"):
            search.fit(endless())
        # Once the length is known it trains, and what has passed serves to measure statistics.
        search.fit(endless(), steps_per_epoch=2, verbose=0)
        assert search.state.steps_done() == 2
        assert [len(batch) for batch in search._statistics][:2] == [8, 8]

    def test_arguments_by_position_as_in_keras(self, capsys):
        search = udc_tf.make_searchable(networks.small_cnn(), "ethos_u55", _BUDGET)
        search.compile("adam", networks.cross_entropy(), None, ["accuracy"])
        assert isinstance(search.optimizer, keras.optimizers.Adam)
        x, y = networks.blobs(64)
        history = search.fit(x, y, 16, 2, 0, None, 0.25)
        assert search.state.steps_done() == 6 and len(history.history["val_accuracy"]) == 2
        assert search.predict(x, 16, 0).shape == (64, 4)
        assert len(search.evaluate(x, y, 16, 0)) == 2
        assert capsys.readouterr().out == ""  # `verbose` was 0 each time

    def test_validation_changes_nothing_of_the_training(self):
        x, y = networks.blobs(32)
        ends = []
        for validation_data in (None, (x, y)):
            keras.utils.set_random_seed(1)
            inputs = keras.Input((8, 8, 1))
            z = kl.BatchNormalization()(kl.Conv2D(8, 3, use_bias=False)(inputs))
            z = kl.Dropout(0.3, seed=1)(kl.GlobalAveragePooling2D()(kl.ReLU()(z)))
            model = keras.Model(inputs, kl.Dense(4)(z))
            search = _search(udc_tf.Flash("3KiB"), model=model, run_eagerly=True)
            search.fit(x, y, 16, 2, 0, validation_data=validation_data)
            ends.append([v.numpy() for v in search.network.variables])
        for v, one, other in zip(search.network.variables, *ends, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=v.path)

    def test_first_guess_with_several_steps_in_one_execution(self):
        x, y = networks.blobs(64)
        search = _search(settings=udc_tf.SearchSettings(warmup=0.4), steps_per_execution=4)
        search.fit(x, y, batch_size=8, epochs=1, verbose=0)  # 8 steps, 3 of them warm-up
        (widths, *_) = search.probabilities().values()
        assert max(widths.values()) > 1.05 / len(widths)


class TestAblation:
    @pytest.mark.parametrize(
        "settings",
        [
            udc_tf.SearchSettings.vanilla(),
            udc_tf.SearchSettings(rejection=False, samples=2, pruned_gradient=1.0),
            udc_tf.SearchSettings(projection=False, straight_through=False, samples=2),
            udc_tf.SearchSettings.paper(samples=2),
        ],
        ids=["vanilla", "no rejection", "no projection", "paper"],
    )
    def test_every_part_can_be_switched_off(self, settings):
        search = _search(settings=settings)
        x, y = networks.blobs(64)
        history = search.fit(x, y, epochs=2, verbose=0).history
        assert np.isfinite(history["loss"]).all()
        assert search.architecture().flash_bytes <= _BUDGET.budget

    @pytest.mark.parametrize(
        "wrong",
        [
            {"samples": 0},
            {"samples": 1.5},
            {"samples": True},
            {"xi": (0.0, 1.0)},
            {"tau": (0.0, 1.0)},
            {"tau": 0.5},
            {"vartheta": (0.0, float("nan"))},
            {"warmup": 1.0},
            {"warmup": "0.2"},
            {"certainty": float("inf")},
            {"strength": float("inf")},
            {"decision_travel": float("inf")},
            {"seed": -1},
            {"seed": 2**32},
        ],
    )
    def test_bad_settings(self, wrong):
        with pytest.raises(ValueError, match="Received"):
            udc_tf.SearchSettings(**wrong)

    def test_numpys_numbers_are_numbers(self):
        settings = udc_tf.SearchSettings(
            samples=np.int64(2), warmup=np.float32(0.5), seed=np.uint8(3)
        )
        assert json.loads(json.dumps(dataclasses.asdict(settings)))["samples"] == 2
        assert settings.warmup == 0.5 and settings.seed == 3


class TestBadData:
    def test_validation_data_win_over_a_split(self):
        x, y = networks.blobs(20)
        search = _search(
            model=keras.Sequential([keras.Input((8, 8, 1)), kl.Flatten(), kl.Dense(4)])
        )
        arguments = {"batch_size": 4, "verbose": 0, "validation_split": 0.5}
        search.fit(x, y, validation_data=(x[:5], y[:5]), **arguments)
        assert search.state.steps_done() == 5  # of 4 examples: all 20 are trained on
        search.fit(x, y, **arguments)
        assert search.state.steps_done() == 5 + 3  # of 10 examples

    def test_nan_in_arrays(self):
        x, y = networks.blobs(32)
        x[3, 0, 0, 0] = np.nan
        with pytest.raises(ValueError, match="NaN"):
            _search().fit(x, y, verbose=0)

    def test_nan_in_a_dataset(self):
        x, y = networks.blobs(32)
        x[3, 0, 0, 0] = np.nan
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
        with pytest.raises(DivergedError, match=r"^The training data contain NaN"):
            _search().fit(data, verbose=0)

    def test_a_loss_that_is_not_finite(self):
        x, y = networks.blobs(32)
        search = _search(optimizer=keras.optimizers.SGD(1e30))
        with pytest.raises(DivergedError, match=r"^The loss is not finite: .* learning rate"):
            search.fit(x, y, epochs=3, verbose=0)

    def test_labels_that_are_no_classes(self):
        x, y = networks.blobs(32)
        for labels, validation in ((y + 1000, None), (y - 1, None), (y, (x, y - 1))):
            with pytest.raises(ValueError, match=r"Labels must be from 0 to .* Received"):
                _search().fit(x, labels, validation_data=validation, verbose=0)

    def test_layers_that_would_not_load_again(self):
        class Doubled(kl.Layer):
            def call(self, inputs):
                return 2 * inputs

        inputs = keras.Input((8, 8, 1))
        x = Doubled(name="twice")(kl.Conv2D(8, 3)(inputs))
        model = keras.Model(inputs, kl.Dense(2)(kl.GlobalAveragePooling2D()(x)))
        with pytest.raises(ValueError, match=r"`twice` \(Doubled\).*register_keras_serializable"):
            _search(model=model)
        with keras.saving.custom_object_scope({"Doubled": Doubled}):
            _search(udc_tf.Macs(1e6), model=model).architecture().build()

    def test_labels_that_do_not_match(self):
        x, y = networks.blobs(32)
        with pytest.raises(ValueError, match="same number of examples"):
            _search().fit(x, y[:30], verbose=0)

    def test_fit_before_compile(self):
        search = udc_tf.make_searchable(networks.small_cnn(), "ethos_u55", _BUDGET)
        with pytest.raises(ValueError, match="compile"):
            search.fit(*networks.blobs(32))


_INTERRUPTED = """
import os, pathlib, signal, sys
import keras
import udc_tf
from tests.support import networks

class Kill(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_batch_end(self, batch, logs=None):
        if self.model.state.steps_done() == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

def search(name, kill_at):
    keras.utils.clear_session()  # names of layers, too, seed what is drawn
    keras.utils.set_random_seed(1)
    search = udc_tf.make_searchable(networks.small_cnn(), "ethos_u55", udc_tf.Flash("3.5KiB"))
    search.compile(loss=networks.cross_entropy())
    x, y = networks.blobs(128)
    callbacks = [keras.callbacks.BackupAndRestore(folder / name), Kill(kill_at)]
    search.fit(x, y, batch_size=16, epochs=4, callbacks=callbacks, verbose=0)
    search.architecture().save(folder / f"{name}.json")

folder, kill_at = pathlib.Path(sys.argv[1]), int(sys.argv[2])
search("killed", kill_at)
search("whole", None)
"""


class TestResume:
    def test_killed_and_resumed_gives_the_same_architecture(self, tmp_path):
        done = run_python("-c", _INTERRUPTED, tmp_path, 13, check=False)
        assert done.returncode == -9 and not (tmp_path / "killed.json").exists()
        run_python("-c", _INTERRUPTED, tmp_path, -1)
        whole, resumed = (
            udc_tf.Architecture.load(tmp_path / f"{name}.json") for name in ("whole", "killed")
        )
        assert whole.choices == resumed.choices
        for layer, values in whole.weights.items():
            for variable, value in values.items():
                np.testing.assert_allclose(value, resumed.weights[layer][variable], rtol=1e-4,
                                           atol=1e-5)  # fmt: skip


_MIRRORED = """
import keras
import numpy as np
import tensorflow as tf
import udc_tf
from tests.support import networks
from udc_tf.training.workers import Workers

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
x, y = networks.blobs(64)

def searched(workers, samples, planned=2, warmup=0.5, evidence=0.0):
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    settings = udc_tf.SearchSettings(samples=samples, warmup=warmup, evidence=evidence)
    model, target = networks.small_cnn(), udc_tf.Flash(3400)
    with workers.scope():
        search = udc_tf.make_searchable(model, "ethos_u55", target, settings)
        search.compile(loss=networks.cross_entropy())
    fitted = search.fit(x, y, batch_size=32, epochs=2, verbose=0, planned_epochs=planned)
    return search, fitted.history

alone, of_one = searched(Workers(), 4)
workers = Workers.by_strategy("mirrored")
assert workers.strategy.num_replicas_in_sync == 4 and workers.is_chief
together, of_four = searched(workers, 1)
drawn = workers.strategy.run(lambda: together.state.draw(together.state.schedule()))
first, second, *_ = [d.numpy() for d in workers.strategy.experimental_local_results(drawn)]
assert not np.allclose(first, second), "replicas must draw their own samples"
np.testing.assert_allclose(together.state.logits, alone.state.logits, atol=1e-4)
for mine, theirs in zip(together.trainable_variables, alone.trainable_variables, strict=True):
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)
for name in ("loss", "expected_ratio", "size_loss"):
    np.testing.assert_allclose(of_four[name], of_one[name], rtol=1e-3)
assert together.architecture().flash_bytes == alone.architecture().flash_bytes <= 3400
print("mirrored", together.state.steps_done())

# The first steps of a run that is long enough to afford it; both are asked on the same images.
asked = dict(planned=200, warmup=0.005, evidence=1.0)
alone, together = searched(Workers(), 4, **asked)[0], searched(workers, 1, **asked)[0]
moved = alone.state.start.numpy() - alone.state.guess.numpy()
assert np.abs(moved).max() > 0.01, "the loss has been asked"
np.testing.assert_allclose(together.state.harms, alone.state.harms, rtol=0.01, atol=1e-3)
np.testing.assert_allclose(together.state.logits, alone.state.logits, atol=0.01)
print("evidence", together.architecture().flash_bytes == alone.architecture().flash_bytes)
"""


class TestMirroredStrategy:
    def test_four_devices_search_as_one_does_with_their_samples(self):
        said = run_python("-c", _MIRRORED).stdout
        assert "mirrored 4" in said and "evidence True" in said
