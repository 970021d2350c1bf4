"""A network's file is data, its loss and optimizer included."""

import json

import h5py
import keras
import pytest

from udc_tf import files, saved_models


def _saved(path, loss) -> None:
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.Dense(2)(x))
    model.compile("sgd", loss)
    model.save(path)


@pytest.mark.parametrize("name", ["net.h5", "net.keras"])
def test_a_loss_is_read_back_if_keras_can(name, tmp_path):
    _saved(tmp_path / name, keras.losses.CategoricalCrossentropy(from_logits=True))
    loaded = saved_models.load_model(tmp_path / name, "none", compile=True)
    assert loaded.loss.from_logits
    _saved(tmp_path / name, "mse")
    assert saved_models.load_model(tmp_path / name, "none", compile=True).count_params() == 10


def test_the_loss_of_an_h5_file_names_no_code_of_its_own(tmp_path, monkeypatch):
    executed, path = tmp_path / "executed", tmp_path / "net.h5"
    (tmp_path / "hostile_loss.py").write_text(f"open({str(executed)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    _saved(path, "mse")
    loss = {"module": "hostile_loss", "class_name": "Loss", "config": {}}
    with h5py.File(path, "a") as file:
        described = {**json.loads(file.attrs["training_config"]), "loss": loss}
        file.attrs["training_config"] = json.dumps(described)
    with pytest.raises(files.DamagedFileError, match=r"hostile_loss\.Loss is not a part of"):
        saved_models.load_model(path, "none", compile=True)
    assert not executed.exists()
