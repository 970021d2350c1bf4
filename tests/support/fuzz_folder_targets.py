"""Fuzzing what a work directory holds: an architecture with its weights, and the record of a run.

Apart from `fuzz_targets`, because these readers need TensorFlow.
"""

from __future__ import annotations

import json
import pathlib
import random
import tempfile
from unittest import mock

import keras

import udc_tf
from tests.support import fuzz_mutations as mutations
from tests.support.fuzz_targets import Target
from udc_tf.cli import commands
from udc_tf.cli.options import Options, Run, front_runs, resolve
from udc_tf.cli.usage import UsageError
from udc_tf.cli.workdir import STEPS, WorkDir
from udc_tf.compact import architecture as architecture_module
from udc_tf.files import DamagedFileError

_WEIGHT_LIMIT = 1 << 22  # below the default, which lets a network take a gigabyte
_SEPARATOR = b"\n\0npz\0\n"  # between the JSON text and the weights of an architecture


def run_architecture(data: bytes) -> str:
    """Loads an architecture from its two files and builds its network."""
    text, _, weights = data.partition(_SEPARATOR)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "architecture.json")
        path.write_bytes(text)
        path.with_suffix(".npz").write_bytes(weights)
        try:
            architecture = udc_tf.Architecture.load(path)
            architecture.table()
            with mock.patch.object(architecture_module, "WEIGHT_LIMIT", _WEIGHT_LIMIT):
                architecture.build()
        except ValueError as error:
            _check_told(error)
            return type(error).__name__
    return "read"


def run_record(data: bytes) -> str:
    """Takes up a run from its record, as every command does."""
    with tempfile.TemporaryDirectory() as folder:
        work = WorkDir(pathlib.Path(folder))
        work.record.write_bytes(data)
        try:
            run, *_ = _runs(Options().over(commands._earlier(work)))
            for step in STEPS:
                work.begin(step, run.sections(), run.options.given(), "udc")
            json.loads(work.record.read_bytes())
        except (UsageError, DamagedFileError) as error:
            _check_told(error)
            return type(error).__name__
    return "read"


def _runs(options: Options) -> list[Run]:
    several = len(options.budgets()) > 1
    runs = list(front_runs(options).values()) if several else [resolve(options)]
    for run in runs:
        run.kept["fingerprint"] = "of data that are not there"
    return runs


def _check_told(error: Exception) -> None:
    assert len(str(error)) > 20, f"a message that says nothing: {error}"


def _architecture_text(data: bytes, rng: random.Random) -> bytes:
    text, separator, weights = data.partition(_SEPARATOR)
    return mutations.json_text(text, rng) + separator + weights


def _architecture_weights(data: bytes, rng: random.Random) -> bytes:
    text, separator, weights = data.partition(_SEPARATOR)
    return text + separator + (rng.choice(mutations.BYTES)(weights, rng) if weights else weights)


TARGETS = {
    target.name: target
    for target in (
        Target(
            "architecture",
            run_architecture,
            (_architecture_text, _architecture_text, _architecture_text, _architecture_weights),
            own_eighths=7,
        ),
        Target("record", run_record, (mutations.json_text,), own_eighths=6, max_bytes=1 << 13),
    )
}


def seeds(name: str) -> list[bytes]:
    """Sound inputs of target `name`."""
    return _architectures() if name == "architecture" else _records()


def _architectures() -> list[bytes]:
    found = []
    for model in (image_network(), _vector_network()):
        search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("32KiB"))
        architecture = search.architecture()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "architecture.json")
            architecture.save(path)
            weights = path.with_suffix(".npz")
            content = weights.read_bytes() if weights.exists() else b""
            text = json.dumps(json.loads(path.read_bytes())).encode()
            found.append(text + _SEPARATOR + content)
    return found


def image_network() -> keras.Model:
    inputs = keras.Input((6, 6, 1))
    x = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def _vector_network() -> keras.Model:
    inputs = keras.Input((8,))
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(4)(inputs)))


def _records() -> list[bytes]:
    given = (
        {"recipe": "digits", "search_epochs": 8, "finetune_epochs": "8", "size_compiles": 2},
        {"recipe": "fashion_mnist", "flash": "16KiB,24KiB", "seed": 3, "warmup": 0.2},
        {
            "model": "nets:small",
            "data": "images",
            "flash": "8KiB",
            "bits": "2,4",
            "widths": "0.5,1",
        },
    )
    found = []
    for options in given:
        with tempfile.TemporaryDirectory() as folder:
            work = WorkDir(pathlib.Path(folder))
            run, *_ = _runs(Options(**options))
            for step in STEPS:
                work.begin(step, run.sections(), run.options.given(), "udc --workdir=W")
            found.append(work.record.read_bytes())
    return found
