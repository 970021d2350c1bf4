"""`udc doctor` says what is there, what is missing, and how to get it."""

import importlib.metadata

from udc_tf.cli import commands
from udc_tf.cli.doctor import examine_packages
from udc_tf.export.runners import RUNNERS


def _said(*arguments):
    lines = []
    code = commands.main("udc", ["udc", *arguments], lines.append)
    return code, lines


def test_names_every_package_runner_and_device(monkeypatch):
    monkeypatch.setenv("PATH", "")  # neither QEMU nor Arm's model
    code, lines = _said("doctor")
    text = "\n".join(lines)
    assert code == 0
    for name in (*RUNNERS, "keras", "tensorflow", "ethos-u-vela", "matplotlib", "CPU:0"):
        assert any(line.split()[:1] == [name] for line in lines), name
    assert "apt-get install qemu-system-arm" in text
    assert "mlia-backend install corstone-300" in text


def test_what_is_missing_or_too_old_comes_with_its_remedy():
    installed = {"keras": "2.15.0", "pillow": "12.0"}

    def version(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    wanted = ["keras>=3.12", "numpy>=2", 'pillow>=10; extra == "data"', 'torch>=9; extra == "x"']
    old, missing, there, extra = examine_packages(wanted, version)
    assert old.is_fatal and "2.15.0, which is not >=3.12: pip install 'udc-tf'" in old.state
    assert missing.is_fatal and "pip install 'udc-tf'" in missing.state
    assert not there.is_fatal and there.state == "12.0  [data]"
    assert not extra.is_fatal and "pip install 'udc-tf[x]'" in extra.state


def test_takes_nothing_else(capsys):
    assert _said("doctor", "--seed=1")[0] == 2
    assert "Received: doctor" in capsys.readouterr().err
