"""`udc_tf.compress`: inside the budget, near the original, the same every time, or a sentence."""

import dataclasses
import re

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from tests.support import networks
from tests.support.eager import run_eagerly
from udc_tf.compress.compress_settings import CompressSettings
from udc_tf.compress.examples import checked_labels, gives_logits, trained_model
from udc_tf.export import run
from udc_tf.finetune.statistics import without_dropout
from udc_tf.layers.inventory import activation_quantizers, kernel_layers

BUDGET = 6_700
SPACE = udc_tf.SearchSpace(bits=(2, 3, 4, 6, 8), sparsities=(0.3, 0.6, 1.0))
FEW = CompressSettings(probe_examples=16, steps=20)


def _network():
    """Batch norms, a residual sum, depthwise and plain convolutions with and without bias."""
    inputs = keras.Input((12, 12, 2), name="image")
    x = kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(16, 3, use_bias=False, name="stem")(inputs)))
    y = kl.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")(x)
    y = kl.BatchNormalization(scale=False)(y)
    y = kl.Conv2D(16, 1, activation="relu", name="pointwise")(y)
    x = kl.Add()([x, y])
    x = kl.Conv2D(24, 3, strides=2, activation="relu", name="conv")(x)
    x = kl.Dropout(0.5, name="dropout")(kl.GlobalAveragePooling2D()(x))
    x = kl.Dense(5, name="head")(x)
    model = networks.randomized(keras.Model(inputs, x, name="mixed"))
    model.get_layer("head").bias.assign(np.linspace(-0.5, 0.5, 5))
    return model


def _correlation(model, tiny, x):
    return np.corrcoef(model.predict(x, verbose=0).ravel(), tiny.predict(x, verbose=0).ravel())[
        0, 1
    ]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return _network()


@pytest.fixture(scope="module")
def examples():
    x = networks.normal(12, 12, 2, count=48)
    return x + np.roll(x, 1, axis=1) + np.roll(x, 1, axis=2)  # images are smooth


