"""What a search needs to know of its training data: its length, its order, a few batches of it."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree


def is_arrays(x: Any) -> bool:
    """Whether x is one or several arrays (rather than a dataset, PyDataset or generator)."""
    leaves = tree.flatten(x)
    return bool(leaves) and all(
        isinstance(leaf, np.ndarray) or tf.is_tensor(leaf) for leaf in leaves
    )


def fits_shape(declared: Sequence[int | None], shape: Sequence[int | None]) -> bool:
    """Whether data of `shape` fit a model's `declared` one, in which None is any number.

    >>> fits_shape((None, None, 3), (32, 32, 3)), fits_shape((32, 3), (32, 1)), fits_shape((3,), ())
    (True, False, False)
    """
    if len(declared) != len(shape):
        return False
    return all(d in (None, s) for d, s in zip(declared, shape, strict=True))


def steps_per_epoch(x: Any, batch_size: int | None, given: int | None) -> int:
    """Steps of one epoch; schedules need it before the first."""
    if given is not None:
        return given
    steps = None
    if is_arrays(x):
        steps = math.ceil(len(tree.flatten(x)[0]) / (batch_size or 32))
    elif isinstance(x, tf.data.Dataset):
        known = int(x.cardinality())
        steps = known if known > 0 else None
    elif isinstance(x, keras.utils.PyDataset):
        steps = x.num_batches
    if steps is None:
        raise ValueError(
            "The length of an epoch is needed, for the schedules: give `steps_per_epoch`, or data "
            f"of known length. Received: {type(x).__name__}"
        )
    return steps


def shuffled_dataset(arrays: tuple, batch_size: int, seed: int, epoch) -> tf.data.Dataset:
    """Batches in an order that depends only on the seed and on `epoch()`.

    A run that is interrupted and resumed so sees the same batches as one that was not; Keras'
    own shuffling starts anew with the process.
    """
    arrays = tree.map_structure(tf.convert_to_tensor, arrays)
    size = len(tree.flatten(arrays)[0])

    def batches() -> Iterator[np.ndarray]:
        order = np.random.default_rng([seed, epoch()]).permutation(size)
        for start in range(0, size, batch_size):
            yield order[start : start + batch_size]

    indices = tf.data.Dataset.from_generator(
        batches, output_signature=tf.TensorSpec([None], tf.int64)
    )
    data = indices.map(lambda i: tree.map_structure(lambda a: tf.gather(a, i), arrays))
    data = data.apply(tf.data.experimental.assert_cardinality(math.ceil(size / batch_size)))
    return data.prefetch(2)


def as_dataset(
    x: Any,
    y: Any,
    batch_size: int,
    seed: int,
    steps_done: Callable[[], int],
    fit_options: Mapping[str, Any],
) -> tuple[tf.data.Dataset, dict[str, Any]]:
    """Arrays as a dataset whose order survives a resume, and what is left of `fit`'s options."""
    for leaf in tree.flatten(x):
        if np.issubdtype(np.asarray(leaf).dtype, np.floating) and not np.isfinite(leaf).all():
            raise ValueError("The training data contain NaN or infinite values.")
    lengths = {len(leaf) for leaf in tree.flatten((x, y)) if leaf is not None}
    if len(lengths) > 1:
        raise ValueError(
            f"Inputs and labels must have the same number of examples. Received: {sorted(lengths)}"
        )
    options = dict(fit_options)
    shuffle = options.pop("shuffle", True)
    options["shuffle"] = False  # of Keras: the dataset made here brings its own
    weight = options.pop("sample_weight", None)
    arrays = (x, y) if weight is None else (x, y, weight)
    split = options.pop("validation_split", 0.0)
    if split and options.get("validation_data") is None:  # as in Keras, data that are given win
        cut = int(lengths.pop() * (1 - split))
        options["validation_data"] = tree.map_structure(lambda a: a[cut:], arrays)
        arrays = tree.map_structure(lambda a: a[:cut], arrays)
    if not shuffle:
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size), options
    steps = steps_per_epoch(arrays[0], batch_size, None)
    return shuffled_dataset(arrays, batch_size, seed, lambda: steps_done() // steps), options


_TAKE_CLASS_NUMBERS = ("sparse_categorical_crossentropy", "crossentropy")


def check_class_numbers(y: Any, loss: Any, model: keras.Model) -> None:
    """Raises if arrays of class numbers name classes that the model does not have.

    On a processor training would stop at them, on a GPU it would go on with a loss of NaN.

    Args:
        y: labels; checked if they are one array and the loss takes class numbers.
        loss: as for `keras.Model.compile`.
        model: of one output, whose last axis is the classes.
    """
    name = getattr(loss, "name", getattr(loss, "__name__", loss))
    if not isinstance(name, str) or name not in _TAKE_CLASS_NUMBERS or not is_arrays(y):
        return
    outputs = getattr(model, "outputs", None) or ()
    if tree.is_nested(y) or len(outputs) != 1:
        return
    labels, shape = np.asarray(y), outputs[0].shape
    classes = shape[-1]
    if classes is None or (len(shape) == labels.ndim and labels.shape[-1] == classes):
        return  # rows of probabilities
    labels = labels[labels != getattr(loss, "ignore_class", None)]
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(
            f"Labels must be from 0 to {classes - 1}, as the network has {classes} outputs. "
            f"Received: {labels.min()} to {labels.max()}"
        )
    if np.any(labels != np.floor(labels)):
        raise ValueError(
            "Labels must be whole numbers, the classes. Received: "
            f"{labels[labels != np.floor(labels)][0]}"
        )


def for_replicas(data: tf.data.Dataset, replicas: int) -> tf.data.Dataset:
    """The same batches, each of which can be cut into a part for every replica.

    For one replica they are as they were. For several, a last batch of fewer examples goes round,
    so that none is left without any.

    >>> data = for_replicas(tf.data.Dataset.range(5).batch(4), 2)
    >>> [batch.tolist() for batch in data.as_numpy_iterator()]
    [[0, 1, 2, 3], [4, 4]]
    """
    if replicas == 1:
        return data

    def filled(*batch):
        size = tf.shape(tree.flatten(batch)[0])[0]
        rows = tf.range(tf.maximum(size, replicas)) % size
        batch = tree.map_structure(lambda t: tf.gather(t, rows), batch)
        return batch if len(batch) > 1 else batch[0]

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.map(filled).with_options(options).prefetch(2)


def first_batches(x: Any, batch_size: int | None, batches: int) -> Iterable[Any] | None:
    """Inputs of the first few batches, without labels; None if looking would use them up."""
    batch_size = batch_size or 32
    if is_arrays(x):
        size = len(tree.flatten(x)[0])
        starts = range(0, min(size, batches * batch_size), batch_size)
        return [tree.map_structure(lambda a, s=s: a[s : s + batch_size], x) for s in starts]
    if isinstance(x, tf.data.Dataset):
        return x.take(batches).map(_inputs_only)
    if isinstance(x, keras.utils.PyDataset):
        count = min(batches, x.num_batches or batches)
        return [_inputs_only(*_as_tuple(x[i])) for i in range(count)]
    return None


def _as_tuple(item: Any) -> tuple:
    return item if isinstance(item, tuple) else (item,)


def _inputs_only(*item):
    return item[0]
