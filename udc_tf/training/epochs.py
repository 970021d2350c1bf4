"""Training data whose order depends on nothing but the epoch, so that a run can resume."""

import keras
import numpy as np
import tensorflow as tf


class EpochData:
    """Batches of a data set, pass by pass.

    Args:
        data: a batched `tf.data.Dataset` of `(x, y)` or `(x, y, sample_weight)`, of which one pass
            is an epoch; or a tuple of arrays, which are shuffled anew in every epoch.
        batch_size: for arrays.
        seed: for arrays.

    Example:

    >>> data = EpochData((np.arange(5), np.arange(5)), batch_size=2)
    >>> data.steps
    3
    >>> len(list(data.dataset))
    3
    """

    def __init__(self, data, batch_size: int = 128, seed: int = 0):
        # Read when a pass begins; a pass that nobody takes a batch from has not begun.
        self._pass = tf.Variable(0, dtype=tf.int64, trainable=False, name="data_pass")
        self._is_dataset = isinstance(data, tf.data.Dataset)
        if self._is_dataset:
            self._given = data
            # A concatenation makes its second part's iterator at the first batch, so that iterators
            # which Keras makes and never uses do not advance the seeds of a shuffled data set.
            self.dataset = data.take(0).concatenate(data)
            self.steps = int(data.cardinality())
            if self.steps == tf.data.INFINITE_CARDINALITY:
                raise ValueError(
                    "The training data never ends: an epoch must be one pass of it. Use "
                    f"`.take(steps)`, or leave out `.repeat()`. Received: {data}"
                )
        elif isinstance(data, (tuple, list)) and len(data) in (2, 3):
            arrays = tuple(np.asarray(a) for a in data)
            self.dataset = self._shuffled(arrays, batch_size, seed)
            self.steps = -(-len(arrays[0]) // batch_size)
        else:
            raise ValueError(
                "The training data must be a batched tf.data.Dataset or a tuple of arrays. "
                f"Received: {type(data)}"
            )
        if self.steps < 0:
            self.steps = sum(1 for _ in data)
            self._passed = 1
        else:
            self._passed = 0

    @property
    def passed(self) -> int:
        """Passes begun so far."""
        return self._passed

    def begin_pass(self) -> None:
        """To be called before each pass."""
        self._pass.assign(self._passed)
        self._passed += 1

    def skip_to(self, passed: int) -> None:
        """Brings the order to where it was after `passed` passes."""
        if self._is_dataset:
            for _ in range(self._passed, passed):
                next(iter(self._given), None)
        self._passed = passed

    def inputs(self, batches: int) -> list:
        """The inputs of the first batches of the next pass."""
        self.begin_pass()
        return [batch[0] for batch in self.dataset.take(batches)]

    def batch_of_zeros(self):
        """One batch of the right shapes and types."""

        def zeros(spec):
            return np.zeros([1 if d is None else d for d in spec.shape], spec.dtype.as_numpy_dtype)

        return keras.tree.map_structure(zeros, self.dataset.element_spec)

    def _shuffled(self, arrays, batch_size, seed):
        tensors = tuple(tf.constant(a) for a in arrays)
        count = len(arrays[0])

        def one_pass(_):
            seeds = tf.stack([tf.constant(seed, tf.int64), self._pass])
            order = tf.random.experimental.stateless_shuffle(tf.range(count), seeds)
            return tf.data.Dataset.from_tensor_slices(order).batch(batch_size)

        indices = tf.data.Dataset.from_tensors(0).flat_map(one_pass)
        return indices.map(lambda i: tuple(tf.gather(t, i) for t in tensors)).apply(
            tf.data.experimental.assert_cardinality(-(-count // batch_size))
        )
