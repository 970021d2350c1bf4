"""Loading, splitting and augmenting data, on small fakes of the real files."""

import gzip
import pickle

import numpy as np
import pytest
import tensorflow as tf

from tests.support.paths import SHARED
from udc_tf.models import data
from udc_tf.models.data.dataset import Dataset, Split, in_three
from udc_tf.models.data.fashion_mnist import DEBIAN
from udc_tf.models.data.speech_commands import CLASSES
from udc_tf.models.data.super_resolution import (
    bicubic,
    enlarge_by_tiles,
    psnr,
    read_pair,
)
from udc_tf.training.image_augmentation import Augmentation

_SHARED = SHARED / "data"


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def _write_png(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_png(image).numpy())


class TestSplits:
    def test_parts_are_disjoint_complete_and_deterministic(self):
        whole = Split(np.arange(100), np.arange(100))
        first, second = in_three(whole, 0.1, 0.2, seed=3), in_three(whole, 0.1, 0.2, seed=3)
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a.x, b.x)
        assert [len(p) for p in first] == [70, 10, 20]
        assert sorted(np.concatenate([p.x for p in first])) == list(range(100))

    def test_another_seed_splits_otherwise(self):
        whole = Split(np.arange(100), np.arange(100))
        assert set(in_three(whole, 0.1, 0.2, 0)[2].x) != set(in_three(whole, 0.1, 0.2, 1)[2].x)

    def test_labels_must_match(self):
        with pytest.raises(data.DataError, match="3 and 2"):
            Split(np.zeros(3), np.zeros(2))


class TestBatches:
    def _dataset(self, count=20):
        x = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8, 1), np.uint8)
        split = Split(x, np.arange(count, dtype=np.int32))
        return Dataset("fake", split, split, split, tuple("abcdefghijklmnopqrst"))

    def test_a_pass_has_each_example_once(self):
        batches = list(self._dataset().training_batches(8))
        assert [len(x) for x, _ in batches] == [8, 8, 4]
        assert sorted(np.concatenate([y for _, y in batches])) == list(range(20))

    def test_order_and_augmentation_follow_from_seed_and_epoch_alone(self):
        dataset, augmentation = self._dataset(), Augmentation(flip=True, crop=2, cutout=3)

        def one_pass(epoch):
            batches = dataset.training_batches(8, augmentation, seed=5, epoch=lambda: epoch)
            return [np.concatenate(parts) for parts in zip(*batches, strict=True)]

        (x, y), (again, labels), (_, other) = one_pass(2), one_pass(2), one_pass(3)
        np.testing.assert_array_equal(x, again)
        np.testing.assert_array_equal(y, labels)
        assert (y != other).any()

    def test_passes_count_themselves(self):
        batches = self._dataset().training_batches(20)
        first, second = (next(iter(batches))[1].numpy() for _ in range(2))
        assert (first != second).any()

    def test_pixels_become_what_int8_sees(self):
        x, _ = self._dataset().arrays("test")
        np.testing.assert_array_equal(x[:, 0, 0, 0] * 128, np.arange(20) - 128)

    def test_limited_for_trials(self):
        assert len(self._dataset().limited(5).train) == 5


class TestDigits:
    def test_shapes_range_and_classes(self):
        digits = data.load("digits")
        x, y = digits.arrays("train")
        assert digits.input_shape == (8, 8, 1) and digits.classes == 10
        assert x.min() == -1 and x.max() == 1 and set(y) == set(range(10))


class TestFashionMnist:
    def _fake(self, folder, rng):
        for name, count in (("train", 30), ("t10k", 10)):
            images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
            labels = rng.integers(0, 10, count, dtype=np.uint8)
            for array, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
                header = bytes([0, 0, 8, array.ndim])
                header += np.array(array.shape, ">i4").tobytes()
                content = gzip.compress(header + array.tobytes())
                (folder / f"{name}-{kind}-ubyte.gz").write_bytes(content)

    def test_reads_the_original_files(self, tmp_path, rng):
        self._fake(tmp_path, rng)
        loaded = data.load("fashion_mnist", tmp_path)
        sizes = [len(loaded.part(p)) for p in ("train", "validation", "test")]
        assert sizes == [27, 3, 10] and loaded.input_shape == (28, 28, 1)

    def test_damaged_and_missing_files(self, tmp_path, rng):
        self._fake(tmp_path, rng)
        path = tmp_path / "train-images-idx3-ubyte.gz"
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-5]))
        with pytest.raises(data.DataError, match="damaged"):
            data.load("fashion_mnist", tmp_path)
        path.unlink()
        with pytest.raises(data.DataError, match="dataset-fashion-mnist"):
            data.load("fashion_mnist", tmp_path)

    def test_debians_package(self):
        if not DEBIAN.is_dir():
            pytest.skip("Debian's dataset-fashion-mnist is not installed")
        loaded = data.load("fashion_mnist")
        assert [len(loaded.train), len(loaded.test)] == [54_000, 10_000]


