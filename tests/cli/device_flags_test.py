"""What flags say about the device."""

import pytest

from udc_tf.cli.device_flags import Device
from udc_tf.cli.flags import help_text, make_flags
from udc_tf.cli.options import Options, resolve
from udc_tf.cli.usage import UsageError


def targets(**flags):
    run = resolve(Options(recipe="digits", **flags))
    return run, {t.to_dict()["kind"]: t for t in run.targets()}


def test_budgets_besides_flash():
    run, found = targets(flash="8KiB", sram="24KiB", cycles=2e5, memory_mode="Sram_Only")
    assert found.keys() == {"flash", "sram", "cycles"} and found["sram"].budget == 24576
    assert found["sram"].memory_mode == found["cycles"].memory_mode == "Sram_Only"
    assert run.sections()["search"]["sram"] == 24576 and run.device == "ethos-u55-128"


def test_a_board_gives_what_is_not_said():
    run, found = targets(flash="8KiB", board="nxp-imx93")
    assert run.accelerator == "ethos-u65-256" and found["sram"].budget == 384 * 1024
    assert run.where.system_config == "Ethos_U65_High_End"
    run = resolve(Options(model="own:net", data="own.npz", board="renesas-ra8p1"))
    assert [t.budget for t in run.targets()] == [1 << 20, 1664 << 10]
    assert "renesas-ra8p1" in help_text(make_flags())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"board": "arduino"}, "--board is one of corstone-300"),
        ({"board": "nxp-imx93", "accelerator": "ethos-u55-64"}, "has an ethos-u65-256"),
        ({"board": "renesas-ra8p1", "flash": "2MiB"}, "has 1,048,576 bytes of flash"),
        ({"board": "nxp-imx93", "sram": "512KiB"}, "nxp-imx93 has 393,216 bytes of sram"),
        (
            {"accelerator": "ethos-u65-256", "system_config": "Ethos_U65_Embedded"},
            "OffChipFlash where Dedicated_Sram_384KB keeps feature maps.*Sram_Only, Shared_Sram",
        ),
        ({"sram": "much"}, "A size is a number with a unit"),
        ({"sram": "64KiB", "memory_mode": "Dedicated_Sram"}, "no SRAM besides"),
        ({"memory_mode": "Dedicated_Sram_384KB"}, "of an Ethos-U55 is Sram_Only or Shared_Sram"),
        ({"cycles": -3.0}, "positive number"),
        ({"vela_config": "nowhere.ini"}, "which is no file"),
        ({"memory_mode": "Sram"}, "`memory_mode` is one of Sram_Only"),
        ({"system_config": "Mine"}, "`system_config` is one of Ethos_U55_Deep_Embedded"),
    ],
)
def test_refusals(flags, message):
    with pytest.raises(UsageError, match=message):
        resolve(Options(recipe="digits", **flags))


def test_nothing_said_is_vela_s_default():
    assert Device.of({}) == Device("ethos-u55-128") and Device().targets(None, None) == []
