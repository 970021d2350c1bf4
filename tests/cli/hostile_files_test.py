"""What others made is data: nothing in it is executed, nothing outside is written."""

import json
import os
import pathlib
import pickle
import sys
import zipfile

import keras
import numpy as np
import pytest

import udc_tf
from udc_tf import files, saved_models
from udc_tf.cli import commands, own_model
from udc_tf.cli.own_model import load_model
from udc_tf.cli.usage import UsageError
from udc_tf.cli.workdir import WorkDir, write_json
from udc_tf.models import data
from udc_tf.report.page import write_report


@pytest.fixture
def sentinel(tmp_path):
    """A file that hostile code would make."""
    return tmp_path / "executed"


class _Touch:
    """Pickled, it asks for a file to be made when it is read."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self._path,)


def _module(folder: pathlib.Path, name: str, sentinel: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(
        f"import pathlib, keras\npathlib.Path({str(sentinel)!r}).touch()\n"
        "def net(input_shape, classes):\n"
        "    x = keras.Input(input_shape)\n"
        "    y = keras.layers.Dense(classes)(keras.layers.Flatten()(x))\n"
        "    return keras.Model(x, y)\n"
        "def bare():\n    return net((8, 8, 1), 10)\n"
    )


def _work(folder: pathlib.Path, **options) -> pathlib.Path:
    """A work directory as it is received: a record, and no more."""
    folder.mkdir(parents=True)
    options = {"data": "digits", "flash": "8KiB", "size_compiles": 0, "examples": 8, **options}
    record = {"format": 1, "options": options, "sections": {}, "commands": []}
    write_json(folder / "run.json", record)
    return folder


def _udc(capsys, command: str, *flags: str) -> tuple[int, str]:
    code = commands.main(command, [command, *flags], say=lambda text: None)
    lines = capsys.readouterr().err.splitlines()
    said = [line for line in lines if line.startswith(f"{command}: ")]
    assert len(said) == (code != 0), lines
    return code, said[-1] if said else ""


class TestPickles:
    def test_nothing_is_called(self, tmp_path, sentinel, capsys):
        batches = tmp_path / "data"
        batches.mkdir()
        (batches / "data_batch_1").write_bytes(pickle.dumps(_Touch(sentinel)))
        with pytest.raises(data.DataError, match="data_batch_1 cannot be read as pickled arrays"):
            data.load("cifar10", batches)
        work = _work(tmp_path / "w", recipe="cifar10", data="cifar10", data_dir=str(batches))
        code, said = _udc(capsys, "udc", f"--workdir={work}")
        assert code == 1 and "which is no data" in said
        assert not sentinel.exists()

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_arrays_of_every_protocol(self, tmp_path, protocol):
        content = {
            b"data": np.arange(24, dtype=np.uint8).reshape(2, 12),
            b"big": np.arange(6, dtype=">i4").reshape(2, 3),
            b"columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            b"labels": [1, 2],
            "name": b"caf\xe9",
        }
        (tmp_path / "x").write_bytes(pickle.dumps(content, protocol))
        found = data.pickles.read_pickle(tmp_path / "x")
        for name in (b"data", b"big", b"columns"):
            np.testing.assert_array_equal(found[name], content[name])
        assert found[b"labels"] == [1, 2] and found["name"] == b"caf\xe9"

    def test_arrays_of_objects_are_refused(self, tmp_path):
        (tmp_path / "x").write_bytes(pickle.dumps(np.array([{}], dtype=object)))
        with pytest.raises(data.DataError, match="instead of numbers"):
            data.pickles.read_pickle(tmp_path / "x")

    def test_npz_and_npy(self, tmp_path, sentinel):
        np.savez(tmp_path / "x.npz", x=np.array([_Touch(sentinel)], dtype=object))
        with pytest.raises(data.DataError, match=r"x\.npz"):
            data.load(str(tmp_path / "x.npz"))
        with pytest.raises(files.DamagedFileError):
            files.read_arrays(tmp_path / "x.npz", "leave it")
        (tmp_path / "y.npz").write_bytes(pickle.dumps(_Touch(sentinel)))
        with pytest.raises(files.DamagedFileError, match="not a zip file"):
            files.read_arrays(tmp_path / "y.npz", "leave it")
        assert not sentinel.exists()


class TestModules:
    def test_a_module_in_the_work_directory_is_not_imported(
        self, tmp_path, sentinel, capsys, monkeypatch
    ):
        work = _work(tmp_path / "w", model="hostile_inside:net")
        _module(work, "hostile_inside", sentinel)
        monkeypatch.chdir(work)
        monkeypatch.setattr(sys, "path", ["", str(work), *sys.path])
        code, said = _udc(capsys, "udc", f"--workdir={work}")
        assert code == 2 and "which is code: if it is yours, name it yourself with --model" in said
        assert not sentinel.exists()

    def test_nor_one_in_the_current_folder_unless_it_is_named(
        self, tmp_path, sentinel, capsys, monkeypatch
    ):
        work = _work(tmp_path / "w", model="hostile_here:net")
        _module(tmp_path, "hostile_here", sentinel)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        code, _ = _udc(capsys, "udc-search", f"--workdir={work}")
        assert code == 2 and not sentinel.exists()
        assert load_model("hostile_here:net", (8, 8, 1), 10).output_shape == (None, 10)
        assert sentinel.exists()

    def test_one_on_the_users_own_path_is(self, tmp_path, sentinel, monkeypatch):
        _module(tmp_path / "mine", "stored_network", sentinel)
        monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "mine")])
        model = load_model("stored_network:net", (8, 8, 1), 10, stored_in=tmp_path / "w")
        assert model.output_shape == (None, 10)
        with pytest.raises(UsageError, match="which is code"):  # no function of a network
            load_model("stored_network:bare", (8, 8, 1), 10, stored_in=tmp_path / "w")

    @pytest.mark.parametrize("source", ["os:abort", "antigravity:net", "breakpoint:x"])
    def test_no_module_of_pythons_own(self, source, tmp_path):
        with pytest.raises(UsageError, match="which is code"):
            load_model(source, (8, 8, 1), 10, stored_in=tmp_path)

    def test_this_package_may_be_named(self, tmp_path):
        model = load_model("udc_tf.models:small_cnn", (8, 8, 1), 10, stored_in=tmp_path)
        assert model.name == "small_cnn"

    def test_pythonpath_may_name_the_current_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/elsewhere"])
        monkeypatch.delenv("PYTHONPATH", raising=False)
        assert own_model.own_import_path(tmp_path / "w") == ["/elsewhere"]
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        assert own_model.own_import_path(tmp_path / "w") == [str(tmp_path), "/elsewhere"]
        assert own_model.own_import_path(tmp_path) == ["/elsewhere"]


def _plain_model() -> keras.Model:
    x = keras.Input((8, 8, 1))
    y = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(x)
    return keras.Model(x, keras.layers.Dense(10, name="head")(keras.layers.Flatten()(y)))


def _config_with(part: dict) -> dict:
    """A model's description whose convolution has `part` for its activation."""
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(_plain_model())))
    layer = next(v for v in config["config"]["layers"] if v["class_name"] == "Conv2D")
    layer["config"]["activation"] = part
    return config


