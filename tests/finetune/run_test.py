"""Finetuning end to end on small networks."""

import json
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as kl

import udc_tf
from tests.support.paths import ROOT
from tests.support.processes import run_python
from udc_tf.finetune.losses import Crossentropy
from udc_tf.finetune.run import finetune, weight_norm
from udc_tf.finetune.stages import Stages
from udc_tf.finetune.statistics import recalibrate
from udc_tf.finetune.step import Finetuner
from udc_tf.layers.inventory import activation_quantizers, kernel_layers
from udc_tf.training.divergence import DivergedError

RUN = ROOT / "tests" / "support" / "finetuning_run.py"


def all_kinds(bits, nonzeros):
    """A network with every kind of kernel, each with these bits and non-zeros."""
    x = keras.Input((8, 8, 2))
    y = kl.Conv2D(8, 3, padding="same", use_bias=False, name="conv")(x)
    y = kl.ReLU()(kl.BatchNormalization()(y))
    y = kl.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")(y)
    y = kl.ReLU()(kl.BatchNormalization()(y))
    y = kl.Conv2D(12, 1, name="pointwise", activation="relu")(y)
    y = kl.GlobalAveragePooling2D()(y)
    model = keras.Model(x, kl.Dense(3, activation="softmax", name="dense")(y))
    return udc_tf.compact(model, bits=bits, nonzeros=nonzeros)


def task(count=128):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(count, 8, 8, 2)).astype("float32"), np.arange(count) % 3
    x[..., 0] += y[:, None, None]
    return x, y


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(3)


class TestDeployedNetwork:
    @pytest.mark.usefixtures("eagerly")
    @pytest.mark.parametrize("bits", [1, 2, 4, 8, 32])
    def test_weights_are_few_integers_times_one_step(self, bits):
        tiny = all_kinds(bits, 0.3)
        x, y = task()
        finetune(tiny, (x, y), stages=Stages(epochs=3, pruned_gradient=1.0), verbose=0)
        for layer in kernel_layers(tiny):
            integers = layer.integer_kernel()
            kernel = layer.effective_kernel(training=False).numpy()
            np.testing.assert_array_equal(integers.codes * np.float32(integers.step), kernel)
            assert integers.nonzeros == layer.target_nonzeros
            assert len(np.unique(kernel[kernel != 0])) <= 2 ** min(bits, 8)
        assert all(q.enabled.numpy() == 1 for q in activation_quantizers(tiny))
        # What `evaluate` scores has 8-bit probabilities, as the deployed network.
        np.testing.assert_array_equal(np.asarray(tiny(x)) * 256 % 1, 0)

    def test_it_learns(self):
        tiny = all_kinds(4, 0.5)
        x, y = task(512)
        history = finetune(tiny, (x, y), stages=Stages(epochs=8), batch_size=32, verbose=0)
        assert tiny.evaluate(x, y, verbose=0)[1] > 0.9
        assert len(history.history["weight_norm"]) == 8
        np.testing.assert_allclose(history.history["weight_norm"][-1], weight_norm(tiny))

    @pytest.mark.usefixtures("eagerly")
    def test_saved_and_loaded(self, tmp_path):
        tiny = all_kinds(4, 0.5)
        x, y = task()
        finetune(tiny, (x, y), stages=Stages(epochs=1), verbose=0)
        tiny.save(tmp_path / "tiny.keras")
        loaded = keras.saving.load_model(tmp_path / "tiny.keras")
        np.testing.assert_array_equal(tiny(x), loaded(x))
        assert loaded.evaluate(x, y, verbose=0) == tiny.evaluate(x, y, verbose=0)


