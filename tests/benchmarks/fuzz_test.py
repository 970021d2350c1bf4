"""Files from elsewhere end in a result or in a clear error: no crash, no hang, no stray write.

`benchmarks/fuzz.py` does for hours what is done here for seconds.
"""

import collections
import dataclasses
import json
import pathlib
import time
import zipfile

import keras
import numpy as np
import pytest

import udc_tf
from tests.support import fuzz_folder_targets, fuzz_targets
from udc_tf.compact import architecture as architecture_module
from udc_tf.export import tflite_file
from udc_tf.export.npu import NpuError, NpuNetwork, container
from udc_tf.export.npu.operator_names import OPERATOR_NAMES
from udc_tf.files import read_arrays

# An input that was found, or made, to break a reader; the ending of its name is how it ends now.
CORPUS = sorted(pathlib.Path(__file__).with_name("fuzz_corpus").glob("*/*"))
SECONDS = 10
MEBIBYTES = 300
DAMAGED = {"container": 80, "commands": 80, "weights": 60, "tflite": 60, "record": 60}
DAMAGED["architecture"] = 8  # Keras takes 0.2 s for each


@pytest.fixture(scope="module")
def seeds() -> dict[str, list[bytes]]:
    return {name: fuzz_targets.seeds(name) for name in DAMAGED}


@pytest.fixture
def peak():
    """Resets this process's memory peak; gives a function that says by how much it has grown."""

    def status(name: str) -> int:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) >> 10

    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    return lambda: status("VmHWM") - before