_HOSTILE_PARTS = {
    "a function of a module": {
        "module": "os", "class_name": "function", "config": "system", "registered_name": "system",
    },
    "a class of a module": {
        "module": "hostile_layers", "class_name": "Layer", "config": {}, "registered_name": None,
    },
    "a lambda": {"class_name": "__lambda__", "config": {"value": ["4wEA", None, None]}},
    "Keras' own file functions": {
        "module": "keras.utils", "class_name": "function", "config": "get_file",
        "registered_name": "get_file",
    },
    "Keras' inner modules": {
        "module": "keras.src.utils.file_utils", "class_name": "function", "config": "makedirs",
        "registered_name": "makedirs",
    },
    "a Lambda layer": {"module": "keras.layers", "class_name": "Lambda", "config": {}},
    "a Lambda layer by its old name": {"class_name": "Lambda", "config": {}},
    "a saved graph": {
        "module": "keras.layers", "class_name": "TFSMLayer", "config": {"filepath": "elsewhere"},
    },
    "a pickled module": {
        "module": "keras.layers", "class_name": "TorchModuleWrapper", "config": {"module": "x"},
    },
    "a file to read": {
        "module": "keras.layers", "class_name": "StringLookup",
        "config": {"vocabulary": "/etc/passwd"},
    },
    "a registered name over another function": {
        "module": "os", "class_name": "function", "config": "system",
        "registered_name": "udc_tf>Choice",
    },
    "no class at all": {"module": ["os"], "class_name": {"a": 1}, "config": {}},
}  # fmt: skip