class Masks(keras.callbacks.Callback):
    """The mask of one layer after every step."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.by_epoch = layer, {}

    def on_epoch_begin(self, epoch, logs=None):
        self.seen = self.by_epoch.setdefault(epoch, [])

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.layer.mask.numpy().ravel())


@pytest.mark.usefixtures("eagerly")
class TestStages:
    def test_masks_follow_the_weights_in_stage_2_only(self):
        tiny = all_kinds(4, 0.3)
        masks = Masks(tiny.get_layer("pointwise"))
        stages = Stages(epochs=(1, 4, 2), pruned_gradient=1.0, refresh_every=1, prune_until=0.5)
        finetune(tiny, task(), stages=stages, batch_size=32, callbacks=[masks], verbose=0)
        assert np.all(masks.by_epoch[0])
        second = np.stack([m for e in range(1, 5) for m in masks.by_epoch[e]])
        kept = second.sum(axis=1)
        assert np.all(np.diff(kept) <= 0)  # annealed, ...
        assert kept[0] == 96
        assert kept[-1] == round(0.3 * 96)
        assert np.any(np.diff(second, axis=0) > 0)  # ... yet pruned weights come back
        last = np.stack([m for e in (5, 6) for m in masks.by_epoch[e]])
        assert np.all(last == last[0])
        codes = tiny.get_layer("pointwise").integer_kernel().codes.ravel()
        np.testing.assert_array_equal(codes != 0, last[0] == 1)

    @pytest.mark.parametrize(("start", "kept"), [("inherited", 29), ("fresh", 96)])
    def test_inherited_weights_of_one_bit_are_pruned_in_stage_1(self, start, kept):
        tiny = all_kinds(1, 0.3)
        layer = tiny.get_layer("pointwise")
        large = np.argsort(-np.abs(layer.theta.numpy()).ravel())[:29]
        masks = Masks(layer)
        stages = Stages(epochs=(1, 1, 0), start=start)
        finetune(tiny, task(), stages=stages, batch_size=128, callbacks=[masks], verbose=0)
        assert [mask.sum() for mask in masks.by_epoch[0]] == [kept]
        if start == "inherited":
            assert masks.by_epoch[0][0][large].all()

    def test_plain_format_has_no_beta(self):
        tiny = all_kinds(4, 0.3)
        finetune(tiny, task(), stages=Stages(epochs=1, number_format="plain"), verbose=0)
        assert all(layer.beta.numpy() == 0 for layer in kernel_layers(tiny))

    def test_statistics_and_ranges_stand_still_in_stage_3(self):
        tiny = all_kinds(4, 0.5)
        bn = next(x for x in tiny.layers if isinstance(x, kl.BatchNormalization))
        seen = []

        def note(epoch, logs):
            seen.append([bn.moving_mean.numpy(), activation_quantizers(tiny)[1].maximum.numpy()])

        callback = keras.callbacks.LambdaCallback(on_epoch_end=note)
        finetune(tiny, task(), stages=Stages(epochs=(1, 1, 2)), callbacks=[callback], verbose=0)
        np.testing.assert_array_equal(seen[2][0], seen[3][0])
        assert seen[2][1] == seen[3][1]
        assert np.any(seen[0][0] != seen[1][0])
        assert bn.trainable

    def test_batch_norm_parameters_can_be_left_alone(self):
        tiny = all_kinds(4, 0.5)
        stages = Stages(epochs=2, train_batch_norm=False, l2=1e-3, label_smoothing=0.1)
        finetune(tiny, task(), stages=stages, verbose=0)
        for bn in (x for x in tiny.layers if isinstance(x, kl.BatchNormalization)):
            np.testing.assert_array_equal(bn.gamma, np.ones(bn.gamma.shape))
            np.testing.assert_array_equal(bn.beta, np.zeros(bn.beta.shape))

    def test_fresh_weights_forget_the_old(self):
        tiny = all_kinds(8, 1.0)
        tiny.get_layer("dense").theta.assign(np.full((12, 3), 50.0))
        rates = Stages().learning_rates
        finetune(tiny, task(), stages=Stages(1, rates, start="fresh"), verbose=0)
        assert np.abs(tiny.get_layer("dense").theta.numpy()).max() < 10

    def test_a_callback_may_stop_training(self):
        tiny = all_kinds(4, 0.3)

        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                self.model.stop_training = True

        history = finetune(tiny, task(), stages=Stages(epochs=4), callbacks=[Stop()], verbose=0)
        assert len(history.history["loss"]) == 1
        for layer in kernel_layers(tiny):
            assert layer.integer_kernel().nonzeros == layer.target_nonzeros

    def test_divergence_leaves_the_state_of_the_epoch_before(self, tmp_path):
        tiny = all_kinds(4, 0.3)

        def spoil(epoch, logs):
            if epoch == 1:
                tiny.get_layer("dense").bias.assign([0.0, np.nan, 0.0])

        spoiling = keras.callbacks.LambdaCallback(on_epoch_begin=spoil)
        kwargs = {"callbacks": [spoiling], "workdir": tmp_path, "verbose": 0}
        with pytest.raises(DivergedError, match=r"^The loss is not finite: .* learning rate"):
            finetune(tiny, task(), stages=Stages(epochs=(2, 1, 0)), **kwargs)
        with np.load(tmp_path / "finetune_state.1.npz") as state:
            assert json.loads(state["progress"].item())["epochs"] == 1
            numbers = [state[n] for n in state if n not in ("progress", "checksum")]
            assert numbers and all(np.isfinite(array).all() for array in numbers)

    def test_a_checkpoint_is_the_network(self, eagerly, tmp_path):
        tiny, (x, y) = all_kinds(4, 0.5), task(16)
        path = tmp_path / "epoch{epoch}.keras"
        callbacks = [
            keras.callbacks.ModelCheckpoint(path),
            keras.callbacks.ModelCheckpoint(tmp_path / "best.weights.h5", save_weights_only=True),
        ]
        finetune(tiny, (x, y), stages=Stages(epochs=(0, 1, 1)), callbacks=callbacks, verbose=0)
        saved = keras.saving.load_model(tmp_path / "epoch2.keras")
        assert [layer.name for layer in saved.layers] == [layer.name for layer in tiny.layers]
        np.testing.assert_array_equal(
            saved.get_layer("conv").theta.numpy(), tiny.get_layer("conv").theta.numpy()
        )
        all_kinds(4, 0.5).load_weights(tmp_path / "best.weights.h5")

    def test_a_teacher_of_other_shapes_is_refused(self):
        for inputs, outputs in (((8, 8, 1), 3), ((8, 8, 2), 4)):
            x = keras.Input(inputs)
            teacher = keras.Model(x, kl.Dense(outputs)(kl.GlobalAveragePooling2D()(x)))
            with pytest.raises(ValueError, match=r"A teacher must have .* Received"):
                finetune(all_kinds(4, 0.5), task(8), teacher=teacher)

    @pytest.mark.parametrize("labels", [[0, 1, 3], [-1, 0, 1], [0.5, 1, 2]])
    def test_labels_that_are_no_classes_are_refused(self, labels):
        tiny, (x, y) = all_kinds(4, 0.5), task(3)
        with pytest.raises(ValueError, match=r"Labels must be .* Received"):
            finetune(tiny, (x, np.asarray(labels)))
        with pytest.raises(ValueError, match=r"Labels must be .* Received"):
            finetune(tiny, (x, y), validation_data=(x, np.asarray(labels)))

    def test_what_is_not_compact_is_refused(self):
        model = keras.Sequential([keras.Input((4,)), kl.Dense(2)])
        with pytest.raises(ValueError, match=r"Architecture.build.*Received"):
            finetune(model, (np.zeros((4, 4)), np.zeros(4)))


@pytest.mark.usefixtures("eagerly")
class TestFinetuner:
    def step(self, teacher=None, loss=None, **plan):
        tiny = all_kinds(8, 1.0)
        finetuner = Finetuner(tiny, Stages(**plan), teacher)
        sgd, adam = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)
        finetuner.compile(sgd, loss or Crossentropy(), metrics=["accuracy"], range_optimizer=adam)
        x, y = task()
        first = tiny.get_layer("dense").theta.numpy(), tiny.get_layer("dense").range
        logs = [finetuner.train_on_batch(x, y, return_dict=True) for _ in range(10)]
        return tiny, first, [entry["loss"] for entry in logs]

    def test_weights_and_ranges_are_trained(self):
        tiny, (theta, r), losses = self.step()
        assert np.any(tiny.get_layer("dense").theta.numpy() != theta)
        assert tiny.get_layer("dense").range != r
        assert losses[-1] < losses[0]

    def test_distillation_alone_approaches_the_teacher(self):
        inputs = keras.Input((8, 8, 2))
        outputs = kl.Dense(3)(kl.GlobalAveragePooling2D()(inputs))  # logits
        _, _, losses = self.step(keras.Model(inputs, outputs), distillation=1.0, temperature=2.0)
        assert losses[-1] < losses[0]

    def test_labels_as_numbers_or_rows(self):
        p = tf.constant([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
        numbers = tf.constant([0, 2])
        for smoothing in (0.0, 0.1):
            loss = Crossentropy(label_smoothing=smoothing)
            a = loss(numbers, p)
            np.testing.assert_allclose(a, loss(tf.one_hot(numbers, 3), p), rtol=1e-5)
            np.testing.assert_allclose(a, loss(numbers[:, None], p), rtol=1e-5)


class TestRecalibrate:
    def test_statistics_are_those_of_the_batches(self):
        tiny = all_kinds(4, 1.0)
        bn = next(x for x in tiny.layers if isinstance(x, kl.BatchNormalization))
        x = tf.constant(task(64)[0])
        recalibrate(tiny, [x[:32], x[32:]])
        inner = keras.Model(tiny.input, bn.input)
        np.testing.assert_allclose(
            bn.moving_mean, tf.reduce_mean(inner(x), (0, 1, 2)), rtol=1e-4, atol=1e-5
        )
        assert bn.momentum == 0.99
        assert activation_quantizers(tiny)[0].maximum.numpy() > 1


class TestInterruption:
    def run(self, *args):
        return run_python(RUN, *args, check=False)

    def test_killed_in_every_stage_the_run_ends_as_if_it_had_not_been(self, tmp_path):
        done = self.run(tmp_path / "whole", tmp_path / "whole.npz")
        assert done.returncode == 0, done.stderr[-2000:]
        # Epochs 0-1 are stage 1, 2-4 stage 2, 5-6 stage 3; killed in the middle of each.
        for kill in ((1, 3), (3, 2), (6, 4)):
            done = self.run(tmp_path / "parts", tmp_path / "parts.npz", *kill)
            assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
        done = self.run(tmp_path / "parts", tmp_path / "parts.npz")
        assert done.returncode == 0, done.stderr[-2000:]
        whole, parts = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "parts.npz")
        assert whole.files == parts.files
        for name in whole.files:
            np.testing.assert_array_equal(whole[name], parts[name], err_msg=name)

    @pytest.mark.usefixtures("eagerly")
    def test_arrays_are_seen_in_the_order_of_an_uninterrupted_run(self, tmp_path):
        stages = Stages(epochs=(1, 2, 1))

        def begin():
            keras.utils.set_random_seed(4)
            return all_kinds(4, 0.5)

        whole = begin()
        finetune(whole, task(), stages=stages, batch_size=32, verbose=0)
        parts = begin()

        def interrupt(batch, logs):
            if batch == 2 and (tmp_path / "finetune_state.1.npz").exists():
                raise KeyboardInterrupt

        callback = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
        args = {"stages": stages, "batch_size": 32, "workdir": tmp_path, "verbose": 0}
        with pytest.raises(KeyboardInterrupt):
            finetune(parts, task(), callbacks=[callback], **args)
        parts = begin()
        finetune(parts, task(), **args)
        for a, b in zip(whole.weights, parts.weights, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=a.path)
        # Once more: it is finished, so nothing is trained.
        again = begin()
        history = finetune(again, task(), **args)
        assert len(history.history["loss"]) == 4
        np.testing.assert_array_equal(again(task()[0]), parts(task()[0]))
        with pytest.raises(ValueError, match="another run"):
            finetune(again, task(), **{**args, "stages": Stages(epochs=2)})

    def test_mirrored_strategy(self):
        done = self.run("--mirrored")
        assert done.returncode == 0, done.stderr[-3000:]
