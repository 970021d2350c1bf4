"""Boards: what follows from a name, and boards of one's own."""

import pathlib

import pytest

import udc_tf
from udc_tf.cost.boards import BOARDS
from udc_tf.cost.targets import target_from_dict
from udc_tf.export import vela


@pytest.mark.parametrize("board", BOARDS.values(), ids=list(BOARDS))
def test_every_board_is_one_that_vela_compiles_for(board):
    targets = board.targets(flash="64KiB", cycles=1e6)
    assert {t.accelerator for t in targets} == {board.accelerator}
    assert vela.System.of(targets).system_config == board.system_config
    assert board.source


def test_a_board_of_ones_own():
    own = udc_tf.Board(
        "mine", "ethos-u65-256", "Ethos_U65_Embedded", "Shared_Sram", "512KiB", "256KiB", "200MHz"
    )
    flash, sram, cycles = own.targets(sram="64KiB", latency="5ms")
    assert (flash.budget, sram.budget, cycles.budget) == (512 << 10, 64 << 10, 1e6)
    assert sram.memory_mode == "Shared_Sram" and cycles.clock == 200e6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: udc_tf.Board.named("arduino"), r"Known boards: .*make a udc_tf\.Board.*'arduino'"),
        (lambda: udc_tf.Board("b", "ethos-u99", "S", "M"), "must be one of ethos-u55-32.*u99"),
        (lambda: udc_tf.Board("b", "ethos-u55-64", "S", "Dedicated_Sram"), "no SRAM besides"),
        (lambda: udc_tf.Board("b", "ethos-u55-64", "S", "M", flash="lots"), "Received: 'lots'"),
        (lambda: udc_tf.Board("b", "ethos-u55-64", "S", "M", clock="5ms"), "'400MHz'.*'5ms'"),
        (lambda: BOARDS["renesas-ra8p1"].targets(flash="2MiB"), "has 1,048,576 bytes of flash"),
        (lambda: BOARDS["nxp-imx93"].targets(sram="1MiB"), "has 393,216 bytes of sram.*'1MiB'"),
        (lambda: BOARDS["corstone-310"].targets(flash="1MiB", latency="5ms"), "clock of corstone"),
        (lambda: BOARDS["corstone-310"].targets(), "give a budget"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()


INI = """
[System_Config.Far]
axi0_port=Sram
axi1_port=Dram
Sram_clock_scale=1.0
Dram_clock_scale=0.2
[System_Config.Near]
axi0_port=Sram
axi1_port=OffChipFlash
Sram_clock_scale=1.0
OffChipFlash_clock_scale=0.1
[Memory_Mode.Split]
const_mem_area=Axi1
arena_mem_area=Axi0
cache_mem_area=Axi0
[Memory_Mode.Own_Cache]
inherit=Memory_Mode.Split
arena_mem_area=Axi1
arena_cache_size=65536
[Memory_Mode.All]
const_mem_area=Axi0
arena_mem_area=Axi0
cache_mem_area=Axi0
"""


class TestAVelaIniOfOnesOwn:
    @pytest.fixture
    def own(self, tmp_path: pathlib.Path) -> str:
        (tmp_path / "own.ini").write_text(INI)
        return str(tmp_path / "own.ini")

    def test_modes_are_known_by_what_they_say(self, own):
        kinds = {"Split": "Shared_Sram", "Own_Cache": "Dedicated_Sram", "All": "Sram_Only"}
        for mode, kind in kinds.items():
            target = udc_tf.Sram(1, "ethos-u65-256", memory_mode=mode, vela_config=own)
            assert target.cost.mode == kind

    def test_what_the_npu_cannot_do_is_refused(self, own):
        with pytest.raises(ValueError, match=r"no SRAM besides .*'Own_Cache' for ethos-u55-64"):
            udc_tf.Cycles(1e6, "ethos-u55-64", memory_mode="Own_Cache", vela_config=own)
        message = r"Near has OffChipFlash where Own_Cache keeps feature maps.*one of Split, All\. "
        with pytest.raises(ValueError, match=message + "Received: 'Own_Cache'"):
            vela.System.of(
                [udc_tf.Sram("1MiB", "ethos-u65-256", memory_mode="Own_Cache", vela_config=own)],
                system_config="Near",
            )

    def test_a_file_that_is_gone_is_told_when_it_is_needed(self, own):
        target = udc_tf.Sram(1, "ethos-u65-256", memory_mode="Split", vela_config=own)
        pathlib.Path(own).unlink()
        again = target_from_dict(target.to_dict())  # as a saved search does
        with pytest.raises(ValueError, match=r"own\.ini, which is no file"):
            vela.System.of([again])
