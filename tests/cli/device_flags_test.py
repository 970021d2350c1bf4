"""What flags say about the device."""

import pytest

from udc_tf.cli.device_flags import Device
from udc_tf.cli.flags import help_text, make_flags
from udc_tf.cli.options import Options, front_runs, resolve
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


def test_a_latency_is_cycles_at_the_clock_that_is_said_or_the_board_s():
    _, found = targets(latency="5ms", clock="400MHz")
    assert found["cycles"].budget == 2e6 and "5 ms" in found["cycles"].describe(2e6)
    _, found = targets(latency="5 ms", board="renesas-ra8p1")
    assert found["cycles"].budget == 2.5e6 and found["cycles"].accelerator == "ethos-u55-256"
    _, found = targets(latency="5ms", clock="200MHz", board="renesas-ra8p1")
    assert found["cycles"].budget == 1e6
    _, found = targets(latency="5ms", clock="400MHz", cycles=3e5)
    assert found["cycles"].budget == 3e5
    assert "cycles" not in targets(clock="400MHz")[1]


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
        ({"sram": "much"}, "--sram: A size is a number with a unit"),
        ({"sram": "64KiB", "memory_mode": "Dedicated_Sram"}, "no SRAM besides"),
        ({"memory_mode": "Dedicated_Sram_384KB"}, "of an Ethos-U55 is Sram_Only or Shared_Sram"),
        ({"cycles": -3.0}, "--cycles must be a positive number"),
        ({"cycles": 1e99}, "--cycles must be a positive number below 1e18"),
        ({"latency": "5ms"}, "needs the NPU's clock: --clock=400MHz"),
        ({"latency": "5ms", "board": "corstone-310"}, "Received: --latency=5ms"),
        ({"latency": "5 parsecs", "clock": "1GHz"}, "--latency: A positive.*'5ms'.*'5 parsecs'"),
        ({"latency": "5ms", "clock": "fast"}, "--clock: .*'400MHz'. Received: 'fast'"),
        ({"vela_config": "nowhere.ini"}, "which is no file"),
        ({"memory_mode": "Sram"}, "`memory_mode` is one of Sram_Only"),
        ({"system_config": "Mine"}, "`system_config` is one of Ethos_U55_Deep_Embedded"),
    ],
)
def test_refusals(flags, message):
    with pytest.raises(UsageError, match=message):
        resolve(Options(recipe="digits", **flags))


def test_a_comma_in_one_size_is_not_two_budgets():
    with pytest.raises(UsageError, match=r"lies between two of them.*Received: '32,5KiB'"):
        front_runs(Options(recipe="digits", flash="32,5KiB"))


def test_nothing_said_is_vela_s_default():
    assert Device.of({}) == Device("ethos-u55-128") and Device().targets(None, None) == []
