"""Every recipe on tiny fake data: it builds, dry-runs, searches and finetunes."""

import dataclasses
import functools
import re
import time

import keras
import numpy as np
import pytest

import udc_tf
from tests.support.eager import run_eagerly
from udc_tf.cli.dry_run import dry_run
from udc_tf.cli.options import Options, resolve
from udc_tf.cli.tasks import task_of
from udc_tf.cost.targets import Flash, Macs
from udc_tf.export import tflite_file
from udc_tf.export.integer_network import Quantization
from udc_tf.finetune.run import finetune
from udc_tf.models import recipes
from udc_tf.search.model import SearchModel

# The same networks in small, for recipes whose own are too large for a test of seconds.
_SMALLER = {
    "wide_resnet": ((16, 16, 3), {"multiplier": 1, "blocks": 1}),
    "mobilenet_v2": ((32, 32, 3), {"alpha": 0.1}),
    "mobilenet_v2_wide": ((32, 32, 3), {"alpha": 0.1, "kernel_size": 5}),
    "mobilenet_v1": ((32, 32, 3), {}),
    "resnet8": ((16, 16, 3), {}),
    "fsrcnn": ((16, 16, 1), {}),
    "temporal_cnn": ((16, 4), {"filters": (8, 8)}),
    "temporal_lstm": ((8, 4), {"filters": (8,), "units": 4}),
}
# One of each network; the others differ in budgets and epochs only.
_DISTINCT = sorted({(r.network, str(r.arguments)): n for n, r in recipes.RECIPES.items()}.values())
# Their blocks are those of the recipe that searches operators, of another width and kernel size.
_ALIKE = ("imagenet_1MB", "imagenet_1.25MB")
# The same network on fewer features.
_FASTER = {"spoken_digits": "keyword_spotting"}
_TRAINED = [_FASTER.get(name, name) for name in _DISTINCT if name not in _ALIKE]


def _small(name):
    recipe = recipes.get(name)
    shape, arguments = _SMALLER.get(recipe.network, (recipe.input_shape, {}))
    classes = min(recipe.classes, 10)
    return dataclasses.replace(
        recipe,
        network=recipe.network.removesuffix("_wide"),
        search=dataclasses.replace(recipe.search, samples=1, samples_per_pass=None),
        input_shape=shape,
        classes=classes,
        arguments={**recipe.arguments, **arguments},
    )


def _fake(recipe, count):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (count, *recipe.input_shape)).astype("float32")
    if recipe.task == "classification":
        return x, rng.integers(0, recipe.classes, count)
    if recipe.task == "reconstruction":
        return x, x
    return x, x.repeat(4, axis=1).repeat(4, axis=2)


def _roomy(recipe, model):
    """A budget that the smaller network meets as the recipe's own meets its."""
    if recipe.macs is not None:
        return Macs(3e6)
    return Flash(max(30_000, model.count_params() // 2))


def _searched(recipe, x, y):
    model, task = recipe.model(), task_of(recipe.task)
    search = udc_tf.make_searchable(model, recipe.space, _roomy(recipe, model), recipe.search)
    search.compile(loss=task.loss(model), metrics=task.metrics())
    history = search.fit(x, y, batch_size=len(x) // 2, epochs=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    return search.architecture()


def _finetuned(recipe, architecture, x, y):
    tiny, task = architecture.build(), task_of(recipe.task)
    stages = dataclasses.replace(recipe.stages, epochs=(1, 1, 1), calibration_batches=1)
    history = finetune(
        tiny,
        (x, y),
        stages=stages,
        loss=task.loss(tiny),
        metrics=task.metrics(),
        batch_size=len(x) // 2,
        verbose=0,
    )
    assert history.history["stage"] == [1, 2, 3]
    assert np.isfinite(history.history["loss"]).all()
    return tiny


@functools.cache
def _trained(name):
    """A recipe's network, searched and finetuned for a few steps, and what it was trained on."""
    recipe = _small(name)
    keras.utils.set_random_seed(0)
    x, y = _fake(recipe, 4)
    with run_eagerly():
        return _finetuned(recipe, _searched(recipe, x, y), x, y), x


class TestRecipes:
    @pytest.mark.parametrize("name", [n for n in _DISTINCT if "imagenet" not in n])
    def test_dry_run_says_what_is_reachable(self, name):
        run = resolve(Options(recipe=name, data_dir="nowhere", data=recipes.get(name).data))
        said = []
        dry_run(run, said.append, timed=False)
        text = "\n".join(said)
        assert "decisions" in text and "reachable: " in text and "not searched" in text

    def test_dry_run_times_steps_without_the_first_guess(self, monkeypatch):
        guess = 20  # seconds
        real = time.perf_counter
        past = [0.0]
        monkeypatch.setattr(time, "perf_counter", lambda: real() + past[0])
        monkeypatch.setattr(SearchModel, "set_out", lambda self: past.append(past.pop() + guess))
        run = resolve(Options(recipe="digits"))
        said = []
        dry_run(run, said.append)
        assert past == [guess]
        epochs, examples = run.recipe.search_epochs, len(run.load_data().train)
        with_it = epochs * examples * guess / (3 * run.recipe.batch_size)
        number, unit = re.search(r"search ([\d.]+) (s|min|h)", said[-1]).groups()
        assert float(number) * {"s": 1, "min": 60, "h": 3600}[unit] < with_it / 2

    @pytest.mark.parametrize("name", _TRAINED)
    def test_trains_two_steps_of_search_and_of_each_stage(self, name):
        tiny, x = _trained(name)
        assert np.isfinite(tiny(x)).all()

    def test_imagenet_network_is_searchable_in_its_own_size(self):
        recipe = recipes.get("imagenet_0.5MB")
        search = udc_tf.make_searchable(recipe.model(), recipe.space, recipe.targets())
        assert len(search.problem.plan.decisions) > 100

    def test_unknown(self):
        with pytest.raises(ValueError, match="Known recipes: digits"):
            recipes.get("digit")

    def test_carries_the_papers_numbers(self):
        cifar = recipes.get("cifar100_0.55MB")
        assert cifar.search_epochs * cifar.search.warmup == 50
        assert cifar.stages.epochs == (254, 60, 30) and cifar.stages.l2 == 5e-4
        assert not cifar.stages.train_batch_norm and cifar.augmentation.cutout == 18
        assert recipes.get("imagenet_1.25MB").distil is False
        assert recipes.get("imagenet_0.5MB").stages.label_smoothing == 0.1
        assert recipes.get("super_resolution").search.tau == (0.1, 0.1)

    @pytest.mark.parametrize(
        "name",
        ["cifar10", "keyword_spotting", "anomaly_detection", "digits", "super_resolution"],
    )
    def test_compiled_network_runs_on_the_npu_as_in_tflm(self, name, tmp_path, eagerly):
        tiny, x = _trained(name)
        result = udc_tf.export.export(tiny, tmp_path, calibration=x)
        file = tflite_file.read(result.tflite_path)
        inputs = Quantization.of_tensor(file.tensors[file.inputs[0]]).quantize(x[:2])
        expected = udc_tf.export.run(result.tflite_path, inputs, on="tflm").outputs[0]
        actual = udc_tf.export.run(result.vela_path, inputs, on="npu").outputs[0]
        np.testing.assert_array_equal(actual, expected)