class TestCifar:
    def test_reads_the_python_version(self, tmp_path, rng):
        folder = tmp_path / "cifar-100-python"
        folder.mkdir()
        for name, count in (("train", 20), ("test", 5)):
            planes = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
            content = {b"data": planes, b"fine_labels": list(range(count))}
            (folder / name).write_bytes(pickle.dumps(content))
        loaded = data.load("cifar100", tmp_path)
        assert loaded.input_shape == (32, 32, 3) and loaded.classes == 100
        first = loaded.train.x[0].transpose(2, 0, 1).ravel()
        assert (pickle.loads((folder / "train").read_bytes())[b"data"] == first).all(1).any()

    def test_reads_an_npz(self, tmp_path, rng):
        x = rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
        y = np.arange(20, dtype=np.uint8) % 10
        np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
        loaded = data.load("cifar10", tmp_path)
        assert [len(loaded.train), len(loaded.validation), len(loaded.test)] == [18, 2, 5]
        assert loaded.train.y.dtype == np.int32 and loaded.class_names[0] == "airplane"

    def test_missing_files_say_what_to_get(self, tmp_path):
        with pytest.raises(data.DataError, match="python version"):
            data.load("cifar10", tmp_path)


class TestNpz:
    def test_x_and_y_are_split(self, tmp_path, rng):
        np.savez(tmp_path / "own.npz", x=rng.normal(size=(50, 6)), y=np.arange(50) % 3)
        loaded = data.load(str(tmp_path / "own.npz"))
        assert loaded.classes == 3 and loaded.input_shape == (6,)
        assert [len(loaded.train), len(loaded.validation), len(loaded.test)] == [35, 5, 10]

    def test_without_y_inputs_are_targets(self, tmp_path, rng):
        np.savez(tmp_path / "own.npz", x=rng.normal(size=(50, 6)))
        x, y = data.load(str(tmp_path / "own.npz")).arrays("train")
        np.testing.assert_array_equal(x, y)

    @pytest.mark.parametrize(
        "content, message",
        [
            ({"images": np.zeros(3)}, "must hold arrays x and y"),
            ({"x": np.full((20, 2), np.nan), "y": np.zeros(20, int)}, "NaN"),
            ({"x": np.zeros((20, 2)), "y": np.zeros(19, int)}, "equally many"),
            ({"x": np.zeros((20, 2)), "y": np.arange(20) % 3 - 1}, "from 0 upwards. Received: -1"),
            ({"x": np.zeros((20, 2)), "y": np.arange(20) * 10**9}, "from 0 upwards. Received: 0"),
            ({"x": np.zeros((20, 2)), "y": np.zeros(20, int)}, "at least two classes"),
            ({"x": np.full((20, 2), "a"), "y": np.arange(20) % 2}, "must be numbers"),
            ({"x": np.zeros(20), "y": np.arange(20) % 2}, r"must be numbers.* of shape \(20,\)"),
        ],
    )
    def test_mistakes(self, tmp_path, content, message):
        np.savez(tmp_path / "own.npz", **content)
        with pytest.raises(data.DataError, match=message):
            data.load(str(tmp_path / "own.npz"))

    @pytest.mark.parametrize(
        "changed, message",
        [
            ({"y_test": np.arange(6) % 4}, "test part.* from 0 to 2.* Received: 0 to 3"),
            ({"y_test": np.arange(6) / 2}, "test part.* whole number.* float64"),
            ({"x_test": np.zeros((6, 5))}, r"x of one shape.* \(5,\) in the test part"),
            ({"x_test": np.zeros((0, 4)), "y_test": np.zeros(0, int)}, "test part.* no examples"),
        ],
    )
    def test_the_test_part_is_like_the_train_part(self, tmp_path, changed, message):
        content = {
            **{"x_train": np.zeros((30, 4)), "y_train": np.arange(30) % 3},
            **{"x_test": np.zeros((6, 4)), "y_test": np.arange(6) % 3},
            **changed,
        }
        np.savez(tmp_path / "own.npz", **content)
        with pytest.raises(data.DataError, match=message):
            data.load(str(tmp_path / "own.npz"))

    @pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "npy"])
    def test_damaged_files(self, tmp_path, damage):
        path = tmp_path / "own.npz"
        np.savez_compressed(path, x=np.arange(80.0).reshape(20, 4), y=np.arange(20) % 3)
        content = bytearray(path.read_bytes())
        content[60] ^= 255
        damaged = {"empty": b"", "truncated": content[:-30], "flipped": content}.get(damage)
        if damaged is None:
            with open(path, "wb") as file:
                np.save(file, np.zeros(3))
        else:
            path.write_bytes(damaged)
        with pytest.raises(data.DataError, match=r"own\.npz cannot be read as \.npz"):
            data.load(str(path))

    def test_no_file_or_no_npz(self, tmp_path):
        with pytest.raises(data.DataError, match="There is no"):
            data.load(str(tmp_path / "none.npz"))
        (tmp_path / "text.npz").write_text("no archive")
        with pytest.raises(data.DataError, match="cannot be read"):
            data.load(str(tmp_path / "text.npz"))


