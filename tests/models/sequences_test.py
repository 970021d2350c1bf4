"""Recordings, windows of sensor data and spoken digits, on small fakes of the real files."""

import numpy as np
import pytest
import tensorflow as tf

from udc_tf.cli.options import Options, resolve
from udc_tf.cli.usage import UsageError
from udc_tf.models import data, recipes
from udc_tf.models.data.recordings import features, read_wave
from udc_tf.models.data.windows import read_table


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def _tone(path, pitch, seconds=0.5, rate=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = 0.3 * np.sin(2 * np.pi * pitch * np.arange(int(rate * seconds)) / rate)
    path.write_bytes(tf.audio.encode_wav(wave[:, None].astype("float32"), rate).numpy())


def _table(path, rows, head=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + "".join(",".join(f"{v:g}" for v in row) + "\n" for row in rows))


class TestRecordings:
    @pytest.fixture
    def folder(self, tmp_path):
        for word, pitch in (("low", 300), ("high", 3000)):
            for i in range(10):
                _tone(tmp_path / word / f"{i}.wav", pitch * (1 + i / 100))
        return tmp_path

    def test_one_folder_a_class(self, folder):
        loaded = data.load(str(folder))
        assert loaded.class_names == ("high", "low") and loaded.input_shape == (49, 40)
        assert [len(loaded.part(p)) for p in ("train", "validation", "test")] == [14, 2, 4]
        assert loaded.train.x.dtype == np.uint8
        # The bands tell the pitch apart.
        loudest = loaded.train.x.astype(float).sum(1).argmax(1)
        assert loudest[loaded.train.y == 1].max() < loudest[loaded.train.y == 0].min()
        assert loaded.front_end["num_channels"] == 40

    def test_shapes_for_networks_and_lengths(self, folder):
        assert data.load(str(folder), rank=3).input_shape == (49, 40, 1)
        assert data.load(str(folder), clip_seconds=0.25).input_shape == (12, 40)

    def test_bytes_are_what_the_c_library_makes(self):
        # As TFLM's C code in another build (PyPI's pymicro-features) has it.
        wave = (8000 * np.sin(2 * np.pi * 440 * np.arange(1600) / 16000)).astype(np.int16)
        heard = features(wave)
        assert heard.shape == (4, 40)
        assert heard[0, :8].tolist() == [206, 208, 229, 223, 255, 233, 254, 223]
        assert features(np.zeros(1600, np.int16)).max() == 0

    def test_every_sample_is_kept(self, tmp_path, rng):
        wave = rng.integers(-32768, 32767, 500).astype(np.int16)
        content = tf.audio.encode_wav(wave[:, None].astype("float32") / 32768, 16000)
        (tmp_path / "a.wav").write_bytes(content.numpy())
        np.testing.assert_array_equal(read_wave(str(tmp_path / "a.wav"), 500), wave)
        np.testing.assert_array_equal(read_wave(str(tmp_path / "a.wav"), 300), wave[:300])
        assert not read_wave(str(tmp_path / "a.wav"), 800)[500:].any()

    def test_damaged_and_unfit_files_are_named(self, folder):
        path = folder / "low" / "3.wav"
        whole = path.read_bytes()
        promising = whole[:40] + (2**31 - 2).to_bytes(4, "little") + whole[44:]  # two gigabytes
        for content in (whole[:30], b"", promising):
            path.write_bytes(content)
            with pytest.raises(data.DataError, match=r"3\.wav is not a 16-bit WAV"):
                data.load(str(folder))
        _tone(path, 300, rate=8000)
        with pytest.raises(data.DataError, match=r"3\.wav should have 16,000 .* Received: 8,000"):
            data.load(str(folder))
        (folder / "low" / "cover.png").write_bytes(b"")
        with pytest.raises(data.DataError, match="Received: images and recordings"):
            data.load(str(folder))


class TestTables:
    def test_recordings_are_cut_and_never_in_two_parts(self, tmp_path):
        for label, name in enumerate(("run", "walk")):
            for i in range(10):
                number = 10 * label + i
                _table(tmp_path / name / f"{i}.csv", [(number, -number)] * 21, "x,y\n")
        loaded = data.load(str(tmp_path), window=4)
        assert loaded.input_shape == (4, 2) and loaded.class_names == ("run", "walk")
        parts = [loaded.part(p) for p in ("train", "validation", "test")]
        assert [len(p) for p in parts] == [14 * 5, 2 * 5, 4 * 5]
        origins = [set(p.x[:, 0, 0].tolist()) for p in parts]
        assert sum(map(len, origins)) == len(set.union(*origins)) == 20
        for part in parts:
            np.testing.assert_array_equal(part.x[:, 0, 0] >= 10, part.y == 1)

    def test_channels_are_standardized(self, tmp_path, rng):
        for name in ("a", "b"):
            for i in range(5):
                values = rng.normal((5, -300), (0.1, 90), (40, 2))
                _table(tmp_path / name / f"{i}.csv", values)
        x, _ = data.load(str(tmp_path), window=8).arrays("train")
        np.testing.assert_allclose(x.mean((0, 1)), 0, atol=1e-4)
        np.testing.assert_allclose(x.std((0, 1)), 1, atol=1e-3)

    def test_mistakes_name_the_file(self, tmp_path):
        for name in ("a", "b"):
            for i in range(5):
                _table(tmp_path / name / f"{i}.csv", [(1, 2)] * 8)
        with pytest.raises(data.DataError, match=r"\d\.csv should have at least the 9 steps"):
            data.load(str(tmp_path), window=9)
        for damage, message in (
            ("1,2\n3\n", "is not a table of numbers"),
            ("1,2\n3,x\n", "is not a table of numbers"),
            ("1,nan\n", "finite"),
            ("", "no numbers"),
            ("x,y\n", "no numbers"),
            ("1,2,3\n" * 8, "the same channels"),
        ):
            (tmp_path / "b" / "1.csv").write_text(damage)
            with pytest.raises(data.DataError, match=message) as error:
                data.load(str(tmp_path), window=4)
            assert "1.csv" in str(error.value)
        (tmp_path / "b" / "1.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(data.DataError, match=r"1\.csv is not a table"):
            data.load(str(tmp_path), window=4)

    @pytest.mark.parametrize("text", ["1,2\n3,4\n", "1;2\n3;4\n", "1\t2\n3\t4\n", "1 2\n3 4\n"])
    def test_delimiters(self, tmp_path, text):
        (tmp_path / "a.txt").write_text(text)
        assert read_table(tmp_path / "a.txt").tolist() == [[1, 2], [3, 4]]


class TestWindowLines:
    def _write(self, path, labels, steps=12):
        path.write_text("".join(f"{y}" + "\t0.5" * steps + "\n" for y in labels))

    def test_the_archives_two_files(self, tmp_path):
        self._write(tmp_path / "Ford_TRAIN.tsv", [-1, 1] * 10)
        self._write(tmp_path / "Ford_TEST.tsv", [1, -1, 1])
        loaded = data.load(str(tmp_path / "Ford_TRAIN.tsv"))
        assert loaded.name == "Ford" and loaded.class_names == ("-1", "1")
        assert [len(loaded.part(p)) for p in ("train", "validation", "test")] == [18, 2, 3]
        assert loaded.input_shape == (12, 1) and loaded.test.y.tolist() == [1, 0, 1]

    def test_one_file_is_split(self, tmp_path):
        self._write(tmp_path / "all.csv", [0, 1] * 10)
        loaded = data.load(str(tmp_path / "all.csv"))
        assert [len(loaded.part(p)) for p in ("train", "validation", "test")] == [14, 2, 4]

    def test_mistakes(self, tmp_path):
        self._write(tmp_path / "A_TRAIN.tsv", [1, 2] * 5)
        self._write(tmp_path / "A_TEST.tsv", [3])
        with pytest.raises(data.DataError, match=r"A_TEST\.tsv has labels .* Received: \[3\]"):
            data.load(str(tmp_path / "A_TRAIN.tsv"))
        self._write(tmp_path / "b.csv", [0.5, 1.5])
        with pytest.raises(data.DataError, match="should be a whole number"):
            data.load(str(tmp_path / "b.csv"))
        with pytest.raises(data.DataError, match="is not a table"):
            data.load(str(tmp_path / "nowhere.csv"))


class TestNpz:
    def test_windows(self, tmp_path, rng):
        x = rng.normal(3, 2, (40, 16, 6))
        np.savez(tmp_path / "w.npz", x=x, y=np.arange(40) % 4)
        loaded = data.load(str(tmp_path / "w.npz"), rank=2)
        assert loaded.input_shape == (16, 6) and abs(loaded.arrays("train")[0].mean()) < 1e-4
        assert data.load(str(tmp_path / "w.npz")).input_shape == (16, 6, 1)  # gray images
        np.savez(tmp_path / "i.npz", x=x[..., None], y=np.arange(40) % 4)
        with pytest.raises(data.DataError, match=r"windows, \[n, steps, channels\]. Received"):
            data.load(str(tmp_path / "i.npz"), rank=2)

    def _spoken(self, path, rng, **changes):
        speaker = np.repeat(np.arange(1, 61), 10)
        content = {
            "logmel": rng.integers(0, 256, (600, 49, 40)).astype(np.uint8),
            "label": np.tile(np.arange(10), 60).astype(np.uint8),
            "speaker": speaker.astype(np.uint8),
            "range": np.array([-9.0, 3.0]),
        }
        np.savez(path, **(content | changes))

    def test_spoken_digits_are_split_by_speaker(self, tmp_path, rng):
        logmel = np.zeros((600, 49, 40), np.uint8) + np.repeat(np.arange(1, 61), 10)[:, None, None]
        self._spoken(tmp_path / "s.npz", rng, logmel=logmel.astype(np.uint8))
        loaded = data.load(str(tmp_path / "s.npz"), rank=3)
        assert loaded.input_shape == (49, 40, 1) and loaded.classes == 10
        heard = [set(loaded.part(p).x[:, 0, 0, 0]) for p in ("train", "validation", "test")]
        assert heard == [{*range(1, 49)}, {*range(49, 55)}, {*range(55, 61)}]
        assert len(set(loaded.arrays("test", 30)[1])) > 3  # mixed
        assert data.load(str(tmp_path / "s.npz"), rank=2).input_shape == (49, 40)

    def test_spoken_digits_damaged(self, tmp_path, rng):
        for change, message in (
            ({"label": np.zeros(3, np.uint8)}, r"should hold `logmel`"),
            ({"logmel": np.zeros((600, 49, 40))}, r"Received: float64"),
            ({"label": np.full(600, 10, np.uint8)}, "must be digits"),
            ({"speaker": np.ones(600, np.uint8)}, "validation part .* no examples"),
        ):
            self._spoken(tmp_path / "s.npz", rng, **change)
            with pytest.raises(data.DataError, match=message):
                data.load(str(tmp_path / "s.npz"))


class TestCommandLine:
    def test_recipes_take_what_their_networks_want(self, tmp_path, rng):
        TestNpz()._spoken(tmp_path / "s.npz", rng)
        path = str(tmp_path / "s.npz")
        for name, shape in (("spoken_digits", (49, 40, 1)), ("spoken_digits_conv1d", (49, 40))):
            run = resolve(Options(recipe=name, data=path))
            loaded = run.load_data()
            assert loaded.input_shape == shape == recipes.get(name).input_shape
            assert run.build_model(loaded.input_shape, loaded.classes).output_shape == (None, 10)

    def test_flags(self, tmp_path, rng):
        np.savez(tmp_path / "w.npz", x=rng.normal(size=(40, 16, 6)), y=np.arange(40) % 4)
        own = Options(model="udc_tf.models:temporal_cnn", data=str(tmp_path / "w.npz"))
        run = resolve(Options(**own.given(), sequences=True, flash="8KiB"))
        assert run.load_data().input_shape == (16, 6)
        for i in range(5):
            for name in ("a", "b"):
                _tone(tmp_path / "sound" / name / f"{i}.wav", 400)
                _table(tmp_path / "csv" / name / f"{i}.csv", [(1, 2, 3)] * 40)
        sound = Options(recipe="spoken_digits", data=str(tmp_path / "sound"), clip_seconds=0.5)
        assert resolve(sound).load_data().input_shape == (24, 40, 1)
        tables = Options(recipe="activity", data=str(tmp_path / "csv"), window=16)
        assert resolve(tables).load_data().input_shape == (16, 3)
        with pytest.raises(UsageError, match="takes windows of steps and channels"):
            resolve(Options(recipe="activity", data="digits")).load_data()
        with pytest.raises(UsageError, match="--clip_seconds must be from"):
            resolve(Options(recipe="activity", clip_seconds=0.0))
