"""`udc_tf.export.export`: the artefact folder, budgets and failures."""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
import udc_tf.export
from udc_tf.export import (
    budgets,
    c_source,
    errors,
    manifest,
    run_main,
    size_truth,
    tflite_file,
    tightening,
    vela,
)
from udc_tf.export.budgets import Budgets
from udc_tf.export.integer_network import Quantization
from udc_tf.export.lowering import lower
from udc_tf.export.work_folder import work_folder

FILES = {
    "manifest.json",
    "model.tflite",
    "model_vela.c",
    "model_vela.h",
    "model_vela.tflite",
    "report.json",
    "golden/input_0.npy",
    "golden/output_0.npy",
}


def network(bits: int = 4, nonzeros: float = 0.6) -> keras.Model:
    keras.utils.set_random_seed(0)
    keras.utils.clear_session()  # names count up otherwise, and they are in the files
    inputs = keras.Input((12, 12, 3))
    x = kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(16, 3, use_bias=False)(inputs)))
    x = kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(32, 3, strides=2, use_bias=False)(x)))
    outputs = kl.Dense(10, activation="softmax")(kl.Flatten()(x))
    return udc_tf.compact(keras.Model(inputs, outputs, name="small"), bits=bits, nonzeros=nonzeros)


def samples(count: int = 16) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 12, 12, 3)).astype("float32")


def content_of(folder) -> dict[str, bytes]:
    paths = [p for p in folder.rglob("*") if p.is_file()]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "out"
    return udc_tf.export.export(
        network(), out, target=udc_tf.Flash("32KiB", "ethos-u55-64"), calibration=samples()
    )


class TestArtefacts:
    def test_folder_is_complete(self, exported):
        assert set(content_of(exported.folder)) == FILES

    def test_result_describes_the_files(self, exported):
        assert exported.flash_bytes == exported.vela_path.stat().st_size <= 32768
        assert exported.tflite_path.read_bytes()[4:8] == b"TFL3"
        assert exported.sram_bytes == exported.manifest["sram_bytes"] > 0

    def test_manifest(self, exported):
        stored = json.loads((exported.folder / "manifest.json").read_text())
        assert stored == exported.manifest
        assert stored["accelerator"] == "ethos-u55-64"
        assert stored["memory_mode"] == "Shared_Sram"
        assert stored["flash_bytes"] == exported.flash_bytes
        assert stored["arena_bytes"] >= stored["sram_bytes"]
        assert stored["operators"] == [{"kind": "ethos-u", "register": "AddEthosU"}]
        (tensor,) = stored["inputs"]
        assert tensor["shape"] == [1, 12, 12, 3] and tensor["scale"] > 0
        (tensor,) = stored["outputs"]
        assert (tensor["scale"], tensor["zero_point"]) == (1 / 256, -128)
        for name, entry in stored["files"].items():
            content = (exported.folder / name).read_bytes()
            assert entry["sha256"] == hashlib.sha256(content).hexdigest()
            assert entry["bytes"] == len(content)
        assert set(stored["files"]) == FILES - {"manifest.json"}

    def test_manifest_says_nothing_of_this_machine(self, exported):
        for name in ("manifest.json", "report.json", "model_vela.h", "model_vela.tflite"):
            content = (exported.folder / name).read_bytes()
            assert str(exported.folder).encode() not in content
            assert os.getcwd().encode() not in content

    def test_every_field_is_documented(self, exported):
        documented = pathlib.Path(manifest.__file__).with_name("manifest.md").read_text()
        for key in exported.manifest:
            assert f"`{key}`" in documented, key

    def test_goldens_are_what_the_compiled_network_gives(self, exported):
        inputs = np.load(exported.folder / "golden" / "input_0.npy")
        golden = np.load(exported.folder / "golden" / "output_0.npy")
        assert inputs.dtype == golden.dtype == np.int8 and len(inputs) == len(golden) == 8
        on_npu = udc_tf.export.run(exported.vela_path, inputs, on="npu")
        np.testing.assert_array_equal(on_npu.outputs[0], golden)

    def test_report(self, exported):
        report = json.loads((exported.folder / "report.json").read_text())
        assert report["tflm_against_fake_quant"]["within_1"] >= 0.99
        assert [row["layer"] for row in report["layers"]] == [
            layer.name for layer in tightening.compact_layers(exported.model)
        ]
        assert sum(row["vela_bytes"] for row in report["layers"]) == report["encoded_weight_bytes"]

    def test_twice_gives_the_same_bytes(self, exported, tmp_path):
        target = udc_tf.Flash("32KiB", "ethos-u55-64")
        udc_tf.export.export(network(), tmp_path, target=target, calibration=samples())
        assert content_of(tmp_path) == content_of(exported.folder)
        udc_tf.export.export(network(), tmp_path, target=target, calibration=samples())
        assert content_of(tmp_path) == content_of(exported.folder)

    def test_plain_keras_model(self, tmp_path):
        model = keras.Sequential([keras.Input((12, 12, 3)), kl.Conv2D(4, 3), kl.Flatten()])
        result = udc_tf.export.export(model, tmp_path, calibration=samples())
        assert result.manifest["accelerator"] == "ethos-u55-128"


