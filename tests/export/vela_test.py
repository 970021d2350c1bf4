"""Vela, the real one, on small networks."""

import pathlib
import stat
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from udc_tf.export import errors, tflite_file, vela


def _quantized(model: keras.Model) -> bytes:
    shape = (1, *model.input.shape[1:])
    function = tf.function(lambda x: model(x)).get_concrete_function(tf.TensorSpec(shape))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    samples = np.random.default_rng(0).normal(size=(4, *shape)).astype("float32")
    converter.representative_dataset = lambda: [[x] for x in samples]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> pathlib.Path:
    """Two convolutions and a dense layer."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(16, 3, activation="relu")(inputs)
    x = keras.layers.Conv2D(32, 3)(x)
    outputs = keras.layers.Dense(4)(keras.layers.Flatten()(x))
    path = tmp_path_factory.mktemp("models") / "small.tflite"
    path.write_bytes(_quantized(keras.Model(inputs, outputs)))
    return path


@pytest.fixture(scope="module")
def with_cumsum(tmp_path_factory) -> pathlib.Path:
    """A network with an operator that no Ethos-U has."""
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3)(inputs)
    path = tmp_path_factory.mktemp("models") / "cumsum.tflite"
    path.write_bytes(_quantized(keras.Model(inputs, keras.ops.cumsum(x, axis=1))))
    return path


class TestCompileWithVela:
    def test_reports_the_compiled_file(self, small, tmp_path):
        result = vela.compile_with_vela(small, tmp_path / "new" / "folder")
        assert result.path == tmp_path / "new" / "folder" / "small_vela.tflite"
        assert result.flash_bytes == result.path.stat().st_size
        assert result.cpu_operators == ()
        assert 0 < result.sram_bytes < 64 * 1024
        assert result.cycles > 0 and result.inferences_per_second > 0
        assert [p.name for p in result.path.parent.iterdir()] == ["small_vela.tflite"]

    def test_weight_bytes_are_those_of_each_layer(self, small, tmp_path):
        result = vela.compile_with_vela(small, tmp_path)
        original = tflite_file.read(small)
        with_weights = [
            i for i, o in enumerate(original.operators) if o.kind in ("CONV_2D", "FULLY_CONNECTED")
        ]
        assert sorted(result.weight_bytes) == with_weights
        assert sum(result.weight_bytes.values()) == result.encoded_weight_bytes
        weights = original.tensors[original.operators[with_weights[1]].inputs[1]].data
        # 8-bit random weights hardly compress and hardly grow.
        assert 0.8 < result.weight_bytes[with_weights[1]] / weights.size < 1.2

    def test_twice_gives_the_same_bytes(self, small, tmp_path):
        one = vela.compile_with_vela(small, tmp_path / "a").path.read_bytes()
        assert vela.compile_with_vela(small, tmp_path / "b").path.read_bytes() == one

    def test_names_that_xml_does_not_take(self, small, tmp_path):
        folder = tmp_path / 'R&D <1> "x"'
        folder.mkdir()
        source = folder / 'a&b<c>"d.tflite'
        source.write_bytes(small.read_bytes())
        result = vela.compile_with_vela(source, folder / "out")
        assert result.path.name == 'a&b<c>"d_vela.tflite'
        plain = vela.compile_with_vela(small, tmp_path / "plain")
        assert result.path.read_bytes() == plain.path.read_bytes()
        assert result.operators == plain.operators

    @pytest.mark.parametrize("accelerator", ["ethos-u55-32", "ethos-u55-256", "ethos-u65-256"])
    def test_other_accelerators(self, small, tmp_path, accelerator):
        result = vela.compile_with_vela(small, tmp_path, accelerator)
        assert result.accelerator == accelerator and result.cpu_operators == ()

    def test_a_configuration_file_of_the_user(self, small, tmp_path):
        import ethosu

        shipped = pathlib.Path(ethosu.__path__[0], "config_files", "Arm", "vela.ini")
        own = tmp_path / "own.ini"
        own.write_text(shipped.read_text().replace("Ethos_U55_High_End_Embedded", "My_Board"))
        result = vela.compile_with_vela(
            small, tmp_path, system_config="My_Board", memory_mode="Sram_Only", config=own
        )
        assert (result.system_config, result.memory_mode) == ("My_Board", "Sram_Only")

    def test_cpu_operators_are_an_error_unless_allowed(self, with_cumsum, tmp_path):
        with pytest.raises(errors.CpuOperatorsError, match=r"CUMSUM[\s\S]*Unsupported opType"):
            vela.compile_with_vela(with_cumsum, tmp_path)
        assert list(tmp_path.iterdir()) == []
        result = vela.compile_with_vela(with_cumsum, tmp_path, allow_cpu_operators=True)
        assert "CUMSUM" in result.cpu_operators


class TestFailures:
    def test_unknown_accelerator(self, small, tmp_path):
        with pytest.raises(ValueError, match="Received: 'ethos-u56'"):
            vela.compile_with_vela(small, tmp_path, "ethos-u56")

    def test_vela_speaks_for_itself(self, small, tmp_path):
        with pytest.raises(errors.VelaError, match=r"System_Config\.nowhere not found"):
            vela.compile_with_vela(small, tmp_path, system_config="nowhere")
        assert list(tmp_path.iterdir()) == []

    def test_missing_configuration_file(self, small, tmp_path):
        with pytest.raises(errors.VelaError, match=r"config=.*absent\.ini"):
            vela.compile_with_vela(small, tmp_path, config=tmp_path / "absent.ini")

    def test_missing_network(self, tmp_path):
        with pytest.raises(errors.ExportError, match=r"absent\.tflite"):
            vela.compile_with_vela(tmp_path / "absent.tflite", tmp_path)

    @pytest.mark.parametrize("damage", [lambda b: b"\0" * 64, lambda b: b[: len(b) // 3]])
    def test_damaged_network(self, small, tmp_path, damage):
        path = tmp_path / "damaged.tflite"
        path.write_bytes(damage(small.read_bytes()))
        with pytest.raises(errors.DamagedModelError, match=r"damaged\.tflite"):
            vela.compile_with_vela(path, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_vela_missing(self, small, tmp_path, monkeypatch):
        # A Python without its site-packages has no Vela.
        bare = tmp_path / "python"
        bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
        bare.chmod(bare.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(bare))
        with pytest.raises(errors.VelaError, match="pip install ethos-u-vela"):
            vela.compile_with_vela(small, tmp_path / "out")

    def test_folder_that_is_a_file(self, small, tmp_path):
        (tmp_path / "out").write_text("")
        with pytest.raises(errors.ExportError, match="Cannot write to the folder"):
            vela.compile_with_vela(small, tmp_path / "out")


class TestTFLiteFile:
    def test_reads_weights_and_scales(self, small):
        file = tflite_file.read(small)
        conv = next(o for o in file.operators if o.kind == "CONV_2D")
        weights = file.tensors[conv.inputs[1]]
        assert weights.shape == (16, 3, 3, 3) and weights.type == "INT8"
        assert weights.scales.shape == (16,) and weights.quantized_axis == 0
        assert np.abs(weights.data.astype(int)).max() == 127
        assert file.tensors[file.inputs[0]].data is None
