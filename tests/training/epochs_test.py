"""The passes over training data: what they contain, and where a resumed run goes on."""

import keras
import numpy as np
import pytest

from udc_tf.training.epochs import EpochData, resumable_batches, shuffled_indices


class _Turning(keras.utils.PyDataset):
    """Batches in an order that turns by one with every epoch."""

    def __init__(self):
        super().__init__()
        self.turns = 0

    def __len__(self):
        return 3

    def __getitem__(self, i):
        batch = np.full(2, (i + self.turns) % 3)
        return [batch, batch], {"label": batch}

    def on_epoch_end(self):
        self.turns += 1


def _first_of_pass(data):
    data.begin_pass()
    return [int(y["label"][0]) for _, y in data.dataset]


def _inputs(dataset):
    return [batch[0].tolist() for batch in dataset.as_numpy_iterator()]


def test_the_order_depends_on_seed_and_epoch_alone():
    def orders(seed, epochs):
        epoch = iter(epochs).__next__
        indices = shuffled_indices(10, 4, seed, epoch)
        return [[tuple(map(tuple, b)) for b in indices.as_numpy_iterator()] for _ in epochs]

    first, second = orders(3, [0, 1])
    assert sorted(i for batch, _ in first for i in batch) == list(range(10))
    assert orders(3, [1, 0]) == [second, first] and first != second
    assert orders(4, [0]) != [first] and orders(-3, [0]) != [first]
    keys = [key for one_pass in (first, second) for _, key in one_pass]
    assert len(set(keys)) == len(keys) == 6


def test_both_trainings_shuffle_arrays_alike():
    x = np.arange(10)
    data, steps_done = EpochData((x, x), batch_size=4, seed=3), 0
    searched = resumable_batches((x, x), 4, 3, lambda: steps_done)
    passes = []
    for steps_done in (0, 3, 6):  # noqa: B007 -- the lambda reads it
        data.begin_pass()
        passes.append(_inputs(data.dataset))
        assert passes[-1] == _inputs(searched)
    resumed = EpochData((x, x), batch_size=4, seed=3)
    resumed.skip_to(2)
    resumed.begin_pass()
    assert _inputs(resumed.dataset) == passes[2] != passes[1]
    in_order = resumable_batches((x, x), 4, 3, lambda: steps_done, shuffle=False)
    assert _inputs(in_order) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_an_iterator_that_nobody_takes_a_batch_from_is_no_pass():
    indices = shuffled_indices(4, 4, seed=0)
    iter(indices)
    (first,) = shuffled_indices(4, 4, seed=0, epoch=lambda: 0)
    np.testing.assert_array_equal(next(iter(indices))[0], first[0])


def test_structures_are_shuffled_together():
    x = np.arange(10)
    data = EpochData(([x, {"b": 2 * x}], (3 * x,)), batch_size=4)
    data.begin_pass()
    (first, second), (third,) = next(iter(data.dataset))
    np.testing.assert_array_equal(2 * first, second["b"])
    np.testing.assert_array_equal(3 * first, third)
    assert data.steps == 3 and first.numpy().tolist() != [0, 1, 2, 3]


def test_a_py_dataset_goes_on_where_it_was():
    data = EpochData(_Turning())
    passes = [_first_of_pass(data) for _ in range(4)]
    assert passes == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]] and data.steps == 3
    resumed = EpochData(_Turning())
    resumed.skip_to(2)
    assert _first_of_pass(resumed) == passes[2]


def test_a_generator_needs_the_length_of_an_epoch():
    def numbers():
        for n in range(9):
            yield np.full(2, n), {"label": np.full(2, n)}

    with pytest.raises(ValueError, match="steps_per_epoch"):
        EpochData(numbers())
    data = EpochData(numbers(), steps=2)
    assert [_first_of_pass(data) for _ in range(2)] == [[0, 1], [2, 3]]


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"same number of examples. Received: \[3, 4\]"):
        EpochData((np.zeros(3), np.zeros(4)))
    with pytest.raises(ValueError, match=r"must be a tuple of arrays.*Received"):
        EpochData({"x": np.zeros(3)})
