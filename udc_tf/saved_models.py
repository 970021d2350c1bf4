"""Keras models from files that others made: read as data, so that no code of theirs runs.

A serialized Keras object names its class or function by module and name. Keras itself imports only
what it takes for safe, but what that is has changed from version to version; here it is written
down: Keras' own building blocks, and what is registered in this process already.
"""

import contextlib
import copy
import json
import os
import warnings
import zipfile
from typing import Any

import h5py  # Keras has it: its weights are in such files
import keras

from udc_tf.files import DamagedFileError

# Keras' rooms that hold parts of models; not utils, saving, callbacks, datasets, export, config.
_ROOMS = frozenset(
    {
        *("activations", "constraints", "dtype_policies", "initializers", "layers", "losses"),
        *("metrics", "models", "ops", "optimizers", "quantizers", "random", "regularizers"),
    }
)
# Layers of networks in keras.applications, which Keras keeps beside the functions that make them.
_OF_APPLICATIONS = frozenset(
    {
        ("keras.src.applications.convnext", "LayerScale"),
        ("keras.src.applications.convnext", "StochasticDepth"),
        ("keras.src.applications.inception_resnet_v2", "CustomScaleLayer"),
    }
)
_VALUES = frozenset(
    {"__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__"}
)
_MEMBERS = frozenset({"metadata.json", "config.json", "model.weights.h5"})
# They carry code, or read other files than the one they are in.
_REFUSED = frozenset(
    {
        *("__lambda__", "__typespec__", "Lambda"),
        *("TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer"),
        *("StringLookup", "IntegerLookup", "TextVectorization"),
    }
)


class UntrustedModelError(ValueError):
    """A model's description asks for code that is neither Keras' nor known here."""


def build_model(config: dict[str, Any]) -> keras.Model:
    """The model that `keras.saving.serialize_keras_object` described.

    Raises:
        UntrustedModelError: before anything is made.
    """
    check_config(config)
    # A copy: Keras takes the dictionary apart while it reads it.
    model = keras.saving.deserialize_keras_object(copy.deepcopy(config), safe_mode=True)
    if not isinstance(model, keras.Model):
        raise ValueError(f"a {type(model).__name__} instead of a keras.Model")
    return model


def load_model(path: str | os.PathLike, remedy: str, compile: bool = False) -> keras.Model:
    """The model of a .keras file, or of an .h5 file that Keras wrote.

    Args:
        path: of the file.
        remedy: what to do if it is damaged, for the message.
        compile: with the loss and optimizer it was saved with, if Keras can read them back.

    Raises:
        DamagedFileError: it is not such a file, or asks for code of its own.
    """
    try:
        if os.fspath(path).endswith((".h5", ".hdf5")):
            with h5py.File(path, "r") as file:
                check_config(json.loads(file.attrs["model_config"]))
                check_config(json.loads(file.attrs.get("training_config", "{}")))
            return _loaded(path, compile)
        with zipfile.ZipFile(path) as archive:
            if strange := {*archive.namelist()} - _MEMBERS:
                raise UntrustedModelError(f"{min(strange)!r} is no part of such a file")
            check_config(json.loads(archive.read("config.json")))
        return _loaded(path, compile)
    except Exception as error:  # whatever is inside the file
        raise DamagedFileError(path, error, remedy) from error


def _loaded(path: str | os.PathLike, compile: bool) -> keras.Model:
    if compile:
        # Keras writes losses that it does not read, such as "mse" in an .h5 file. The network is
        # there all the same; if it is not, what follows says so.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about an optimizer whose state is not there
            return keras.saving.load_model(path, compile=True, safe_mode=True)
    return keras.saving.load_model(path, compile=False, safe_mode=True)


def check_config(config: Any) -> None:
    """Raises if a serialized Keras object names anything outside Keras that is not registered.

    >>> check_config(keras.saving.serialize_keras_object(keras.layers.Dense(3)))
    >>> check_config({"module": "os", "class_name": "function", "config": "system"})
    Traceback (most recent call last):
    udc_tf.saved_models.UntrustedModelError: os.system is not a part of Keras, nor registered here
    """
    # Without recursion: a hostile file may nest as deep as it likes.
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if "class_name" in value:
                _check_object(value)
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)


def _check_object(value: dict[str, Any]) -> None:
    name, module = value["class_name"], value.get("module")
    is_function = name == "function"
    known = value.get("config") if is_function else value.get("registered_name", name)
    shown = value.get("config") if is_function else name
    if not isinstance(name, str) or not isinstance(module, str | None):
        raise UntrustedModelError(f"{module!r}.{name!r} is no class")
    if name in _REFUSED:
        raise UntrustedModelError(
            f"{name} carries code or reads other files, which no received model may"
        )
    if name in _VALUES:
        return
    if isinstance(known, str) and keras.saving.get_registered_object(known) is not None:
        return  # registered, or named in a `custom_object_scope`
    if module is None or (module == "builtins" and is_function):
        return  # by name alone, Keras finds only its own and what is registered
    if (module, name) in _OF_APPLICATIONS:
        return
    package, *rooms = module.split(".")
    if rooms[:1] == ["src"] and not is_function:
        rooms = rooms[1:]
    if package == "keras" and (not rooms or rooms[0] in _ROOMS):
        return
    raise UntrustedModelError(f"{module}.{shown} is not a part of Keras, nor registered here")
