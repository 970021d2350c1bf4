"""Real processes that train together, on this machine."""

import json
import re
import signal
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from tests.support import networks
from tests.support.paths import ROOT
from tests.support.processes import environment
from udc_tf.cli import commands
from udc_tf.training import workers


def _start(command, ports=(), index=0, **options) -> subprocess.Popen:
    variables = environment()
    variables.pop("TF_CONFIG", None)
    if ports:
        workers = [f"127.0.0.1:{port}" for port in ports]
        task = {"type": "worker", "index": index}
        variables["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=variables, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, **options,
    )  # fmt: skip


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _finished(process: subprocess.Popen, timeout=240) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, out, err


# Arguments: samples a worker, file for the logits after every step.
_SEARCH = """
import sys
import keras
import numpy as np
import udc_tf
from tests.support import networks
from udc_tf.training.workers import Workers, leave

workers = Workers.from_environment()
keras.utils.set_random_seed(1)
with workers.scope():
    settings = udc_tf.SearchSettings(samples=int(sys.argv[1]), warmup=0.25)
    target = udc_tf.Flash("3.5KiB")
    search = udc_tf.make_searchable(networks.small_cnn(), "ethos_u55", target, settings)
    search.compile(loss=networks.cross_entropy(), metrics=["accuracy"])

logits = []
class Keep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        logits.append(search.state.logits.numpy())

x, y = networks.blobs(96)
history = search.fit(
    x, y, batch_size=32, epochs=4, validation_data=(x[:33], y[:33]), callbacks=[Keep()], verbose=0
).history
architecture = search.architecture()
np.savez(
    sys.argv[2],
    logits=np.stack(logits),
    choices=list(architecture.choices.values()),
    loss=history["loss"],
    val_loss=history["val_loss"],
)
leave(0)
"""


class TestSearch:
    def test_two_workers_are_one_with_twice_the_samples(self, tmp_path):
        """Samples are numbered over all workers, and so are the slices of a batch."""
        ports = _free_ports(2)
        processes = [
            _start(["-c", _SEARCH, 1, tmp_path / "0.npz"], ports, 0),
            _start(["-c", _SEARCH, 1, tmp_path / "1.npz"], ports, 1),
            _start(["-c", _SEARCH, 2, tmp_path / "alone.npz"]),
        ]
        for process in processes:
            code, _, error = _finished(process)
            assert code == 0, error[-3000:]
        first, second, alone = (np.load(tmp_path / f"{n}.npz") for n in ("0", "1", "alone"))
        np.testing.assert_array_equal(first["logits"], second["logits"])
        assert np.abs(alone["logits"]).max() > 0.1  # it did decide
        np.testing.assert_allclose(first["logits"], alone["logits"], rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(first["choices"], alone["choices"])
        np.testing.assert_allclose(first["loss"], alone["loss"], rtol=1e-4)
        np.testing.assert_allclose(first["val_loss"], second["val_loss"], rtol=1e-6)


_COMMAND = "from udc_tf.cli import commands; commands.udc()"


class TestCommands:
    def test_a_killed_worker_ends_all_and_all_go_on_together(self, tmp_path):
        work = tmp_path / "work"
        x, y = networks.blobs(80)
        np.savez(tmp_path / "data.npz", x=x, y=y)
        layers = [keras.Input((8, 8, 1)), keras.layers.Conv2D(8, 3, strides=2, activation="relu")]
        layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)]
        keras.Sequential(layers).save(tmp_path / "tiny.keras")
        flags = [
            f"--model={tmp_path / 'tiny.keras'}", f"--data={tmp_path / 'data.npz'}",
            "--flash=4KiB", "--batch_size=32", "--search_epochs=12",
            "--finetune_epochs=0,1,0", "--samples=1", "--size_compiles=0", "--runners=none",
            f"--workdir={work}",
        ]  # fmt: skip

        def start(*flags):
            ports = _free_ports(2)
            return [_start(["-c", _COMMAND, *flags], ports, i) for i in range(2)]

        chief, other = start(*flags)
        log, until = work / "search.jsonl", time.monotonic() + 240
        while not log.exists() and time.monotonic() < until and chief.poll() is None:
            time.sleep(0.05)
        other.send_signal(signal.SIGKILL)
        _finished(other)
        code, _, error = _finished(chief)
        assert code == 1 and "they go on from the last epoch" in error, error[-3000:]
        done = len(log.read_text().splitlines())
        assert 1 <= done < 12 and not (work / "architecture.json").exists()

        chief, other = start(f"--workdir={work}")
        code, said, error = _finished(chief)
        assert code == 0, error[-3000:]
        assert f"search {done}/12" not in said and f"search {done + 1}/12" in said
        assert _finished(other)[:2] == (0, "")  # which has nothing to say
        epochs = [json.loads(line)["epoch"] for line in log.read_text().splitlines()]
        assert epochs == list(range(12))
        results = json.loads((work / "results.json").read_text())
        assert results["flash_bytes"] <= results["flash_budget"]
        # One writer each time.
        assert len(list((work / "logs").glob("events*"))) == 2


class TestChief:
    @pytest.mark.parametrize(
        "cluster, task, chief",
        [
            ({"worker": ["a:1", "b:1"]}, {"type": "worker", "index": 0}, True),
            ({"worker": ["a:1", "b:1"]}, {"type": "worker", "index": 1}, False),
            ({"chief": ["a:1"], "worker": ["b:1"]}, {"type": "chief", "index": 0}, True),
            ({"chief": ["a:1"], "worker": ["b:1"]}, {"type": "worker", "index": 0}, False),
        ],
    )
    def test_one_of_them_is(self, cluster, task, chief, monkeypatch):
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        assert workers.is_chief() == chief


class TestStrategies:
    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("mirrored", "needs several devices. Received: /device:CPU:0"),
            ("multi_worker", "must name two workers or more. Received: None"),
            ("tpu", "A TPU is needed that TensorFlow finds by itself, as on a TPU VM. Received: P"),
            ("gpu", "one of auto, mirrored, multi_worker, tpu. Received: 'gpu'"),
        ],
    )
    def test_what_is_not_there_is_refused(self, name, reason, monkeypatch):
        monkeypatch.delenv("TF_CONFIG", raising=False)
        with pytest.raises(ValueError, match=re.escape(reason)):
            workers.strategy_by_name(name)

    def test_the_command_says_so_before_anything_is_made(self, tmp_path, capsys):
        folder = tmp_path / "run"
        flags = ["--recipe=digits", f"--workdir={folder}", "--strategy=mirrored"]
        assert commands.main("udc", flags) == 2
        assert "--strategy=mirrored: A mirrored strategy needs" in capsys.readouterr().err
        assert not folder.exists()
