"""What a compression is given: a trained model and some examples, checked before any work."""

import importlib
import os
import pathlib
from typing import Any

import keras
import numpy as np

from udc_tf.finetune.losses import Crossentropy
from udc_tf.graph.traceable import as_functional
from udc_tf.saved_models import load_model
from udc_tf.training.batch_norm import batch_norm_layers
from udc_tf.training.divergence import not_finite

_FEWEST = 8
_LARGEST = 1e9  # in single precision, sums of squares of what is larger are not finite
_OF_CLASSES = (
    keras.losses.CategoricalCrossentropy,
    keras.losses.SparseCategoricalCrossentropy,
    Crossentropy,
)
_REMEDY = "save the trained model anew"


def trained_model(model: keras.Model | str | os.PathLike) -> keras.Model:
    """The model, read from its file if it is one, if it has been trained.

    Raises:
        ValueError: it is no Keras model, has values that are not finite, or was never trained.
    """
    if isinstance(model, (str, os.PathLike)):
        path = pathlib.Path(model)
        if not path.is_file():
            raise ValueError(f"A trained model is a .keras or .h5 file. Received: {str(path)!r}")
        model = load_model(path, _REMEDY, compile=True)  # its loss tells of the outputs
    if not isinstance(model, keras.Model):
        raise ValueError(f"A Keras model is needed, or its file. Received: {model!r}")
    as_functional(model)  # refuses subclassed ones
    if (bad := not_finite(model)) is not None:
        raise ValueError(
            f"A trained model has finite weights; train anew with a smaller learning rate. "
            f"Received: NaN or infinity in `{bad}`"
        )
    sizes = [float(np.abs(w).max(initial=0)) for w in model.get_weights()]
    if (largest := max(sizes, default=0.0)) > _LARGEST:
        raise ValueError(
            f"Weights must be below {_LARGEST:.0e}: no int8 network computes with larger ones. "
            f"Received: up to {largest:.1e} in {model.name}"
        )
    if _is_fresh(model):
        raise ValueError(
            "A trained model is needed: all biases and batch norms of this one are as they were "
            f"made. Search instead (udc_tf.make_searchable), or train it. Received: {model.name}"
        )
    return model


def gives_logits(model: keras.Model) -> bool:
    """Whether the loss that a model was compiled with takes its outputs for logits of classes.

    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    >>> model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> gives_logits(model)
    True
    """
    loss = getattr(model, "loss", None)
    return isinstance(loss, _OF_CLASSES) and bool(loss.from_logits)


def _is_fresh(model: keras.Model) -> bool:
    """Whether everything that begins with zeros or ones still has them, if there is such."""
    marks: list[np.ndarray] = []
    for norm in batch_norm_layers(model):
        values = {v.name: v.numpy() for v in norm.weights}
        marks += [values[n] for n in ("beta", "moving_mean") if n in values]
        marks += [values[n] - 1 for n in ("gamma", "moving_variance") if n in values]
    for layer in model.layers:
        initializer = getattr(layer, "bias_initializer", None)
        if getattr(layer, "bias", None) is not None and isinstance(
            initializer, keras.initializers.Zeros
        ):
            marks.append(layer.bias.numpy())
    return bool(marks) and not any(mark.any() for mark in marks)


def take_examples(model: keras.Model, data: Any, most: int) -> list[np.ndarray]:
    """One array per input, of at most `most` examples.

    Raises:
        ValueError: they are too few, all alike, not finite or of another shape.
    """
    ranges = importlib.import_module("udc_tf.export.ranges")
    lower = importlib.import_module("udc_tf.export.lowering").lower
    errors = importlib.import_module("udc_tf.export.errors")
    try:
        found = ranges.take_samples(data, lower(model), getattr(model, "input", None), most)
    except errors.ExportError as error:
        raise ValueError(str(error)) from error
    count = len(found[0])
    if any(len(x) != count for x in found):
        raise ValueError(
            "All inputs must have the same number of examples. Received: "
            f"{', '.join(str(len(x)) for x in found)}"
        )
    if count < _FEWEST:
        raise ValueError(
            f"At least {_FEWEST} examples are needed, some hundred are better. Received: {count}"
        )
    if (largest := max(float(np.abs(x).max()) for x in found)) > _LARGEST:
        raise ValueError(
            f"Examples must be scaled as in training, and below {_LARGEST:.0e}. Received: up to "
            f"{largest:.1e}"
        )
    if all((x == x[:1]).all() for x in found):
        raise ValueError(
            f"Examples must differ, as those do that the network will see. Received: {count} equal "
            "ones"
        )
    return found


def checked_labels(model: keras.Model, labels: Any, count: int) -> np.ndarray | None:
    """Class numbers of the first `count` examples; None if there are none.

    Raises:
        ValueError: they do not fit the examples or the model's classes.
    """
    if labels is None:
        return None
    found = np.asarray(labels)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    outputs = model.outputs  # a Sequential model that was loaded has no `output`
    classes = outputs[0].shape[-1] if len(outputs) == 1 and len(outputs[0].shape) == 2 else None
    if classes is None:
        raise ValueError(
            "Labels serve a classifier, of one output with a number for each class. Received: "
            f"labels for outputs of {[tuple(o.shape) for o in outputs]}"
        )
    if found.ndim == 2 and found.shape[1] == classes:
        found = found.argmax(axis=1)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer) or len(found) < count:
        raise ValueError(
            f"`labels` must be one class number for each of the {count} examples. Received: "
            f"{found.dtype} of shape {found.shape}"
        )
    found = found[:count]
    if not 0 <= found.min() <= found.max() < classes:
        raise ValueError(
            f"The model has {classes} classes, numbered from 0. Received: labels from "
            f"{found.min()} to {found.max()}"
        )
    return found
