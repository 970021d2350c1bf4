"""The passes over training data: what they contain, and where a resumed run goes on."""

import keras
import numpy as np
import pytest

from udc_tf.training.epochs import EpochData


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
