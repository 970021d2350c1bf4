"""What a training needs to know of its data: what they are, their length, a few batches of them."""

import math
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree


def is_arrays(x: Any) -> bool:
    """Whether x is an array or a structure of arrays (not a dataset, PyDataset or generator).

    >>> is_arrays({"left": np.zeros(3), "right": [np.zeros(3)]}), is_arrays(iter([np.zeros(3)]))
    (True, False)
    """
    leaves = tree.flatten(x)
    return bool(leaves) and all(hasattr(leaf, "__array__") for leaf in leaves)


def each(function: Callable[[Any], Any], arrays: Any) -> Any:
    """The function on every array of the structure; None, as for missing labels, stays None."""
    return tree.map_structure(lambda a: None if a is None else function(a), arrays)


def fits_shape(declared: Sequence[int | None], shape: Sequence[int | None]) -> bool:
    """Whether data of `shape` fit a model's `declared` one, in which None is any number.

    >>> fits_shape((None, None, 3), (32, 32, 3)), fits_shape((32, 3), (32, 1)), fits_shape((3,), ())
    (True, False, False)
    """
    if len(declared) != len(shape):
        return False
    return all(d in (None, s) for d, s in zip(declared, shape, strict=True))


def steps_per_epoch(x: Any, batch_size: int | None, given: int | None) -> int:
    """Steps of one epoch; schedules need it before the first.

    Where a data set does not know its length, one pass of it is counted.

    >>> steps_per_epoch(tf.data.Dataset.range(9).filter(lambda i: i > 4).batch(2), None, None)
    2
    """
    if given is not None:
        return given
    steps = None
    if is_arrays(x):
        steps = math.ceil(len(tree.flatten(x)[0]) / (batch_size or 32))
    elif isinstance(x, tf.data.Dataset):
        steps = int(x.cardinality())
        if steps == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "The data set never ends: give `steps_per_epoch`, or leave out `.repeat()`. "
                f"Received: {x}"
            )
        if steps == tf.data.UNKNOWN_CARDINALITY:
            steps = sum(1 for _ in x)
        steps = steps or None
    elif isinstance(x, keras.utils.PyDataset):
        steps = x.num_batches
    if steps is None:
        raise ValueError(
            "The length of an epoch is needed, for the schedules: give `steps_per_epoch`, or data "
            f"of known length. Received: {type(x).__name__}"
        )
    return steps


def checked_arrays(x: Any, y: Any = None, sample_weight: Any = None) -> tuple:
    """`(x,)`, `(x, y)` or `(x, y, sample_weight)`, with tuples for lists, which tf.data has not.

    Raises:
        ValueError: they differ in length, or an input is not finite.
    """
    given = (x, y, sample_weight)
    count = 3 if sample_weight is not None else 2 if y is not None else 1
    arrays = each(_as_array, tree.lists_to_tuples(given[:count]))
    lengths = {len(leaf) for leaf in tree.flatten(arrays) if leaf is not None}
    if len(lengths) > 1:
        raise ValueError(
            f"Inputs and labels must have the same number of examples. Received: {sorted(lengths)}"
        )
    for leaf in tree.flatten(arrays[0]):
        if np.issubdtype(np.asarray(leaf).dtype, np.floating) and not np.isfinite(leaf).all():
            raise ValueError("The training data contain NaN or infinite values.")
    return arrays


def split_off(arrays: tuple, share: float) -> tuple[tuple, tuple]:
    """The first part for training, the last `share` of the examples for validation, as in Keras."""
    cut = int(len(tree.flatten(arrays)[0]) * (1 - share))
    return each(lambda a: a[:cut], arrays), each(lambda a: a[cut:], arrays)


def _as_array(value: Any) -> Any:
    return value if tf.is_tensor(value) else np.asarray(value)


def labels_of(data: Any) -> Any:
    """The labels of a tuple of inputs and labels; None where data are anything else."""
    return data[1] if isinstance(data, tuple) and len(data) > 1 else None


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
    outputs: Sequence[Any] = getattr(model, "outputs", None) or ()
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

    def filled(*batch: Any) -> Any:
        size = tf.shape(tree.flatten(batch)[0])[0]
        rows = tf.range(tf.maximum(size, replicas)) % size
        batch = tree.map_structure(lambda t: tf.gather(t, rows), batch)
        return batch if len(batch) > 1 else batch[0]

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.map(filled).with_options(options).prefetch(2)


def of_length(data: tf.data.Dataset, steps: int, one_pass: bool) -> tf.data.Dataset:
    """The data set such that Keras knows how long an epoch of `steps` is.

    Where it does not, it runs a step too many, at whose end there are no data; and where an epoch
    is not one pass, it ends the training with the data set.
    """
    if not one_pass:
        return data.repeat()
    return data.apply(tf.data.experimental.assert_cardinality(steps))


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


def remembering(
    data: Any, batch_size: int | None, batches: int
) -> tuple[Any, Iterable[Any] | None]:
    """Training data, and the inputs of their first batches.

    A generator gives them but once: it is wrapped, and they are there when they have passed.
    """
    if not isinstance(data, types.GeneratorType):
        return data, first_batches(data, batch_size, batches)
    seen: deque[Any] = deque()  # a list would be copied when it becomes an attribute of a model

    def passing() -> Iterator[Any]:
        for item in data:
            if len(seen) < batches:
                seen.append(_inputs_only(*_as_tuple(item)))
            yield tree.lists_to_tuples(item)  # as Keras does for arrays; tf.data has no lists

    return passing(), seen


def batch_signature(batch: Any) -> Any:
    """The specification of batches like this one, of any length."""
    return each(
        lambda a: tf.TensorSpec([None, *np.shape(a)[1:]], tf.as_dtype(_as_array(a).dtype)), batch
    )


def _as_tuple(item: Any) -> tuple:
    return item if isinstance(item, tuple) else (item,)


def _inputs_only(*item: Any) -> Any:
    return item[0]
