"""Training data whose order depends on nothing but the epoch, so that a run can resume.

All shuffling of this project is `shuffled_indices`: `SearchModel.fit` and `finetune` gather arrays
by them (`resumable_batches`, `EpochData`), `udc_tf.models.data` also images that it augments or
reads from files.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from udc_tf.training import training_data
from udc_tf.training.training_data import is_arrays


def shuffled_indices(
    size: int, batch_size: int, seed: int, epoch: Callable[[], int] | None = None
) -> tf.data.Dataset:
    """Batches of the numbers below `size`, in an order that depends on seed and epoch alone.

    A run that is interrupted and resumed so sees the same batches as one that was not; Keras' own
    shuffling starts anew with the process.

    Args:
        size: how many examples there are.
        batch_size: of all batches but the last.
        seed: of the order.
        epoch: tells the epoch when a pass begins, which is when its first batch is taken; by
            default passes are counted.

    Returns:
        A data set of pairs: the indices, and two whole numbers that differ from batch to batch and
        from epoch to epoch, to seed an augmentation with.

    Example:

    >>> [i.tolist() for i, _ in shuffled_indices(3, 2, seed=0).as_numpy_iterator()]
    [[2, 0], [1]]
    """
    if epoch is None:
        epoch = itertools.count().__next__

    def one_pass() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        number = epoch()
        order = np.random.default_rng([seed % 2**63, number]).permutation(size)
        for batch, start in enumerate(range(0, size, batch_size)):
            yield order[start : start + batch_size], np.array([seed * 7919 + number, batch])

    signature = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([2], tf.int64))
    indices = tf.data.Dataset.from_generator(one_pass, output_signature=signature)
    return indices.apply(tf.data.experimental.assert_cardinality(math.ceil(size / batch_size)))


def shuffled_batches(
    arrays: tuple, batch_size: int, seed: int, epoch: Callable[[], int]
) -> tf.data.Dataset:
    """Batches of arrays, or of structures of them, by `shuffled_indices`."""
    tensors = training_data.each(tf.convert_to_tensor, arrays)
    size = len(keras.tree.flatten(arrays)[0])
    indices = shuffled_indices(size, batch_size, seed, epoch)
    return indices.map(
        lambda i, _: training_data.each(lambda t: tf.gather(t, i), tensors)
    ).prefetch(2)


def resumable_batches(
    arrays: tuple, batch_size: int, seed: int, steps_done: Callable[[], int], shuffle: bool = True
) -> tf.data.Dataset:
    """Batches of arrays for a training that counts its steps."""
    if not shuffle:
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)
    steps = training_data.steps_per_epoch(arrays[0], batch_size, None)
    return shuffled_batches(arrays, batch_size, seed, lambda: steps_done() // steps)


class EpochData:
    """Batches of a data set, pass by pass.

    Args:
        data: a tuple `(x, y)` or `(x, y, sample_weight)` of arrays or structures of arrays, which
            are shuffled anew in every epoch; or batches of such tuples: a `tf.data.Dataset`, of
            which one pass is an epoch, a `keras.utils.PyDataset`, or a generator.
        batch_size: for arrays.
        seed: for arrays.
        steps: batches of an epoch, for a generator and for a data set of which an epoch is not one
            pass: each epoch goes on where the one before ended.

    Example:

    >>> data = EpochData((np.arange(5), np.arange(5)), batch_size=2)
    >>> data.steps
    3
    >>> len(list(data.dataset))
    3
    """

    def __init__(self, data: Any, batch_size: int = 128, seed: int = 0, steps: int | None = None):
        self._given = data
        self._passed = 0
        self._in_windows = False
        if isinstance(data, tf.data.Dataset) and steps is not None:
            self.steps = steps
            self.dataset = tf.data.Dataset.from_generator(
                _Windows(data, steps, lambda: max(0, self._passed - 1)),
                output_signature=data.element_spec,
            ).apply(tf.data.experimental.assert_cardinality(steps))
            self._in_windows = True
        elif isinstance(data, tf.data.Dataset):
            # A concatenation makes its second part's iterator at the first batch, so that iterators
            # which Keras makes and never uses do not advance the seeds of a shuffled data set.
            self.steps = self._steps_of_dataset(data)
            self.dataset = training_data.of_length(
                data.take(0).concatenate(data), self.steps, one_pass=True
            )
        elif isinstance(data, keras.utils.PyDataset):
            self.steps = training_data.steps_per_epoch(data, None, steps)
            self.dataset = _from_batches(
                lambda: (data[i] for i in range(self.steps)), data[0], self.steps
            )
        elif isinstance(data, Iterator):
            self.steps = training_data.steps_per_epoch(data, None, steps)
            first = next(data)
            batches = itertools.chain([first], data)
            self.dataset = _from_batches(
                lambda: itertools.islice(batches, self.steps), first, self.steps
            )
        elif isinstance(data, (tuple, list)) and len(data) in (2, 3) and is_arrays(tuple(data)):
            arrays = training_data.checked_arrays(*data)
            self.dataset = shuffled_batches(
                arrays, batch_size, seed, lambda: max(0, self._passed - 1)
            )
            self.steps = int(self.dataset.cardinality())
        else:
            raise ValueError(
                "The training data must be a tuple of arrays, a batched tf.data.Dataset, a "
                f"keras.utils.PyDataset or a generator. Received: {type(data)}"
            )

    def _steps_of_dataset(self, data: tf.data.Dataset) -> int:
        if int(data.cardinality()) == tf.data.UNKNOWN_CARDINALITY:
            self._passed = 1  # it will be counted
        return training_data.steps_per_epoch(data, None, None)

    @property
    def passed(self) -> int:
        """Passes begun so far."""
        return self._passed

    def begin_pass(self) -> None:
        """To be called before each pass."""
        if self._passed and isinstance(self._given, keras.utils.PyDataset):
            self._given.on_epoch_end()
        self._passed += 1

    def skip_to(self, passed: int) -> None:
        """Brings the order to where it was after `passed` passes; a generator stays where it is."""
        for skipped in range(self._passed, passed):
            if isinstance(self._given, tf.data.Dataset) and not self._in_windows:
                next(iter(self._given), None)
            elif isinstance(self._given, keras.utils.PyDataset) and skipped:
                self._given.on_epoch_end()
        self._passed = passed

    def inputs(self, batches: int) -> list:
        """The inputs of the first batches of the next pass."""
        self.begin_pass()
        return [batch[0] for batch in self.dataset.take(batches)]


class _Windows:
    """Parts of `steps` batches of an endless row; called, gives the part that is due.

    A part depends on its number alone: what lies before it and was not taken is passed over.
    """

    def __init__(self, data: tf.data.Dataset, steps: int, number: Callable[[], int]):
        self._batches: Iterator | None = None
        self._data, self._steps, self._number = data.repeat(), steps, number
        self._taken = 0

    def __call__(self) -> Iterator:
        first = self._number() * self._steps
        if self._batches is None or first < self._taken:
            self._batches, self._taken = iter(self._data), 0
        while self._taken < first + self._steps:
            batch = next(self._batches)
            self._taken += 1
            if self._taken > first:
                yield batch


def _from_batches(batches: Callable[[], Iterable], first: tuple, count: int) -> tf.data.Dataset:
    """`count` batches like the first, asked for when a pass needs them."""
    dataset = tf.data.Dataset.from_generator(
        lambda: map(keras.tree.lists_to_tuples, batches()),
        output_signature=training_data.batch_signature(keras.tree.lists_to_tuples(first)),
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(count))
