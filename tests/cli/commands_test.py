"""The commands as users run them: own network, own images, mistakes, interruptions."""

import json
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from udc_tf.cli import commands, training_steps
from udc_tf.cli.image_sets import score_sets
from udc_tf.cli.options import Options, resolve
from udc_tf.cli.own_model import load_model
from udc_tf.cli.usage import UsageError
from udc_tf.cli.workdir import WorkDir
from udc_tf.models.data import DataError
from udc_tf.report.readers import read_history

_QUICK = ("--search_epochs=1", "--finetune_epochs=1,1,1", "--batch_size=8", "--samples=1")


def _run(command, *flags):
    said = []
    return commands.main(command, [command, *flags], said.append), "\n".join(said)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a user's network and images of two kinds."""
    (tmp_path / "mynetworks.py").write_text(
        textwrap.dedent(
            """
            import keras

            def tiny(input_shape, classes):
                x = inputs = keras.Input(input_shape)
                x = keras.layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
                x = keras.layers.GlobalAveragePooling2D()(x)
                return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))

            def number():
                return 7
            """
        )
    )
    rng = np.random.default_rng(0)
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(20):
            image = rng.integers(0, 128, (16, 16, 3)) + 127 * label
            content = tf.io.encode_png(image.astype(np.uint8)).numpy()
            (tmp_path / "images" / name / f"{i}.png").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


class TestOwnNetworkAndImages:
    def test_from_folder_to_compiled_file_step_by_step(self, own, eagerly):
        flags = (
            "--model=mynetworks:tiny",
            "--data=images",
            "--image_size=16",
            "--flash=6000B",
            "--size_compiles=2",
            "--workdir=run",
            *_QUICK,
        )
        code, said = _run("udc-search", *flags)
        assert code == 0 and "conv2d" in said
        # The later steps know the rest from the work directory.
        code, said = _run("udc-finetune", "--workdir=run")
        assert code == 0 and "test" in said
        code, said = _run("udc-export", "--workdir=run", "--verify_examples=4")
        assert code == 0 and "equal to tflm bit for bit" in said
        results = json.loads((own / "run" / "results.json").read_text())
        assert results["flash_bytes"] <= 6000
        assert (own / "run" / "artefacts" / "model_vela.c").exists()
        assert (own / "run" / "report.html").exists()
        # Once more does nothing twice, and another configuration is refused.
        code, said = _run("udc", "--workdir=run")
        assert code == 0 and said.count("done before") == 3
        code, _ = _run("udc", *flags, "--seed=5")
        assert code == 2


class TestResume:
    def test_interrupted_search_goes_on_to_the_same_network(self, tmp_path, monkeypatch, eagerly):
        flags = ["--recipe=digits", "--examples=64", "--search_epochs=3", "--samples=1"]
        flags.append("--size_compiles=0")

        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch == 1:
                    raise KeyboardInterrupt

        _run("udc-search", *flags, f"--workdir={tmp_path / 'whole'}")
        lines = training_steps.epoch_lines
        monkeypatch.setattr(training_steps, "epoch_lines", lambda *a: [*lines(*a), Stop()])
        code, _ = _run("udc-search", *flags, f"--workdir={tmp_path / 'stopped'}")
        assert code == 130
        monkeypatch.setattr(training_steps, "epoch_lines", lines)
        code, _ = _run("udc-search", "--workdir", str(tmp_path / "stopped"))
        assert code == 0
        whole, stopped = (
            json.loads((tmp_path / name / "architecture.json").read_text())
            for name in ("whole", "stopped")
        )
        assert whole["choices"] == stopped["choices"]
        curves = [read_history(tmp_path / n / "search.jsonl") for n in ("whole", "stopped")]
        assert [row["epoch"] for row in curves[1]] == [0, 1, 2]
        for a, b in zip(*curves, strict=True):
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


