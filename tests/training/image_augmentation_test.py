"""Augmentation of batches."""

import numpy as np
import tensorflow as tf

from udc_tf.training.image_augmentation import Augmentation, cutout, pad_and_crop, random_flip

SEED = tf.constant([1, 2])


def images(count=64, size=9):
    return tf.random.stateless_uniform((count, size, size, 2), (5, 6), 1.0, 2.0)


class TestFunctions:
    def test_flip_mirrors_some_images(self):
        x = images().numpy()
        y = random_flip(tf.constant(x), SEED).numpy()
        same = np.all(y == x, axis=(1, 2, 3))
        mirrored = np.all(y == x[:, :, ::-1], axis=(1, 2, 3))
        assert np.all(same ^ mirrored)
        assert 10 < same.sum() < 54

    def test_crop_is_a_window_of_the_padded_image(self):
        x = images(8).numpy()
        y = pad_and_crop(tf.constant(x), 2, SEED).numpy()
        padded = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
        for before, after in zip(padded, y, strict=True):
            windows = [before[i : i + 9, j : j + 9] for i in range(5) for j in range(5)]
            assert any(np.array_equal(after, w) for w in windows)

    def test_cutout_is_a_square(self):
        x = images(200)
        hole = np.all(cutout(x, 4, SEED).numpy() == 0, axis=-1)
        areas = hole.sum(axis=(1, 2))
        assert areas.max() == 16
        assert areas.min() >= 4  # a corner
        np.testing.assert_array_equal(hole.any(2).sum(1) * hole.any(1).sum(1), areas)


class TestAugmentation:
    def dataset(self):
        data = tf.data.Dataset.from_tensor_slices((images(6), tf.range(6))).batch(2)
        return Augmentation(crop=2, cutout=3, seed=1).apply(data)

    def test_passes_differ_and_repeat_with_the_seed(self):
        one, other = self.dataset(), self.dataset()
        first, second = (np.concatenate([x for x, _ in one]) for _ in range(2))
        assert np.any(first != second)
        np.testing.assert_array_equal(first, np.concatenate([x for x, _ in other]))
        np.testing.assert_array_equal(second, np.concatenate([x for x, _ in other]))

    def test_labels_stay(self):
        assert np.concatenate([y for _, y in self.dataset()]).tolist() == list(range(6))
