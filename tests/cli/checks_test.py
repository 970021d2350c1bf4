"""What the commands refuse before anything is written or trained, each in one line."""

import json
import pathlib
import re

import keras
import numpy as np
import pytest
from keras import layers as kl

from udc_tf.cli import commands, dry_run
from udc_tf.cli.options import Options, front_runs, resolve
from udc_tf.cli.own_model import load_model
from udc_tf.cli.usage import UsageError
from udc_tf.models import data

_NETWORKS = """
import keras
from keras import layers as kl

def _network(outputs, extra=lambda x: x):
    x = inputs = keras.Input((8, 8, 1))
    x = extra(kl.Conv2D(8, 3, strides=2, activation="relu")(x))
    return keras.Model(inputs, kl.Dense(outputs)(kl.GlobalAveragePooling2D()(x)))

def good():
    return _network(10)

def few():
    return _network(4)

def two_outputs():
    return keras.Model((model := _network(10)).input, [model.output, model.output])

def image():
    x = keras.Input((8, 8, 1))
    return keras.Model(x, kl.Conv2D(10, 3)(x))

def two_inputs():
    x = [keras.Input((8, 8, 1)), keras.Input((8, 8, 1))]
    return keras.Model(x, kl.Add()(x))

class Doubled(kl.Layer):
    def call(self, inputs):
        return 2 * inputs

def custom():
    return _network(10, Doubled())

def of_lambda():
    return _network(10, kl.Lambda(lambda x: 2 * x))

def wants_more(input_shape, classes, depth, *, width):
    return good()

def raises():
    return kl.Dense(-1)

def unbuilt():
    return keras.Sequential([kl.Conv2D(8, 3), kl.Flatten(), kl.Dense(10)])

class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs

def subclassed():
    return Subclassed()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "checked_networks.py").write_text(_NETWORKS)
    (tmp_path / "with_slip.py").write_text("def network(:\n    return 1\n")
    (tmp_path / "with_error.py").write_text("import keras\n\nkeras.no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _refused(capsys, command, *flags) -> str:
    """The one line in which a command ends that leaves no work directory."""
    code = commands.main(command, [command, *flags, "--workdir=w"], lambda text: None)
    lines = [x for x in capsys.readouterr().err.splitlines() if x.startswith(f"{command}: ")]
    assert code in (1, 2) and len(lines) == 1
    assert not pathlib.Path("w").exists()
    return lines[0]


class TestBeforeTheFirstStep:
    @pytest.mark.parametrize(
        "name, message",
        [
            ("few", "at least 10 numbers, one for each class"),
            ("two_outputs", "must have one output. Received: 2"),
            ("image", "Received: a network with an output of shape (6, 6, 10)"),
            ("two_inputs", "a Functional of 2 inputs"),
            ("custom", "register_keras_serializable"),
            ("of_lambda", "for a Lambda"),
            ("wants_more", "all else needs a default. Received: depth, width"),
            ("raises", "checked_networks.py, line "),
            ("unbuilt", "begins with a keras.Input"),
            ("subclassed", "must give a functional model"),
        ],
    )
    def test_networks(self, here, capsys, name, message):
        flags = (f"--model=checked_networks:{name}", "--data=digits", "--flash=8KiB")
        assert message in _refused(capsys, "udc", *flags)

    @pytest.mark.parametrize(
        "module, message",
        [
            ("with_slip", r"SyntaxError.*with_slip\.py, line 1"),
            ("with_error", "AttributeError.* 3"),
        ],
    )
    def test_files_that_do_not_import(self, here, module, message):
        with pytest.raises(UsageError, match=message):
            load_model(f"{module}:network", (8, 8, 1), 10)

    def test_task_and_network(self, here, capsys):
        flags = ("--recipe=digits", "--task=reconstruction")
        assert "as targets, of shape" in _refused(capsys, "udc-search", *flags)

    def test_teachers(self, here, capsys):
        (here / "damaged.keras").write_bytes(b"no model")
        x = keras.Input((8, 8, 1))
        keras.Model(x, kl.Dense(4)(kl.Flatten()(x))).save(here / "of_four.keras")
        for name, message in (
            ("nowhere.keras", "There is no file nowhere.keras"),
            ("damaged.keras", "cannot be loaded as a .keras model"),
            ("of_four.keras", "outputs of the network's shapes, [(10,)]"),
        ):
            for command in ("udc", "udc-search"):
                said = _refused(capsys, command, "--recipe=digits", f"--teacher={name}")
                assert message in said

    def test_unknown_accelerators(self, here, capsys):
        said = _refused(capsys, "udc", "--recipe=digits", "--accelerator=ethos-u65-128")
        assert "--accelerator is one of" in said

    def test_labels_of_the_test_part(self, here, capsys):
        x, y = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 4
        np.savez("own.npz", x_train=x, y_train=y, x_test=x, y_test=y + 1)
        said = _refused(capsys, "udc", "--recipe=digits", "--data=own.npz")
        assert "test part of own must have labels from 0 to 3" in said

    def test_working_memory_that_the_input_does_not_fit_into(self, here, capsys):
        said = _refused(capsys, "udc", "--recipe=digits", "--sram=60B")
        assert re.search(r"reach from [\d,]+ bytes of SRAM .* a budget of 60 bytes of SRAM", said)

    def test_every_budget_of_a_front(self, here, capsys):
        said = _refused(capsys, "udc", "--recipe=digits", "--flash=100B,8KiB")
        assert "No configuration is that small" in said


class TestRanges:
    @pytest.mark.parametrize(
        "flag",
        [
            *("flash=0.0001KiB", "macs=inf", "macs=nan", "learning_rate=0", "learning_rate=inf"),
            *("seed=-1", "seed=4294967296", "examples=0", "certainty=inf", "certainty=-1"),
            *("warmup=1", "samples=0", "batch_size=0", "search_epochs=0", "size_compiles=-1"),
            *("verify_examples=0", "channels=2", "finetune_epochs=0", "bits=9", "image_size=0"),
        ],
    )
    def test_are_told_in_a_line(self, flag, here, capsys):
        said = _refused(capsys, "udc", "--recipe=digits", f"--{flag}")
        assert "must be" in said or "is a number" in said or "is such as" in said
        assert "Received" in said


class TestContentOfTheData:
    def test_another_content_is_another_configuration(self, tmp_path):
        path = tmp_path / "own.npz"

        def section(seed):
            x = np.random.default_rng(seed).integers(0, 255, (40, 8, 8, 1), np.uint8)
            np.savez(path, x=x, y=np.arange(40) % 4)
            return json.dumps(resolve(Options(recipe="digits", data=str(path))).sections())

        assert section(0) == section(0) != section(1)

    def test_is_read_once_for_all_budgets(self):
        runs = list(front_runs(Options(recipe="digits", flash="8KiB,12KiB")).values())
        assert runs[0].load_data() is runs[1].load_data()

    def test_finetune_with_other_data_is_refused(self, here, capsys):
        # As if the search had been done: what counts is the record.
        pathlib.Path("w").mkdir()
        x, y = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 4
        np.savez("own.npz", x=x, y=y)
        options = Options(recipe="digits", data="own.npz")
        record = {
            "format": 1,
            "options": options.given(),
            "sections": {"search": resolve(options).sections()["search"]},
            "commands": [],
        }
        (here / "w" / "run.json").write_text(json.dumps(record))
        (here / "w" / "architecture.json").write_text("{}")
        np.savez("own.npz", x=x + 1, y=y)
        code = commands.main("udc-finetune", ["udc-finetune", "--workdir=w"], lambda text: None)
        assert code == 2 and "content of the data" in capsys.readouterr().err


class TestDryRun:
    @pytest.mark.parametrize("recipe", ["cifar10", "fashion_mnist"])
    def test_downloads_nothing(self, recipe, tmp_path, monkeypatch):
        def fetch():
            raise AssertionError("a dry run must not download")

        monkeypatch.setattr(getattr(keras.datasets, recipe), "load_data", fetch)
        monkeypatch.setenv("KERAS_HOME", str(tmp_path))
        monkeypatch.setitem(data.fashion_mnist.__globals__, "DEBIAN", tmp_path / "none")
        said = []
        dry_run.dry_run(resolve(Options(recipe=recipe)), said.append, timed=False)
        assert f"{recipe} is not on this machine yet" in said[0]


class TestHelp:
    def test_lists_the_data_sets(self):
        said = []
        commands.main("udc", ["udc", "--help"], said.append)
        assert all(f"\n  {name} " in said[0] for name in data.NAMES)

    def test_helpfull_lists_all_flags(self):
        said = []
        assert commands.main("udc-export", ["udc-export", "--helpfull"], said.append) == 0
        assert all(flag in said[0] for flag in ("--flash", "--seed", "--[no]dry_run", "--flagfile"))
