"""A user's own network: `module:function`, or a saved .keras file."""

import importlib
import importlib.machinery
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import keras

from udc_tf import saved_models
from udc_tf.cli.usage import UsageError
from udc_tf.files import DamagedFileError
from udc_tf.training.training_data import fits_shape


def load_model(
    source: str,
    input_shape: tuple[int, ...] | None,
    classes: int,
    stored_in: str | os.PathLike | None = None,
) -> keras.Model:
    """The network that `source` names.

    Args:
        source: "module:function", importable from here or from the current folder, or a .keras
            file. The function is given `input_shape` and `classes`, as far as it takes them.
        input_shape, classes: of the data; None and 0 for a file of which nothing more is asked.
        stored_in: the work directory that names `source`, if the user did not in this call. A
            received folder must not choose what code runs: then the module must lie on the user's
            own import path, which neither the current folder nor the work directory belong to.

    Example:

    >>> load_model("udc_tf.models:small_cnn", (8, 8, 1), 10).name
    'small_cnn'
    """
    if source.endswith(".keras"):
        model = _saved(source)
    else:
        function = _function(source) if stored_in is None else _stored(source, stored_in)
        model = _called(function, source, tuple(input_shape or ()), classes)
    if not isinstance(model, keras.Model):
        raise UsageError(
            f"--model={source} must give a keras.Model. Received: {type(model).__name__} of "
            f"{type(model).__module__}"
        )
    try:
        shapes = [tuple(tensor.shape[1:]) for tensor in model.inputs]
    except (AttributeError, TypeError, ValueError):
        shapes = []
    if len(shapes) != 1:
        raise UsageError(
            f"--model={source} must give a functional model, or a Sequential one that begins with "
            f"a keras.Input, of one input. Received: a {type(model).__name__} of "
            f"{len(shapes) or 'unknown'} inputs"
        )
    if input_shape is not None and not fits_shape(shapes[0], input_shape):
        raise UsageError(
            f"The network of --model={source} takes inputs of {shapes[0]}, the data are of "
            f"{tuple(input_shape)}: give the function an argument `input_shape`, or other data."
        )
    return model


def _called(
    function: Callable[..., Any], source: str, input_shape: tuple[int, ...], classes: int
) -> Any:
    given = {"input_shape": input_shape, "classes": classes}
    try:
        accepted = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        accepted = []  # something built in, which does not tell
    anything = any(p.kind is p.VAR_KEYWORD for p in accepted)
    given = {k: v for k, v in given.items() if anything or k in {p.name for p in accepted}}
    others = [
        p.name
        for p in accepted
        if p.name not in given
        and p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if others:
        raise UsageError(
            f"The function of --model={source} is called with `input_shape` and `classes`, as far "
            f"as it takes them; all else needs a default. Received: {', '.join(others)}"
        )
    try:
        return function(**given)
    except Exception as error:  # whatever is wrong with the user's network
        raise UsageError(f"--model={source} cannot be built: {_where(error)}") from error


def _saved(path: str) -> keras.Model:
    if not os.path.isfile(path):
        raise UsageError(f"There is no file {path} for --model.")
    try:
        return saved_models.load_model(path, "save the model anew for --model", compile=True)
    except DamagedFileError as error:
        raise UsageError(str(error)) from error


def _function(source: str) -> Callable[..., Any]:
    module_name, name = _parts(source)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a script of its own has only its own folder there
    return _imported(source, module_name, name)


def _stored(source: str, folder: str | os.PathLike) -> Callable[..., Any]:
    module_name, name = _parts(source)
    top, function = module_name.partition(".")[0], None
    if top == "udc_tf":
        function = _imported(source, module_name, name)
    elif top not in sys.stdlib_module_names:
        everything = sys.path
        sys.path = own_import_path(folder)
        try:
            # Looked up first: an import by name would run whatever has it.
            if importlib.machinery.PathFinder.find_spec(top, sys.path) is not None:
                function = _imported(source, module_name, name)
        finally:
            sys.path = everything
    # Nor may a folder have just any function called: one that makes a network takes one of these.
    wanted = {"input_shape", "classes"}
    if function is None or wanted.isdisjoint(inspect.signature(function).parameters):
        raise UsageError(
            f"{os.path.join(folder, 'run.json')} names the network {source}, which is code: "
            f"if it is yours, name it yourself with --model={source}."
        )
    return function


def own_import_path(folder: str | os.PathLike) -> list[str]:
    """Where modules are looked for when a work directory names them.

    Not the current folder, unless PYTHONPATH has it, and nothing in the work directory.
    """
    chosen = {os.path.realpath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p}
    here, work = os.path.realpath(os.getcwd()), os.path.realpath(folder)
    found = []
    for entry in filter(None, sys.path):
        place = os.path.realpath(entry)
        inside = os.path.commonpath([place, work]) == work
        if not inside and (place != here or place in chosen):
            found.append(entry)
    return found


def _parts(source: str) -> tuple[str, str]:
    module_name, colon, name = source.partition(":")
    if not colon or not module_name or not name:
        raise UsageError(
            "--model is module:function, such as --model=mynetworks:tiny, or a .keras file. "
            f"Received: {source!r}"
        )
    return module_name, name


def _imported(source: str, module_name: str, name: str) -> Callable[..., Any]:
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever is in the user's file
        raise UsageError(f"--model={source} cannot be imported: {_where(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        have = ", ".join(n for n, v in vars(module).items() if inspect.isfunction(v)) or "none"
        raise UsageError(f"{module_name} has no function {name!r}. Its functions: {have}.")
    return function


def _where(error: BaseException) -> str:
    """An error of the user's own code: its kind, its message and its place there."""
    told = f"{type(error).__name__}: {_first_line(error)}"
    if isinstance(error, SyntaxError):
        return f"{told} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    others = (__file__, "<frozen")
    own = [f for f in frames if not f.filename.startswith(others)]
    own = [f for f in own if "site-packages" not in f.filename]
    return f"{told} ({own[-1].filename}, line {own[-1].lineno})" if own else told


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