class TestKerasDescriptions:
    @pytest.mark.parametrize("part", _HOSTILE_PARTS.values(), ids=_HOSTILE_PARTS)
    def test_are_refused_before_anything_is_made(self, part, tmp_path, sentinel, monkeypatch):
        _module(tmp_path, "hostile_layers", sentinel)
        monkeypatch.syspath_prepend(str(tmp_path))
        config = _config_with(part)
        with pytest.raises(saved_models.UntrustedModelError):
            saved_models.build_model(config)
        path = tmp_path / "hostile.keras"
        _plain_model().save(tmp_path / "plain.keras")
        with zipfile.ZipFile(tmp_path / "plain.keras") as good, zipfile.ZipFile(path, "w") as bad:
            for name in good.namelist():
                content = json.dumps(config) if name == "config.json" else good.read(name)
                bad.writestr(name, content)
        with pytest.raises(UsageError, match=r"hostile\.keras is damaged"):
            load_model(str(path), (8, 8, 1), 10)
        assert not sentinel.exists() and "hostile_layers" not in sys.modules

    def test_files_that_would_be_unpacked_elsewhere(self, tmp_path):
        path = tmp_path / "plain.keras"
        _plain_model().save(path)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("../outside", "overwritten")
        with pytest.raises(UsageError, match=r"'\.\./outside' is no part"):
            load_model(str(path), (8, 8, 1), 10)
        assert not (tmp_path.parent / "outside").exists()

    def test_a_saved_lambda(self, tmp_path):
        x = keras.Input((4,))
        model = keras.Model(x, keras.layers.Lambda(lambda v: v * 2)(x))
        model.save(tmp_path / "lambda.keras")
        with pytest.raises(UsageError, match="Lambda carries code"):
            load_model(str(tmp_path / "lambda.keras"), (4,), 4)

    def test_layers_of_applications_but_not_what_makes_the_networks(self):
        module = "keras.src.applications.convnext"
        saved_models.check_config({"module": module, "class_name": "LayerScale"})
        for made in ({"class_name": "ConvNeXtTiny"}, {"class_name": "function", "config": "x"}):
            with pytest.raises(saved_models.UntrustedModelError, match=module):
                saved_models.check_config({"module": module, **made})

    def test_endless_nesting_ends(self):
        deep: dict = {}
        for _ in range(100_000):
            deep = {"config": deep}
        saved_models.check_config(deep)

    def test_what_is_registered_loads(self, tmp_path):
        @keras.saving.register_keras_serializable("hostile_files_test")
        def doubled(x):
            return 2 * x

        x = keras.Input((4,))
        path = tmp_path / "own.keras"
        keras.Model(x, keras.layers.Dense(2, activation=doubled)(x)).save(path)
        assert saved_models.load_model(path, "save it anew").layers[1].activation is doubled


class TestArchitecture:
    @pytest.fixture
    def saved(self, tmp_path):
        search = udc_tf.make_searchable(_plain_model(), "ethos_u55", udc_tf.Flash("8KiB"))
        path = tmp_path / "architecture.json"
        search.architecture().save(path)
        udc_tf.Architecture.load(path).build()
        return path

    @pytest.mark.parametrize("part", list(_HOSTILE_PARTS.values())[:4])
    def test_hostile_network(self, saved, part):
        content = json.loads(saved.read_text())
        content["model"] = _config_with(part)
        saved.write_text(json.dumps(content))
        with pytest.raises(files.DamagedFileError, match=r"architecture\.json is damaged"):
            udc_tf.Architecture.load(saved)

    def test_hostile_weights(self, saved, sentinel):
        hostile = np.array([_Touch(sentinel)], dtype=object)
        np.savez(saved.with_suffix(".npz"), **{"conv\nkernel": hostile})
        with pytest.raises(files.DamagedFileError, match=r"architecture\.npz is damaged"):
            udc_tf.Architecture.load(saved)
        assert not sentinel.exists()

    def test_weights_of_another_network(self, saved):
        np.savez(saved.with_suffix(".npz"), **{"conv\nkernel": np.zeros(3)})
        with pytest.raises(ValueError, match="The weights are of another network"):
            udc_tf.Architecture.load(saved).build()


