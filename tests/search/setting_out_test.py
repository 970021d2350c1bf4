"""A small search that listens to its data."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from udc_tf.search import setting_out
from udc_tf.search.extract import repaired_choice

_EPOCHS = 6
_SPACE = udc_tf.SearchSpace(
    widths=(0.125, 0.25, 0.5, 0.75, 1.0), sparsities=(0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
)


def _data():
    """Four kinds of images beside images of noise."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 256)
    kinds = np.kron(rng.normal(size=(4, 2, 2, 1)), np.ones((3, 3, 1)))
    signal = kinds[y] + 0.7 * rng.normal(size=(256, 6, 6, 1))
    return [signal, rng.normal(size=signal.shape)], y


def _search(**changes):
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((6, 6, 1), name=name) for name in ("image", "noise")]
    towers = []
    for x, name in zip(inputs, ("signal", "noise"), strict=True):
        x = kl.ReLU()(kl.BatchNormalization(momentum=0.9)(kl.Conv2D(16, 3, name=f"{name}_1")(x)))
        x = kl.Dropout(0.1, seed=1)(kl.Conv2D(16, 3, activation="relu", name=f"{name}_2")(x))
        towers.append(kl.GlobalAveragePooling2D()(x))
    outputs = kl.Dense(4, name="classes")(kl.Concatenate()(towers))
    settings = udc_tf.SearchSettings(**{"samples": 2, "evidence": 0.6, **changes})
    target = udc_tf.Flash(6_000)
    search = udc_tf.make_searchable(keras.Model(inputs, outputs), _SPACE, target, settings)
    search.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return search


def _share(search, scores=None):
    """The signal's share of the towers' weights that are not zero."""
    chosen = repaired_choice(search, scores)
    counts = search.problem.bound[0].maps
    of = counts.counts(counts.one_hot(chosen))
    kept = dict(
        zip((la.name for la in search.problem.plan.layers), of.weights * of.nonzeros, strict=True)
    )
    signal, noise = (
        sum(v for k, v in kept.items() if k.startswith(n)) for n in ("signal", "noise")
    )
    return signal / (signal + noise)


@pytest.fixture(scope="module")
def searched():
    search = _search()
    x, y = _data()
    search.fit(x, y, batch_size=16, epochs=_EPOCHS, verbose=0)
    return search


def test_bytes_go_where_the_data_say(searched):
    guess = searched.state.guess.numpy()
    assert _share(searched, guess) < 0.65
    assert _share(searched) > 0.85


def test_changes_tell_guess_start_and_end(searched):
    changes = {c.name: c for c in searched.changes()}
    assert set(changes) == {d.name for d in searched.problem.plan.decisions}
    moved = [c for c in changes.values() if c.guess != c.start]
    assert moved and {c.name.split("/")[1].split("_")[0] for c in moved if c.start < c.guess} == {
        "noise"
    }
    assert all(c.price >= 0 for c in changes.values())
    said = []
    searched.summary(print_fn=lambda text, **_: said.append(text))
    assert "guess" in said[-1] and "width/noise_1" in said[-1]


def test_an_interrupted_run_listens_as_it_would_have(searched, tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:  # between two moments
                raise KeyboardInterrupt

    x, y = _data()
    for callbacks in ([Interrupt()], []):
        search = _search()
        with pytest.raises(KeyboardInterrupt) if callbacks else np.errstate():
            search.fit(
                x,
                y,
                batch_size=16,
                epochs=_EPOCHS,
                verbose=0,
                callbacks=callbacks,
                workdir=tmp_path,
            )
    for name in ("logits", "start", "guess", "harms"):
        expected, found = (getattr(s.state, name).numpy() for s in (searched, search))
        np.testing.assert_array_equal(expected, found, err_msg=name)


def test_a_look_at_the_loss_leaves_the_network_as_it_was(searched):
    kept = [*searched.network.variables, *searched.metrics_variables]
    before, start = [v.numpy() for v in kept], searched.state.start.numpy()
    setting_out.listen(searched, number=0, rounds=1)
    for variable, value in zip(kept, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)
    assert (searched.state.start.numpy() != start).any()


def test_only_what_can_be_afforded_is_measured(searched):
    assert len(setting_out.moments(searched)) == 4  # three of measuring, one of settling
    short = _search(evidence=1e-3)
    short.state.planned.assign(96)
    short.labelled = searched.labelled
    assert setting_out.affordable_batches(short) < 0.1
    assert setting_out.moments(short)[0] == short.state.warmup_steps()
    assert len(setting_out.moments(short)) == 2


def test_a_short_run_puts_rounds_together_until_there_is_enough_to_hear(searched):
    planned = searched.state.planned.numpy()
    searched.state.planned.assign(58)  # each of three rounds may take two batches of 16 images
    assert len(setting_out.moments(searched)) == 4
    heard = []
    for number in (1, 2):
        searched.set_out()
        setting_out.listen(searched, number, rounds=3)
        heard.append(bool((searched.state.start.numpy() != searched.state.guess.numpy()).any()))
    searched.state.planned.assign(planned)
    assert heard == [True, False]
