"""Slips in a vela.ini of the user's own, which Vela passes over or ends on in a traceback."""

import pathlib

import pytest

import udc_tf
from udc_tf.export import vela

INI = """
[System_Config.Fast]
core_clock=500e6
Sram_clock_scale=1.0
OffChipFlash_clock_scale=0.125
[System_Config.Mine]
inherit=System_Config.Fast
axi0_port=Sram
axi1_port=OffChipFlash
vendor_note=not for Vela
[Memory_Mode.Split]
const_mem_area=Axi1
arena_mem_area=Axi0
cache_mem_area=Axi0
arena_cache_size=4096
"""


def read(tmp_path: pathlib.Path, text: str) -> vela.System:
    own = tmp_path / "own.ini"
    own.write_text(text)
    return vela.System.of(
        [udc_tf.Sram("64KiB", system_config="Mine", memory_mode="Split", vela_config=own)]
    )


def test_what_vela_takes_is_taken(tmp_path):
    assert read(tmp_path, INI).system_config == "Mine"


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("Sram_clock_scale=", "Sram_clock_scal=", "knows Sram_clock_scale, .*'sram_clock_scal'"),
        ("core_clock=500e6", "core_clock=fast", "core_clock is a positive number.*'fast' in"),
        ("=OffChipFlash", "=OffChipFlsh", "axi1_port is one of Sram, Dram.*'OffChipFlsh'"),
        ("OffChipFlash_clock", "Dram_clock", "such as OffChipFlash_clock_scale=1.0.*nothing about"),
        ("axi0_port=Sram\n", "", "must have axi0_port, axi1_port in .* without axi0_port"),
        ("arena_mem_area=Axi0", "arena_mem_area=Axi7", "is one of Axi0, Axi1. Received: 'Axi7'"),
        ("size=4096", "size=4KiB", "arena_cache_size is a whole number. Received: '4KiB'"),
        ("inherit=System_Config.Fast", "inherit=Fast", r"inherit=Fast, which .*own\.ini does not"),
        ("[System_Config.Mine]", "[System_Conf.Mine]", "one of Fast, as .* Received: 'Mine'"),
        ("[Memory_Mode.Split]", "[Memory_Mod.Split]", r"must have a section \[Memory_Mode.Split\]"),
    ],
)
def test_a_slip_is_one_sentence(tmp_path, right, wrong, message):
    assert right in INI
    with pytest.raises(ValueError, match=message):
        read(tmp_path, INI.replace(right, wrong, 1))


def test_a_system_of_another_family():
    with pytest.raises(ValueError, match="of an ethos-u55-64 is one of Ethos_U55_Deep_Embedded, E"):
        vela.System.of([udc_tf.Sram(1, "ethos-u55-64", system_config="Ethos_U85_SYS_DRAM_Mid")])