class TestLinks:
    @pytest.fixture
    def outside(self, tmp_path):
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "precious").write_text("untouched")
        return tmp_path / "outside"

    @pytest.mark.parametrize(
        "name",
        [".lock", "partial.keras", "run.json", "network.keras", "results.json", "search.jsonl"],
    )
    def test_files_are_not_written_through(self, tmp_path, outside, name, capsys):
        work = _work(tmp_path / "w", recipe="digits")
        (work / name).unlink(missing_ok=True)
        (work / name).symlink_to(outside / "precious")
        self._refused(capsys, work, name, outside)

    @pytest.mark.parametrize("name", ["artefacts", "state", "state/search", "images", "logs"])
    def test_nor_folders(self, tmp_path, outside, name, capsys):
        work = _work(tmp_path / "w", recipe="digits")
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).symlink_to(outside)
        self._refused(capsys, work, name, outside)
        with pytest.raises(ValueError, match="is a link out of its folder"):
            write_report(work)

    def test_nor_a_link_to_nothing_yet(self, tmp_path, outside, capsys):
        work = _work(tmp_path / "w", recipe="digits")
        (work / "report.html").symlink_to("../outside/new")
        self._refused(capsys, work, "report.html", outside)

    def _refused(self, capsys, work, name, outside):
        for command in ("udc", "udc-search", "udc-export"):
            code, said = _udc(capsys, command, f"--workdir={work}")
            assert code == 2 and f"{work / name} is a link out of its folder" in said
        assert [p.name for p in outside.iterdir()] == ["precious"]
        assert (outside / "precious").read_text() == "untouched"

    def test_a_lock_that_is_a_link_inside_spares_what_it_leads_to(self, tmp_path, capsys):
        work = _work(tmp_path / "w", recipe="digits")
        (work / ".lock").symlink_to("run.json")
        before = (work / "run.json").read_bytes()
        code, said = _udc(capsys, "udc", f"--workdir={work}")
        assert code == 2 and ".lock is a link: remove it" in said
        assert (work / "run.json").read_bytes() == before

    def test_pipes_do_not_hang(self, tmp_path, capsys):
        work = _work(tmp_path / "w", recipe="digits")
        os.mkfifo(work / "results.json")
        code, said = _udc(capsys, "udc", f"--workdir={work}")
        assert code == 2 and "neither a file nor a folder" in said

    def test_links_that_stay_inside_and_the_folder_itself_may_be_links(self, tmp_path):
        work = _work(tmp_path / "w", recipe="digits")
        (work / "latest").symlink_to("run.json")
        (tmp_path / "link").symlink_to(work)
        assert WorkDir.at(str(tmp_path / "link")).read_record()["format"] == 1

    def test_a_temporary_name_that_waits_as_a_link_is_not_followed(
        self, tmp_path, outside, monkeypatch
    ):
        monkeypatch.setattr(files.secrets, "token_hex", lambda n: "known")
        (tmp_path / ".x.known.partial.json").symlink_to(outside / "precious")
        with (
            pytest.raises(FileExistsError),
            files.replaced_atomically(tmp_path / "x.json") as partial,
        ):
            partial.write_text("overwritten")
        assert (outside / "precious").read_text() == "untouched"


class TestRecord:
    @pytest.mark.parametrize(
        "options", [{"flash": 5}, {"model": ["x"]}, {"seed": "a"}, {"widths": {"a": 1}}]
    )
    def test_options_of_another_kind(self, tmp_path, options, capsys):
        work = _work(tmp_path / "w", recipe="digits", **options)
        code, said = _udc(capsys, "udc", f"--workdir={work}")
        name, value = next(iter(options.items()))
        assert code == 2 and f"run.json is damaged ({name}={value!r})" in said

    def test_report_shows_text_as_text(self, tmp_path):
        search = udc_tf.make_searchable(_plain_model(), "ethos_u55", udc_tf.Flash("8KiB"))
        work = _work(tmp_path / "w")
        search.architecture().save(work / "architecture.json")
        content = json.loads((work / "run.json").read_text())
        script = "<script>alert(1)</script>"
        content["sections"] = {"search": {"recipe": script, "data": script}}
        content["commands"] = [{"command": script}]
        write_json(work / "run.json", content)
        assert script not in write_report(work).read_text()