class TestMistakes:
    @pytest.mark.parametrize(
        "flags, message",
        [
            (["--recipe=digit"], "There is no recipe 'digit'. Recipes: digits"),
            (["--recipe=digits", "--flash=12"], "such as --flash=24KiB. Received: '12'"),
            (["--recipe=digits", "--flash=100B", "--workdir=w"], "No configuration is that small"),
            (["--recipe=digits"], "--workdir=FOLDER is needed"),
            (["--recipe=digits", "--accelerator=u55", "--workdir=w"], "--accelerator is one of"),
            (["--recipe=digits", "--finetune_epochs=1,2", "--workdir=w"], "three stages"),
            (["--recipe=digits", "--bits=3.5", "--workdir=w"], "--bits is a list of numbers"),
            (["--recipe=digits", "--widths=2", "--workdir=w"], r"fractions in (0, 1]"),
            (["--recipe=digits", "--runners=gpu", "--workdir=w"], "--runners are of tflite"),
            (["--recipe=visual_wake_words", "--workdir=w"], "--data is needed"),
            (["--recipe=cifar10", "--data_dir=none", "--workdir=w"], "There is no none/"),
            (["--recipe=digits", "surplus", "--workdir=w"], "All settings are flags"),
            (["--flsh=1"], "Unknown command line flag 'flsh'"),
            (["--search_epochs=many"], "search_epochs"),
            ([], "Say what to search: --recipe=NAME"),
            (["--model=nomodule:f", "--data=digits", "--flash=8KiB", "--workdir=w"], "nomodule"),
        ],
    )
    def test_end_in_one_line_with_the_fix(self, flags, message, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        code, _ = _run("udc", *flags)
        error = capsys.readouterr().err.strip().splitlines()
        assert code in (1, 2)
        assert message in error[-1]
        assert len([line for line in error if line.startswith("udc: ")]) == 1

    def test_no_budget(self):
        with pytest.raises(UsageError, match="A budget is needed"):
            resolve(Options(model="a:b", data="digits"))

    def test_steps_out_of_order(self, tmp_path, capsys):
        _run("udc-finetune", "--recipe=digits", f"--workdir={tmp_path / 'w'}")
        assert "run udc-search there first" in capsys.readouterr().err
        _run("udc-export", "--recipe=digits", f"--workdir={tmp_path / 'w'}")
        assert "run udc-finetune there first" in capsys.readouterr().err

    def test_data_without_classes(self, tmp_path):
        np.savez(tmp_path / "x.npz", x=np.zeros((40, 8, 8, 1), np.uint8))
        run = resolve(Options(recipe="digits", data=str(tmp_path / "x.npz")))
        with pytest.raises(UsageError, match="--task=reconstruction"):
            run.load_data()

    def test_missing_data_is_said_by_its_own_error(self):
        with pytest.raises(DataError, match="--data is needed"):
            resolve(Options(recipe="visual_wake_words")).load_data()


class TestWorkDir:
    def test_belongs_to_one_configuration(self, tmp_path):
        work = WorkDir.open(str(tmp_path / "w"))
        sections = {"search": {"seed": 0}, "finetune": {"epochs": 1}, "export": {}}
        work.begin("search", sections, {}, "udc-search")
        work.begin("finetune", {**sections, "finetune": {"epochs": 3}}, {}, "udc-finetune")
        work.architecture.write_text("found")
        # A step that has left nothing may still change.
        work.begin("finetune", {**sections, "finetune": {"epochs": 2}}, {}, "udc-finetune")
        work.network.write_text("trained")
        with pytest.raises(UsageError, match="seed: 0 there, 1 here"):
            work.begin("finetune", {**sections, "search": {"seed": 1}}, {}, "udc")
        with pytest.raises(UsageError, match="epochs: 2 there, 1 here"):
            work.begin("export", sections, {}, "udc")

    def test_strange_folders_are_left_alone(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("important")
        with pytest.raises(UsageError, match="holds other files"):
            WorkDir.open(str(tmp_path))
        with pytest.raises(UsageError, match="is a file"):
            WorkDir.open(str(tmp_path / "thesis.tex"))

    def test_one_run_at_a_time(self, tmp_path):
        work = WorkDir.open(str(tmp_path / "w"))
        with work.locked(), pytest.raises(UsageError, match="Another run"), work.locked():
            pass


class TestOwnModel:
    def test_what_is_not_a_network(self, own):
        with pytest.raises(UsageError, match=r"must give a keras\.Model"):
            load_model("mynetworks:number", (8, 8, 1), 2)
        with pytest.raises(UsageError, match="Its functions: tiny, number"):
            load_model("mynetworks:huge", (8, 8, 1), 2)
        with pytest.raises(UsageError, match="module:function"):
            load_model("mynetworks", (8, 8, 1), 2)

    def test_saved_network_and_its_shape(self, tmp_path):
        path = str(tmp_path / "saved.keras")
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(path)
        assert load_model(path, (4,), 2).output_shape == (None, 2)
        with pytest.raises(UsageError, match=r"takes inputs of \(4,\)"):
            load_model(path, (5,), 2)


class TestHelp:
    def test_the_version_is_that_of_the_package(self):
        assert _run("udc-export", "--version") == (0, f"udc-export {udc_tf.__version__}")

    def test_lists_flags_and_recipes(self):
        code, said = _run("udc", "--help")
        assert code == 0 and "--flash" in said and "keyword_spotting" in said

    def test_flagfile(self, tmp_path, capsys):
        (tmp_path / "flags").write_text("--recipe=digit\n")
        _run("udc", f"--flagfile={tmp_path / 'flags'}")
        assert "There is no recipe 'digit'" in capsys.readouterr().err


class TestImageSets:
    def test_a_network_that_repeats_pixels(self, tmp_path):
        rng = np.random.default_rng(0)
        for i in range(2):
            image = np.kron(rng.integers(0, 256, (10, 9, 3)), np.ones((8, 8, 1)))
            path = tmp_path / "set5" / f"{i}.png"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(tf.io.encode_png(image.astype(np.uint8)).numpy())
        x = keras.Input((16, 16, 1))
        nearest = keras.Model(x, keras.layers.UpSampling2D(4)(x))
        scores = score_sets(nearest, str(tmp_path))
        assert list(scores) == ["set5"] and scores["set5"]["images"] == 2
        assert scores["set5"]["psnr"] > 15
        assert score_sets(nearest, None) == {}
