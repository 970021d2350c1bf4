"""What TensorBoard is given, read back from the event files."""

import errno

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from udc_tf.models import small_cnn
from udc_tf.training.tensorboard_log import TensorBoard, decision_images


def _events(folder):
    found = {}
    for path in sorted(folder.rglob("events.out.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                found[value.tag, event.step] = value
    return found


class TestTensorBoard:
    def test_a_full_disk_is_an_error_as_of_any_file(self, tmp_path, monkeypatch):
        callback = TensorBoard(tmp_path)
        callback.set_model(keras.Sequential([keras.Input((1,))]))
        callback.on_train_begin()

        def full():
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

        monkeypatch.setattr(callback._writer, "flush", full)
        with pytest.raises(OSError, match="No space left on device") as raised:
            callback.on_epoch_end(0, {"loss": 1.0})
        assert raised.value.errno == errno.ENOSPC

    def test_curves_and_decisions_of_a_search(self, tmp_path):
        search = udc_tf.make_searchable(
            small_cnn(filters=(4, 8)), "ethos_u55", udc_tf.Flash("3.5KiB")
        )
        search.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True
        )
        x, y = np.zeros((8, 8, 8, 1), "float32"), np.arange(8)
        search.fit(x, y, epochs=2, verbose=0, callbacks=[TensorBoard(tmp_path)])
        events = _events(tmp_path)
        wanted = ("loss/task", "loss/size", "size/most_likely_to_budget", "decisions/entropy")
        for tag in wanted:
            for step in (0, 1):
                value = events[tag, step]
                assert value.metadata.plugin_data.plugin_name == "scalars"
                assert np.isfinite(tf.make_ndarray(value.tensor))
        width, height, png = tf.make_ndarray(events["decisions/bits", 1].tensor)
        image = tf.io.decode_png(png)
        assert (int(height), int(width)) == tuple(image.shape[:2])

    def test_image_every(self, tmp_path):
        with pytest.raises(ValueError, match="image_every"):
            TensorBoard(tmp_path, image_every=0)


class TestDecisionImages:
    def test_likely_options_are_dark_and_missing_ones_white(self):
        images = decision_images(
            {"bits/a": {4: 1.0, 8: 0.0}, "bits/b": {2: 0.2, 4: 0.3, 8: 0.5}}, cell=1
        )
        np.testing.assert_array_equal(images["bits"][..., 0], [[0, 255, 255], [204, 178, 128]])