class TestFolder:
    def test_one_folder_a_class(self, tmp_path, rng):
        for name in ("cat", "dog"):
            for i in range(10):
                image = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
                _write_png(tmp_path / name / f"{i}.png", image)
        loaded = data.load(str(tmp_path), image_size=(16, 12), channels=1)
        assert loaded.class_names == ("cat", "dog") and loaded.input_shape == (16, 12, 1)
        assert [len(loaded.train), len(loaded.validation), len(loaded.test)] == [14, 2, 4]

    def test_given_parts_are_kept(self, tmp_path, rng):
        for part, count in (("train", 10), ("val", 3), ("test", 2)):
            for name in ("a", "b"):
                for i in range(count):
                    image = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                    _write_png(tmp_path / part / name / f"{i}.png", image)
        loaded = data.load(str(tmp_path), image_size=(8, 8))
        assert [len(loaded.train), len(loaded.validation), len(loaded.test)] == [20, 6, 4]

    def test_hidden_folders_and_files_are_no_classes(self, tmp_path):
        image = np.zeros((8, 8, 3), np.uint8)
        for name in ("a", "b", ".ipynb_checkpoints"):
            for i in range(5):
                _write_png(tmp_path / name / f"{i}.png", image)
        (tmp_path / "a" / "._0.png").write_bytes(b"a Mac's notes about 0.png")
        loaded = data.load(str(tmp_path), image_size=(8, 8))
        assert loaded.class_names == ("a", "b")
        assert sum(len(loaded.part(p)) for p in ("train", "validation", "test")) == 10

    def test_a_class_without_training_images(self, tmp_path):
        image = np.zeros((8, 8, 3), np.uint8)
        for name in ("train/a", "train/b", "test/a", "test/b", "test/c"):
            _write_png(tmp_path / name / "0.png", image)
        with pytest.raises(data.DataError, match=r"test holds images of a class .* Received: c"):
            data.load(str(tmp_path), image_size=(8, 8))

    def test_a_test_part_without_a_train_part(self, tmp_path):
        for name in ("a", "b", "test/a", "test/b"):
            _write_png(tmp_path / name / "0.png", np.zeros((8, 8, 3), np.uint8))
        with pytest.raises(data.DataError, match="without a folder `train`"):
            data.load(str(tmp_path), image_size=(8, 8))

    def test_the_first_examples_are_of_all_classes(self, tmp_path):
        for name in ("train/a", "train/b", "test/a", "test/b"):
            for i in range(20):
                _write_png(tmp_path / name / f"{i}.png", np.zeros((8, 8, 3), np.uint8))
        loaded = data.load(str(tmp_path), image_size=(8, 8))
        for part in ("train", "test"):
            assert len(set(loaded.arrays(part, 10)[1])) == 2

    def test_mistakes(self, tmp_path):
        with pytest.raises(data.DataError, match="Data are one of digits"):
            data.load(str(tmp_path / "nowhere"))
        with pytest.raises(data.DataError, match="at least two classes"):
            data.load(str(tmp_path))
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            for i in range(5):
                (tmp_path / name / f"{i}.png").write_bytes(b"no image")
        with pytest.raises(data.DataError, match=r"\d.png is not an image"):
            data.load(str(tmp_path))