class TestDamage:
    @pytest.mark.parametrize("name", DAMAGED)
    def test_ends_as_the_reader_says(self, seeds, name):
        target = fuzz_targets.find(name)
        assert {target.run(data) for data in seeds[name]} == {"read"}
        outcomes = collections.Counter(
            target.run(target.damaged(seeds[name][number % len(seeds[name])], number))
            for number in range(DAMAGED[name])
        )
        assert set(outcomes) - {"read"}  # the damage is seen

    @pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}-{path.stem}")
    def test_what_was_found_stays_mended(self, path, peak):
        start = time.process_time()
        outcome = fuzz_targets.find(path.parent.name).run(path.read_bytes())
        assert outcome == path.suffix[1:]
        assert time.process_time() - start < SECONDS
        assert peak() < MEBIBYTES

    def test_every_prefix_of_a_file(self, seeds):
        data = min(seeds["container"], key=len)
        for end in range(0, len(data), max(1, len(data) // 150)):
            with pytest.raises(NpuError):
                NpuNetwork(data[:end])

    def test_offsets_that_go_everywhere(self, seeds):
        data = min(seeds["container"], key=len)
        for at in range(0, min(len(data), 800), 4):
            broken = bytearray(data)
            broken[at : at + 4] = b"\xff\xff\xff\x7f"
            try:
                container.parse(bytes(broken))
            except NpuError:
                continue

    def test_the_guard_sees_a_stray_write(self, seeds):
        network = fuzz_targets.GuardedNetwork(seeds["container"][0])
        network._new_stores(1)
        network.fences[0][0, 0] = 0
        with pytest.raises(AssertionError, match="outside the arena"):
            network.check_fences()


class TestTFLiteFile:
    def test_reads_what_tensorflows_own_reader_reads(self, seeds):
        from tensorflow.lite.python import schema_py_generated as schema

        for data in seeds["tflite"] + seeds["container"]:
            ours, theirs = tflite_file.read(data), schema.ModelT.InitFromPackedBuf(data, 0)
            graph = theirs.subgraphs[0]
            assert ours.inputs == tuple(graph.inputs) and ours.outputs == tuple(graph.outputs)
            assert [o.inputs for o in ours.operators] == [tuple(o.inputs) for o in graph.operators]
            for tensor, other in zip(ours.tensors, graph.tensors, strict=True):
                assert tensor.name == other.name.decode()
                assert tensor.shape == tuple(() if other.shape is None else other.shape)
                raw = theirs.buffers[other.buffer].data
                held = b"" if raw is None else bytes(bytearray(raw))
                assert held == (b"" if tensor.data is None else tensor.data.tobytes())
                scales = getattr(other.quantization, "scale", None)
                np.testing.assert_array_equal(tensor.scales, () if scales is None else scales)

    def test_knows_tensorflows_names_of_operators_and_types(self):
        from tensorflow.lite.python import schema_py_generated as schema

        names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
        assert len(OPERATOR_NAMES) > 150
        assert {code: names[code] for code in OPERATOR_NAMES} == OPERATOR_NAMES
        types = {v: k for k, v in vars(schema.TensorType).items() if isinstance(v, int)}
        assert dict(enumerate(tflite_file._TYPES)) == types


class TestArrays:
    def test_gives_back_what_was_saved(self, tmp_path):
        arrays = {"a\nb": np.arange(6.0).reshape(2, 3).T, "c": np.array(3), "d": np.zeros((0, 2))}
        np.savez(tmp_path / "x.npz", **arrays)
        found = read_arrays(tmp_path / "x.npz", "make it anew")
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c: c[: len(c) // 2], r"x\.npz is damaged"),
            (lambda c: c.replace(b"(1000,)", b"(9**99,)"), r"x\.npz is damaged"),
            (lambda c: c.replace(b"(1000,)", b"(9999,)"), r"x\.npz is damaged"),
            (lambda c: b"", r"x\.npz is damaged"),
        ],
    )
    def test_refuses_damage(self, tmp_path, change, message):
        path = tmp_path / "x.npz"
        np.savez(path, a=np.zeros(1000))
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(ValueError, match=message):
            read_arrays(path, "make it anew")

    def test_a_header_that_promises_too_much(self, tmp_path):
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999,), }\n"
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr(
                "a.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            )
        with pytest.raises(ValueError, match=r"shape \(999999999999,\) in 79 bytes"):
            read_arrays(tmp_path / "x.npz", "make it anew")

    def test_refuses_objects_and_compression(self, tmp_path):
        np.savez(tmp_path / "x.npz", a=np.array([{}]), allow_pickle=True)
        with pytest.raises(ValueError, match="an array of object"):
            read_arrays(tmp_path / "x.npz", "make it anew")
        np.savez_compressed(tmp_path / "y.npz", a=np.zeros(100_000))
        with pytest.raises(ValueError, match="it is compressed"):
            read_arrays(tmp_path / "y.npz", "make it anew")


def _set(*path):
    """An edit of JSON: the last of `path` is the new value, the others lead to its place."""

    def edit(content):
        *keys, last, value = path
        for key in keys:
            content = content[key]
        content[last] = value

    return edit


class TestArchitecture:
    @pytest.fixture(scope="class")
    def saved(self, tmp_path_factory) -> pathlib.Path:
        path = tmp_path_factory.mktemp("saved") / "architecture.json"
        model = fuzz_folder_targets.image_network()
        udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("32KiB")).architecture().save(path)
        return path

    @pytest.mark.parametrize(
        "edit",
        [
            _set("layers", 0, "nonzeros", "all"),
            _set("layers", 0, "bytes", 10**400),
            _set("layers", 0, "kernel_size", 3),
            _set("flash_bytes", "many"),
            _set("macs", None),
            _set("choices", []),
            _set("targets", [1]),
            _set("configuration", "channels", {"a": "b"}),
            _set("configuration", "layers", {"a": {"bits": None}}),
        ],
    )
    def test_refuses_values_of_a_wrong_type(self, saved, tmp_path, edit):
        content = json.loads(saved.read_text())
        edit(content)
        path = tmp_path / "architecture.json"
        path.write_text(json.dumps(content))
        path.with_suffix(".npz").write_bytes(saved.with_suffix(".npz").read_bytes())
        with pytest.raises(ValueError, match=r"architecture\.json is damaged"):
            udc_tf.Architecture.load(path)

    def test_says_that_a_network_cannot_be_built(self, saved):
        whole = udc_tf.Architecture.load(saved)
        for source in (
            {},
            {"class_name": "Dense", "config": {"units": 2}, "module": "keras.layers"},
        ):
            with pytest.raises(ValueError, match="cannot be built; is the file damaged"):
                dataclasses.replace(whole, source=source).build()

    def test_says_that_weights_belong_to_another_network(self, saved):
        whole = udc_tf.Architecture.load(saved)
        with pytest.raises(ValueError, match=r"weights are of another network.*Received: nothing"):
            dataclasses.replace(whole, weights={}).build()

    def test_refuses_a_network_that_would_fill_the_memory(self, saved, monkeypatch, peak):
        whole = udc_tf.Architecture.load(saved)
        text = json.dumps(whole.source).replace('"filters": 4', '"filters": 100000000')
        huge = dataclasses.replace(whole, source=json.loads(text))
        with pytest.raises(ValueError, match="a network of more than 268435456 weights"):
            huge.build()
        assert peak() < MEBIBYTES
        text = json.dumps(whole.source).replace("[null, 6, 6, 1]", "[null, 6, 6, 100000000]")
        with pytest.raises(ValueError, match="cannot be built"):
            dataclasses.replace(whole, source=json.loads(text)).build()
        assert peak() < MEBIBYTES
        monkeypatch.setattr(architecture_module, "WEIGHT_LIMIT", 10)
        with pytest.raises(ValueError, match="a network of more than 10 weights"):
            whole.build()
        assert keras.layers.Layer.add_weight.__name__ == "add_weight"
