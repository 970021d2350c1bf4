"""The script for the first user with a GPU runs, here on the processor."""

import pytest
import tensorflow as tf

from benchmarks import gpu_smoke
from udc_tf.cli.options import Options
from udc_tf.training.workers import Workers


@pytest.fixture(scope="module")
def row():
    from tests.support.eager import run_eagerly

    options = Options(recipe="digits", batch_size=4, samples=2, flash="6KiB")
    with run_eagerly():
        return gpu_smoke.measure(options, 3, Workers())


def test_steps_are_timed_and_memory_is_measured(row):
    assert row["search"]["s per step"] > 0 and row["finetuning"]["s per step"] > 0
    assert row["peak MiB"] > row["estimated MiB"] > 0
    assert "digits" in gpu_smoke.report({"digits": row})


def test_masks_are_those_of_numpy(row):
    assert row["masks that differ"] == 0


def test_a_wrong_mask_is_counted(monkeypatch):
    import udc_tf
    from tests.support import networks

    search = udc_tf.make_searchable(networks.small_cnn(), "ethos_u55", udc_tf.Flash(2900))
    layer = search.kernel_layers[0]
    right = layer.ranked_buckets
    monkeypatch.setattr(
        layer, "ranked_buckets", lambda *args, **kwargs: right(*args, **kwargs) + tf.ones([])
    )
    assert gpu_smoke.masks_that_differ(search) == layer.theta.numpy().size