@pytest.fixture(scope="module")
def tiny(model, examples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compress") / "work"
    found = udc_tf.compress(
        model, udc_tf.Flash(BUDGET), examples, workdir=folder, space=SPACE, settings=FEW
    )
    found.folder = folder
    return found


class TestCompress:
    def test_is_inside_the_budget_and_near_the_original(self, model, tiny, examples):
        unseen = networks.normal(12, 12, 2, count=64, seed=9)
        unseen = unseen + np.roll(unseen, 1, axis=1) + np.roll(unseen, 1, axis=2)
        assert tiny.compression.flash_bytes <= BUDGET
        assert _correlation(model, tiny, unseen) > 0.97
        assert sum(k.bits < 8 for k in kernel_layers(tiny)) >= 2, "nothing was taken away"

    def test_exports_as_it_was_compiled_and_computes_the_same(self, tiny, examples, tmp_path):
        result = udc_tf.export.export(
            tiny, tmp_path / "out", target=udc_tf.Flash(BUDGET), calibration=examples
        )
        assert result.flash_bytes == tiny.compression.flash_bytes
        assert not result.report["tightening"]
        inputs = np.load(tmp_path / "out" / "golden" / "input_0.npy")
        outputs = [
            run(path, inputs, on=runner).outputs[0]
            for path, runner in ((result.tflite_path, "tflm"), (result.vela_path, "npu"))
        ]
        np.testing.assert_array_equal(*outputs)
        manifest = result.manifest["outputs"][0]
        ours = tiny.predict(examples[: len(inputs)], verbose=0) / manifest["scale"]
        steps = np.abs(np.round(ours) + manifest["zero_point"] - outputs[0])
        assert steps.max() <= 1

    def test_the_table_tells_the_compiled_sizes(self, tiny):
        architecture = tiny.architecture
        assert architecture.flash_bytes == tiny.compression.flash_bytes
        assert 0 < sum(layer.bytes for layer in architecture.layers) < architecture.flash_bytes
        assert f"needs {architecture.flash_bytes:,} bytes of flash" in architecture.table()

    def test_the_architecture_builds_it_again(self, tiny, examples, tmp_path):
        tiny.architecture.save(tmp_path / "arch.json")
        again = udc_tf.Architecture.load(tmp_path / "arch.json").build()
        np.testing.assert_array_equal(
            again.predict(examples, verbose=0), tiny.predict(examples, verbose=0)
        )
        bits = {layer.name: layer.bits for layer in tiny.architecture.layers}
        assert bits == {layer.name: layer.bits for layer in kernel_layers(tiny)}

    def test_goes_on_where_it_was_and_is_the_same_again(self, model, tiny, examples):
        said: list[str] = []
        arguments = {"workdir": tiny.folder, "say": said.append, "space": SPACE, "settings": FEW}
        (tiny.folder / "compression.json").unlink()
        again = udc_tf.compress(model, udc_tf.Flash(BUDGET), examples, **arguments)
        assert not any("errors of all options" in line for line in said)
        np.testing.assert_array_equal(
            again.predict(examples, verbose=0), tiny.predict(examples, verbose=0)
        )
        udc_tf.compress(model, udc_tf.Flash(BUDGET), examples, **arguments)
        assert "done before" in said[-1]

    def test_the_model_is_left_as_it_is(self, model, tiny):
        keras.utils.set_random_seed(0)
        for before, after in zip(_network().get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(before, after)


class TestSeveralTargets:
    def test_memory_and_cycles_are_kept_as_vela_tells_them(self, model, examples, tmp_path):
        targets = [udc_tf.Flash(BUDGET), udc_tf.Sram("8KiB"), udc_tf.Cycles(2e5)]
        said: list[str] = []
        settings = dataclasses.replace(FEW, measured=False, steps=0)
        tiny = udc_tf.compress(
            model, targets, examples, space=SPACE, settings=settings, say=said.append
        )
        assert tiny.compression.flash_bytes <= BUDGET
        assert any("bytes of SRAM, the budget is 8,192" in line for line in said)
        again = udc_tf.export.export(tiny, tmp_path / "out", target=targets, calibration=examples)
        assert again.flash_bytes == tiny.compression.flash_bytes


class TestGentle:
    def test_finetuning_keeps_zeros_and_ranges_and_lowers_the_loss(self, model, tiny, examples):
        labels = model.predict(examples, verbose=0).argmax(axis=1)
        network = keras.models.clone_model(tiny)
        network.set_weights(tiny.get_weights())
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        def measured():
            return float(loss(labels, network.predict(examples, verbose=0)))

        before = measured()
        masks = [layer.mask.numpy() for layer in kernel_layers(network)]
        ranges = [q.maximum.numpy() for q in activation_quantizers(network)]
        with run_eagerly():
            udc_tf.finetune(
                network,
                (examples, labels),
                stages=udc_tf.Stages.gentle(2),
                batch_size=16,
                verbose=0,
            )
        assert measured() < before
        for layer, mask in zip(kernel_layers(network), masks, strict=True):
            np.testing.assert_array_equal(layer.mask, mask)
        for quantizer, maximum in zip(activation_quantizers(network), ranges, strict=True):
            np.testing.assert_array_equal(quantizer.maximum, maximum)

    def test_dropout_is_put_off_and_stays_in_the_network(self, tiny, examples):
        """With batch norms that stand still, weights would learn to make good what it changes."""
        dropout = tiny.get_layer("dropout")
        with without_dropout(tiny):
            outputs = dropout(examples, training=True)
        np.testing.assert_array_equal(outputs, examples)
        assert dropout.rate == 0.5

    def test_a_network_with_nothing_to_keep_is_refused(self, model, examples):
        untrained = udc_tf.compact(model)
        with pytest.raises(ValueError, match="no ranges yet"):
            udc_tf.finetune(
                untrained, (examples, np.zeros(len(examples))), stages=udc_tf.Stages.gentle(1)
            )
        with pytest.raises(ValueError, match=r"Stages\.gentle"):
            udc_tf.Stages(epochs=3, start="kept")


class TestRefusals:
    """One sentence, and nothing left behind."""

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"data": 3}, "At least 8 examples"),
            ({"data": "constant"}, "must differ"),
            ({"data": "nan"}, "finite"),
            ({"data": "shape"}, "shape"),
            ({"data": "complex"}, "real numbers"),
            ({"target": udc_tf.Flash(900)}, "at least .* bytes of flash, the budget is 900"),
            ({"target": udc_tf.Macs(10)}, "multiply-accumulates"),
            ({"target": None}, "`target` must be given"),
            ({"labels": np.arange(48)}, "5 classes"),
            ({"labels": np.zeros(4, int)}, "each of the 48 examples"),
            ({"space": udc_tf.SearchSpace(widths=(0.5, 1.0))}, "no channels"),
            ({"model": "missing.keras"}, r"\.keras or \.h5"),
            ({"target": [udc_tf.Flash(BUDGET), udc_tf.Sram(500)]}, "at least .* bytes of SRAM"),
            ({"target": udc_tf.Cycles(100)}, "smaller inputs"),
            ({"seconds": "1 min"}, "`seconds` must be a number"),
            ({"seed": "a"}, "`seed` must be a whole number"),
            ({"settings": {"steps": 3}}, "`settings` must be"),
            ({"data": "huge"}, "scaled as in training"),
            ({"say": None}, "`say` must be a function"),
        ],
    )
    def test_in_a_sentence(self, model, examples, tmp_path, change, message):
        data = {
            3: examples[:3],
            "constant": np.ones_like(examples),
            "nan": np.where(examples > 3, np.nan, examples),
            "shape": examples[:, :5],
            "complex": examples.astype("complex64"),
            "huge": 1e30 * examples,
        }
        arguments = {
            "model": model,
            "target": udc_tf.Flash(BUDGET),
            "data": examples,
            "space": SPACE,
            **change,
        }
        if isinstance(arguments["data"], (int, str)):
            arguments["data"] = data[arguments["data"]]
        with pytest.raises(ValueError, match=message) as caught:
            udc_tf.compress(**arguments, workdir=tmp_path / "work")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "work").exists()

    def test_inputs_of_different_lengths(self):
        parts = [keras.Input((4,), name=name) for name in "ab"]
        model = keras.Model(parts, kl.Dense(3, name="head")(kl.Concatenate()(parts)))
        model.get_layer("head").bias.assign([0.1, 0.2, 0.3])
        data = [networks.normal(4, count=count) for count in (32, 16)]
        with pytest.raises(ValueError, match=r"same number of examples\. Received: 32, 16"):
            udc_tf.compress(model, udc_tf.Flash(BUDGET), data)

    def test_what_is_not_weights_is_known_before_anything_is_measured(self):
        """Each of an LSTM's steps takes some 850 bytes; its weights are stored once for all."""
        inputs = keras.Input((3, 4))
        model = keras.Model(inputs, kl.Dense(3, name="head")(kl.LSTM(8)(inputs)))
        model.get_layer("head").bias.assign([0.1, 0.2, 0.3])
        said: list[str] = []
        with pytest.raises(ValueError, match=r"at least .* bytes of flash") as caught:
            udc_tf.compress(
                model, udc_tf.Flash(2_000), networks.normal(3, 4, count=16), say=said.append
            )
        assert said == []
        least = int(re.search(r"at least ([\d,]+)", str(caught.value))[1].replace(",", ""))
        assert 3 * 700 < least < 6_200  # 5,984 with a bit for every weight

    def test_a_workdir_that_is_a_file(self, model, examples, tmp_path):
        path = tmp_path / "file"
        path.touch()
        with pytest.raises(ValueError, match="must be a folder"):
            udc_tf.compress(model, udc_tf.Flash(BUDGET), examples, workdir=path)

    def test_an_untrained_model(self, examples):
        fresh = keras.Sequential([keras.Input((12, 12, 2)), kl.Flatten(), kl.Dense(5)])
        with pytest.raises(ValueError, match="A trained model is needed"):
            udc_tf.compress(fresh, udc_tf.Flash(BUDGET), examples)

    def test_weights_that_are_not_finite(self, examples):
        broken = _network()
        broken.get_layer("head").bias.assign([np.nan] * 5)
        with pytest.raises(ValueError, match="finite weights"):
            udc_tf.compress(broken, udc_tf.Flash(BUDGET), examples)

    def test_weights_beyond_what_is_computed_with(self, examples):
        broken = _network()
        broken.get_layer("conv").kernel.assign(1e20 * broken.get_layer("conv").kernel)
        with pytest.raises(ValueError, match=r"Weights must be below 1e\+09"):
            udc_tf.compress(broken, udc_tf.Flash(BUDGET), examples)

    def test_settings_out_of_their_range(self):
        with pytest.raises(ValueError, match="`sweeps` must be a whole number"):
            dataclasses.replace(CompressSettings(), sweeps=-1)


def test_labels_of_a_sequential_model_that_was_loaded(tmp_path):
    model = keras.Sequential([keras.Input((6,)), kl.Dense(3)])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert checked_labels(loaded, [0, 1, 2, 0], 4).tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("ending", ["keras", "h5"])
def test_reads_saved_models(model, ending, tmp_path):
    path = tmp_path / f"model.{ending}"
    model.save(path)
    x = networks.images(model)
    np.testing.assert_allclose(trained_model(path)(x), model(x), atol=1e-5)


@pytest.mark.parametrize("from_logits", [True, False])
def test_the_loss_in_a_file_says_whether_outputs_are_logits(tmp_path, from_logits):
    model = keras.Sequential([keras.Input((4,)), kl.Dense(3, bias_initializer="ones")])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits))
    model.save(tmp_path / "model.keras")
    assert gives_logits(trained_model(tmp_path / "model.keras")) == from_logits