class TestC:
    def test_compiles_for_the_device_without_warnings(self, exported, tmp_path):
        compiler = shutil.which("arm-none-eabi-gcc")
        if compiler is None:
            pytest.skip("arm-none-eabi-gcc is not installed (Debian: gcc-arm-none-eabi)")
        program = tmp_path / "main.c"
        program.write_text(
            '#include "model_vela.h"\n'
            "static const int shape[MODEL_VELA_INPUT_0_RANK] = MODEL_VELA_INPUT_0_SHAPE;\n"
            "static uint8_t arena[MODEL_VELA_ARENA_BYTES];\n"
            "int main(void) {\n"
            "  const float scale = MODEL_VELA_OUTPUT_0_SCALE;\n"
            "  const float real = scale * (3 - MODEL_VELA_OUTPUT_0_ZERO_POINT);\n"
            "  arena[0] = model_vela[MODEL_VELA_LENGTH - 1u];\n"
            "  return shape[1] + (int)real + arena[0] + (int)model_vela_length;\n"
            "}\n"
        )
        strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror", "-Os"]
        for standard in ("c99", "c11", "gnu17"):
            command = [compiler, "-mcpu=cortex-m55", f"-std={standard}", *strict, "-c"]
            for path in (program, exported.folder / "model_vela.c"):
                done = subprocess.run(
                    [*command, f"-I{exported.folder}", str(path), "-o", str(tmp_path / "out.o")],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0 and not done.stderr, done.stderr

    def test_source_holds_the_bytes(self):
        text = c_source.source("m", bytes(range(256)))
        inside = text[text.index("{") + 1 : text.index("}")]
        assert bytes(int(n, 16) for n in inside.split(",")) == bytes(range(256))

    def test_whole_scale_is_a_float_constant(self):
        text = c_source.header("m", 4, 16, [((1, 4), Quantization(np.float32(1), 0))], [])
        assert "M_INPUT_0_SCALE 1.0f" in text


class TestTightening:
    @pytest.mark.parametrize("sparse", ["conv2d", "conv2d_1"])
    def test_gives_up_first_what_the_search_liked_least(self, sparse):
        model = network()
        names = [layer.name for layer in tightening.compact_layers(model)]
        # One layer would as soon have fewer non-zeros, the others would hate to.
        liking = {
            f"sparsity/{n}": {0.1: 0.5, 0.6: 0.5} if n == sparse else {0.1: 1e-6, 0.6: 1.0}
            for n in names
        }
        liking |= {f"bits/{n}": {3: 1e-6, 4: 1.0} for n in names}
        moves = tightening.tighten(model, 20, dict.fromkeys(names, 1.1), liking)
        assert [move.layer for move in moves] == [sparse]

    @pytest.mark.parametrize("wanted", [30, 150, 600])
    def test_saves_what_is_needed_and_little_more(self, wanted):
        model = network()
        names = [layer.name for layer in tightening.compact_layers(model)]
        weights = sum(np.prod(x.theta.shape) for x in tightening.compact_layers(model))
        moves = tightening.tighten(model, wanted, dict.fromkeys(names, 1.1))
        more = sum(move.saves_bytes for move in moves) - wanted
        assert 0 <= more <= 0.05 * weights / 2  # of 4 bits each


class TestBudget:
    def test_tightens_until_it_fits(self, tmp_path):
        model = network(bits=8, nonzeros=1.0)
        free = udc_tf.export.export(model, tmp_path / "free", calibration=samples())
        before = [layer.integer_kernel().nonzeros for layer in tightening.compact_layers(model)]
        budget = int(free.flash_bytes * 0.8)
        recovered = []
        result = udc_tf.export.export(
            model,
            tmp_path / "tight",
            target=udc_tf.Flash(budget),
            calibration=samples(),
            recover=recovered.append,
        )
        assert 0.95 * budget <= result.flash_bytes <= budget
        assert len(recovered) == len(result.report["tightening"]) >= 1
        assert result.model is not model
        # The network that was handed over is as it was; the smaller one is in the result.
        after = [layer.integer_kernel().nonzeros for layer in tightening.compact_layers(model)]
        assert after == before
        file = tflite_file.read(result.tflite_path)
        kernels = [file.tensors[o.inputs[1]].data for o in file.operators if o.kind in ("CONV_2D",)]
        layers = tightening.compact_layers(result.model)
        assert [np.count_nonzero(k) for k in kernels] == [
            layer.integer_kernel().nonzeros for layer in layers[:2]
        ]

    def test_impossible_budget(self, tmp_path):
        with pytest.raises(
            errors.BudgetError, match=r"needs [\d,]+ .* budget is 1,024, [\d,]+ too"
        ):
            udc_tf.export.export(
                network(), tmp_path, target=udc_tf.Flash("1KiB"), calibration=samples()
            )
        assert list(tmp_path.iterdir()) == []

    def test_macs(self, tmp_path):
        # 3x3x3x16 weights at 10x10 positions, 3x3x16x32 at 4x4, and the dense layer's.
        need = 432 * 100 + 4608 * 16 + 5120
        model, data = network(), samples()
        message = rf"needs {need:,} multiply-accumulates, the budget is {need - 9:,}, 9 too many"
        with pytest.raises(errors.BudgetError, match=message):
            udc_tf.export.export(model, tmp_path, udc_tf.Macs(np.int64(need - 9)), data)
        assert list(tmp_path.iterdir()) == []
        assert budgets.macs(lower(model)) == need

    def test_macs_of_a_transposed_convolution(self):
        inputs = keras.Input((5, 5, 2))
        model = keras.Model(inputs, kl.Conv2DTranspose(3, 4, strides=2, padding="same")(inputs))
        assert budgets.macs(lower(model)) == 5 * 5 * 4 * 4 * 2 * 3

    def test_paper_size(self):
        model = network(bits=4, nonzeros=0.5)
        need = (432 + 4608 + 5120) * 5 // 8  # 4 bits and an entropy of 1 each
        Budgets.of(udc_tf.PaperSize(need)).check_paper_size(model, lower(model))
        with pytest.raises(errors.BudgetError, match=rf"{need:,} bytes .* {need - 1:,}, 1 too"):
            Budgets.of(udc_tf.PaperSize(need - 1)).check_paper_size(model, lower(model))

    def test_several_targets_must_all_hold(self):
        targets = [udc_tf.Flash(np.float64(9000)), udc_tf.Flash(np.int64(5000)), udc_tf.Macs(1e6)]
        assert Budgets.of(targets) == Budgets(vela.System("ethos-u55-128"), 5000, 1e6)

    def test_plain_model_over_budget(self, tmp_path):
        model = keras.Sequential([keras.Input((12, 12, 3)), kl.Conv2D(64, 5)])
        with pytest.raises(errors.BudgetError, match="no layers of few bits"):
            udc_tf.export.export(
                model, tmp_path, target=udc_tf.Flash("5KiB"), calibration=samples()
            )

    def test_sram_budget(self, tmp_path):
        with pytest.raises(errors.BudgetError, match=r"of SRAM, the budget is 1,024, [\d,]+ too"):
            udc_tf.export.export(network(), tmp_path, calibration=samples(), sram_budget="1KiB")
        assert list(tmp_path.iterdir()) == []


class TestFailures:
    def test_old_artefacts_survive_a_failure(self, tmp_path):
        udc_tf.export.export(network(), tmp_path, calibration=samples())
        before = content_of(tmp_path)
        with pytest.raises(errors.BudgetError):
            udc_tf.export.export(
                network(), tmp_path, target=udc_tf.Flash("1KiB"), calibration=samples()
            )
        assert content_of(tmp_path) == before

    def test_unwritable_folder(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(errors.ExportError, match="Cannot write to the folder"):
            udc_tf.export.export(network(), tmp_path / "file" / "out", calibration=samples())

    def test_unsupported_layer(self, tmp_path):
        model = keras.Sequential([keras.Input((12, 12, 3)), kl.LayerNormalization(1, name="norm")])
        with pytest.raises(errors.ConversionError, match="`norm`"):
            udc_tf.export.export(model, tmp_path / "out", calibration=samples())
        assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []

    @pytest.mark.parametrize(
        "data,message",
        [(None, "calibration data are needed"), (samples()[..., :2], "Received: \\(16, 12, 12, 2")],
    )
    def test_calibration(self, tmp_path, data, message):
        with pytest.raises(errors.CalibrationError, match=message):
            udc_tf.export.export(network(), tmp_path, calibration=data)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "target",
        [
            "32KiB",
            1000,
            np.int64(1000),
            [1000],
            {"flash": 1000},
            [udc_tf.Flash("32KiB"), {"kind": "macs"}],
        ],
        ids=["text", "number", "numpy", "list", "dict", "mixed"],
    )
    def test_target_must_be_a_target(self, tmp_path, target):
        with pytest.raises(ValueError, match=r"udc_tf\.Flash\('32KiB'\).*Received: "):
            udc_tf.export.export(network(), tmp_path, target=target)
        assert list(tmp_path.iterdir()) == []

    def test_target_of_the_users_own_that_cannot_be_checked(self):
        class Channels:
            budget = 8

            def bind(self, plan):
                raise NotImplementedError

        with pytest.raises(ValueError, match="cannot check a target of your own"):
            Budgets.of([udc_tf.Flash("32KiB"), Channels()])

    def test_targets_for_two_accelerators(self):
        targets = [udc_tf.Flash("32KiB"), udc_tf.Flash("32KiB", "ethos-u55-64")]
        with pytest.raises(ValueError, match="Received: ethos-u55-128, ethos-u55-64"):
            Budgets.of(targets)
        with pytest.raises(ValueError, match="Received: ethos-u55-128, ethos-u55-64"):
            Budgets.of(targets[:1], "ethos-u55-64")

    def test_what_a_killed_export_left(self, tmp_path):
        """Folders of dead exports go, those of living ones stay, and nothing beyond a link."""
        dead, link = tmp_path / ".export-dead.partial", tmp_path / ".export-link.partial"
        (dead / "staged").mkdir(parents=True)
        (dead / "model_vela.tflite").write_text("half")
        (tmp_path / "elsewhere").mkdir()
        link.symlink_to(tmp_path / "elsewhere")
        with (
            work_folder(tmp_path, ".export-") as living,
            work_folder(tmp_path, ".export-") as other,
        ):
            assert living.is_dir() and other.is_dir() and living != other
        assert {p.name for p in tmp_path.iterdir()} == {"elsewhere", link.name}

    def test_killed_in_the_middle(self, tmp_path):
        if not (child := os.fork()):
            with work_folder(tmp_path, ".export-") as folder:
                (folder / "model_vela.tflite").write_text("half")
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        (left,) = tmp_path.iterdir()
        assert run_main._compiled_files(tmp_path) == []
        with work_folder(tmp_path, ".export-"):
            assert not left.exists()


class TestSizeTruth:
    def test_arithmetic_coder_is_close_to_the_entropy(self):
        pytest.importorskip("constriction")
        mask = np.random.default_rng(0).random(20000) < 0.1
        size = size_truth.arithmetic_coded_bytes(mask)
        assert 0.99 < 8 * size / (20000 * size_truth.empirical_entropy(mask)) < 1.02

    def test_table_has_a_row_per_layer_and_a_sum(self, exported):
        sizes = [size_truth.LayerSize(**row) for row in exported.report["layers"]]
        lines = size_truth.table(sizes).splitlines()
        assert len(lines) == len(sizes) + 2
        assert f"{exported.report['encoded_weight_bytes']:,}" in lines[-1]