class TestSpeechCommands:
    def test_words_unknown_and_silence(self, tmp_path, rng):
        def write(name, seconds=1.0):
            wave = rng.normal(size=(int(16000 * seconds), 1)).astype("float32") * 0.1
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(tf.audio.encode_wav(wave, 16000).numpy())

        for word in ("yes", "no", "cat"):
            for i in range(4):
                write(f"{word}/{i}.wav", 0.9)
        write("_background_noise_/hum.wav", 2.0)
        (tmp_path / "validation_list.txt").write_text("yes/0.wav\ncat/0.wav\n")
        (tmp_path / "testing_list.txt").write_text("yes/1.wav\ncat/1.wav\n")
        loaded = data.load("speech_commands", tmp_path)
        assert loaded.input_shape == (49, 10, 1) and loaded.class_names == CLASSES
        assert [len(loaded.train), len(loaded.validation), len(loaded.test)] == [8, 3, 3]
        assert set(loaded.test.y) == {CLASSES.index(c) for c in ("yes", "unknown", "silence")}
        cached = data.load("speech_commands", tmp_path)
        np.testing.assert_array_equal(cached.train.x, loaded.train.x)

    def test_missing(self, tmp_path):
        with pytest.raises(data.DataError, match=r"speech_commands_v0\.02"):
            data.load("speech_commands")
        with pytest.raises(data.DataError, match="validation_list"):
            data.load("speech_commands", tmp_path)


class TestImageNet:
    def test_files_are_read_as_they_are_needed(self, tmp_path, rng):
        for part, count in (("train", 4), ("val", 2)):
            for name in ("n01", "n02"):
                for i in range(count):
                    image = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
                    _write_png(tmp_path / part / name / f"{i}.png", image)
        loaded = data.load("imagenet", tmp_path, image_size=(32, 32))
        assert [len(loaded.train), len(loaded.validation), len(loaded.test)] == [7, 1, 4]
        x, y = next(iter(loaded.training_batches(4, seed=1, epoch=lambda: 0)))
        again, _ = next(iter(loaded.training_batches(4, seed=1, epoch=lambda: 0)))
        assert x.shape == (4, 32, 32, 3) and y.shape == (4,)
        np.testing.assert_array_equal(x, again)
        assert loaded.arrays("test", 2)[0].shape == (2, 32, 32, 3)
        assert next(iter(loaded.batches("test", 3)))[0].shape == (3, 32, 32, 3)

    def test_missing(self, tmp_path):
        with pytest.raises(data.DataError, match="image-net"):
            data.load("imagenet")
        with pytest.raises(data.DataError, match="one folder per class"):
            data.load("imagenet", tmp_path)


class TestSuperResolution:
    def test_pairs_and_patches(self, tmp_path, rng):
        for i in range(10):
            smooth = np.kron(rng.integers(0, 256, (9, 10, 3)), np.ones((8, 8, 1)))
            _write_png(tmp_path / "train" / f"{i}.png", smooth.astype(np.uint8))
        loaded = data.super_resolution(tmp_path, patch=16, patches_an_image=2)
        assert loaded.train.x.shape == (18, 16, 16, 1)
        assert loaded.train.y.shape == (18, 64, 64, 1)
        x, y = next(iter(loaded.training_batches(4, data.Turning(), seed=1)))
        assert x.shape == (4, 16, 16, 1) and y.shape == (4, 64, 64, 1)
        # Turned alike: the small image is still the large one, made smaller.
        smaller = tf.nn.avg_pool2d(y, 4, 4, "SAME")
        assert np.abs(smaller - x).mean() < 0.1

    def test_tiles_join_without_seams(self, rng):
        small = rng.integers(0, 256, (57, 90), dtype=np.uint8)

        def nearest(tiles):
            return tiles.repeat(4, axis=1).repeat(4, axis=2)

        expected = small.repeat(4, axis=0).repeat(4, axis=1)
        np.testing.assert_array_equal(enlarge_by_tiles(nearest, small), expected)

    def test_bicubic_scores_what_the_field_reports(self):
        folder = _SHARED / "super_resolution" / "set5"
        if not folder.is_dir():
            pytest.skip(f"{folder} is not there")
        pairs = [read_pair(str(f)) for f in sorted(folder.glob("*.png"))]
        scores = [psnr(bicubic(small), large) for small, large in pairs]
        assert np.mean(scores) == pytest.approx(28.42, abs=0.05)

    def test_missing(self, tmp_path):
        with pytest.raises(data.DataError, match="DIV2K"):
            data.load("super_resolution")
        with pytest.raises(data.DataError, match="There is neither"):
            data.load("super_resolution", tmp_path)
