"""A user's own network: `module:function`, or a saved .keras file."""

import importlib
import inspect
import os
import sys

import keras

from udc_tf.cli.usage import UsageError


def load_model(source: str, input_shape: tuple[int, ...], classes: int) -> keras.Model:
    """The network that `source` names.

    Args:
        source: "module:function", importable from here or from the current folder, or a .keras
            file. The function is given `input_shape` and `classes`, as far as it takes them.
        input_shape, classes: of the data.

    Example:

    >>> load_model("udc_tf.models:small_cnn", (8, 8, 1), 10).name
    'small_cnn'
    """
    if source.endswith(".keras"):
        model = _saved(source)
    else:
        function = _function(source)
        accepted = inspect.signature(function).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        given = {"input_shape": tuple(input_shape), "classes": classes}
        model = function(**{k: v for k, v in given.items() if anything or k in accepted})
    if not isinstance(model, keras.Model):
        raise UsageError(
            f"--model={source} must give a keras.Model. Received: {type(model).__name__} of "
            f"{type(model).__module__}"
        )
    expected = tuple(model.input_shape[1:])
    if len(expected) != len(input_shape) or any(
        e not in (None, s) for e, s in zip(expected, input_shape, strict=True)
    ):
        raise UsageError(
            f"The network of --model={source} takes inputs of {expected}, the data are of "
            f"{tuple(input_shape)}: give the function an argument `input_shape`, or other data."
        )
    return model


def _saved(path: str) -> keras.Model:
    if not os.path.isfile(path):
        raise UsageError(f"There is no file {path} for --model.")
    try:
        return keras.saving.load_model(path)
    except Exception as error:  # whatever is inside the file
        raise UsageError(f"--model={path} cannot be loaded: {_first_line(error)}") from error


def _function(source: str):
    module_name, colon, name = source.partition(":")
    if not colon or not module_name or not name:
        raise UsageError(
            "--model is module:function, such as --model=mynetworks:tiny, or a .keras file. "
            f"Received: {source!r}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a script of its own has only its own folder there
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"--model={source} cannot be imported: {error}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        have = ", ".join(n for n, v in vars(module).items() if inspect.isfunction(v)) or "none"
        raise UsageError(f"{module_name} has no function {name!r}. Its functions: {have}.")
    return function


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
