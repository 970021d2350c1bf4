"""The NPU's registers as a driver sees them, held against the header that Vela ships."""

import ctypes

import pytest
from ethosu.vela.ethos_u55_regs import ethos_u55_regs as arm

from udc_tf.export.npu.device import (
    ACTIVE,
    ARCHITECTURE,
    Device,
    Event,
    Outcome,
    Reg,
    Status,
    config_word,
    fault_of,
)
from udc_tf.export.npu.faults import CommandError, MemoryAccessError, WeightStreamError

_RENAMED = {"QBASE": "QBASE0"}
_STATUS = {
    "RUNNING": "state",
    "IRQ": "irq_raised",
    "BUS_ERROR": "bus_status",
    "RESETTING": "reset_status",
    "PARSE_ERROR": "cmd_parse_error",
    "END_REACHED": "cmd_end_reached",
    "WEIGHT_DECODER_FAULT": "wd_fault",
    "ECC_FAULT": "ecc_fault",
}
_EVENTS = {
    "CYCLE": "CYCLE",
    "NPU_ACTIVE": "NPU_ACTIVE",
    "AXI0_READ_BEATS": "AXI0_RD_DATA_BEAT_RECEIVED",
    "AXI0_WRITE_BEATS": "AXI0_WR_DATA_BEAT_WRITTEN",
    "AXI1_READ_BEATS": "AXI1_RD_DATA_BEAT_RECEIVED",
}
RUN, CLEAR_IRQ = 1, 2


def word(kind: type[ctypes.Union], **fields: int) -> int:
    """A register's value, its fields placed by Arm's header."""
    register = kind()
    for name, value in fields.items():
        setattr(register.bits, name, value)
    return register.word


def device(outcome: Outcome | None = None, macs: int = 128) -> tuple[Device, list]:
    """A device whose streams end in `outcome`, and the jobs it was given."""
    jobs = []

    def execute(job):
        jobs.append(job)
        return outcome or Outcome(bytes_done=job.size)

    return Device(macs, execute), jobs


class TestHeader:
    def test_offsets(self):
        known = {**arm.BASE.__members__, **arm.BASE_POINTERS.__members__, **arm.PMU.__members__}
        for register in Reg:
            assert register == known[_RENAMED.get(register.name, register.name)].value

    def test_status_bits(self):
        for name, field in _STATUS.items():
            assert Status[name] == word(arm.status_r, **{field: 1})

    def test_events(self):
        for name, theirs in _EVENTS.items():
            assert Event[name] == arm.pmu_event_type[theirs].value

    @pytest.mark.parametrize("macs, log, shram", [(32, 5, 16), (128, 7, 24), (256, 8, 48)])
    def test_identity_and_configuration(self, macs, log, shram):
        npu, _ = device(macs=macs)
        assert npu.read(Reg.CONFIG) == config_word(macs)
        assert config_word(macs) == word(arm.config_r, macs_per_cc=log, shram_size=shram)
        version = ".".join(
            str(ARCHITECTURE >> shift & mask) for shift, mask in ((28, 15), (20, 255), (16, 15))
        )
        assert version == arm.ARCH_VER and npu.read(Reg.ID) == ARCHITECTURE


class TestBehaviour:
    def test_a_reset_takes_the_security_state_and_forgets_the_rest(self):
        npu, jobs = device()
        npu.write(Reg.QSIZE, 64)
        npu.write(Reg.RESET, word(arm.reset_r, pending_cpl=1, pending_csl=1))
        assert npu.read(Reg.PROT) == word(arm.prot_r, active_cpl=1, active_csl=1)
        assert npu.read(Reg.QSIZE) == 0 and npu.read(Reg.STATUS) == 0
        npu.write(Reg.CMD, RUN)
        assert not jobs[0].secure
        npu.write(Reg.RESET, word(arm.reset_r, pending_cpl=1))
        npu.write(Reg.CMD, RUN)
        assert jobs[1].secure

    def test_what_it_only_shows_cannot_be_written(self):
        npu, _ = device()
        for register in (Reg.ID, Reg.STATUS, Reg.QREAD, Reg.PROT, Reg.CONFIG):
            assert register in ACTIVE
            before = npu.read(register)
            npu.write(register, 0xFFFFFFFF)
            assert npu.read(register) == before

    def test_runs_with_the_drivers_queue_and_regions(self):
        npu, jobs = device()
        npu.write(Reg.QBASE, 0x9000)
        npu.write(Reg.QSIZE, 48)
        npu.write(Reg.BASEP0 + 8, 0x31000000)
        npu.write(Reg.REGIONCFG, word(arm.regioncfg_r, region0=2, region2=3))
        npu.write(Reg.CMD, RUN)
        (job,) = jobs
        assert (job.address, job.size, job.bases[1]) == (0x9000, 48, 0x31000000)
        assert job.ports[:4] == (1, 0, 1, 0)
        assert npu.read(Reg.STATUS) == Status.IRQ | Status.END_REACHED
        assert npu.read(Reg.QREAD) == 48

    def test_the_interrupt_stays_until_it_is_cleared(self):
        npu, _ = device()
        assert not npu.interrupt
        npu.write(Reg.CMD, RUN)
        assert npu.interrupt
        npu.write(Reg.CMD, CLEAR_IRQ)
        assert not npu.interrupt and npu.read(Reg.STATUS) == Status.END_REACHED

    def test_clock_and_power_requests_are_kept(self):
        npu, _ = device()
        npu.write(Reg.CMD, word(arm.cmd_r, power_q_enable=1, clear_irq=1))
        assert npu.read(Reg.CMD) == word(arm.cmd_r, power_q_enable=1)

    def test_a_fault_stops_before_the_end(self):
        npu, _ = device(Outcome(Status.BUS_ERROR, 12))
        npu.write(Reg.CMD, RUN)
        assert npu.read(Reg.STATUS) == Status.IRQ | Status.BUS_ERROR
        assert npu.read(Reg.QREAD) == 12 and npu.interrupt
        assert fault_of(MemoryAccessError("")) == Status.BUS_ERROR
        assert fault_of(WeightStreamError("")) == Status.WEIGHT_DECODER_FAULT
        assert fault_of(CommandError("")) == Status.PARSE_ERROR


class TestMonitor:
    COUNTS = Outcome(counts={Event.CYCLE: 1 << 33, Event.NPU_ACTIVE: 70, Event.AXI1_READ_BEATS: 5})

    def _counting(self, enable: int) -> Device:
        npu, _ = device(self.COUNTS)
        npu.write(Reg.PMEVTYPER0, Event.NPU_ACTIVE)
        npu.write(Reg.PMEVTYPER0 + 4, Event.AXI1_READ_BEATS)
        npu.write(Reg.PMCR, word(arm.pmcr_r, cnt_en=1))
        npu.write(Reg.PMCNTENSET, enable)
        npu.write(Reg.CMD, RUN)
        return npu

    def test_counts_what_is_enabled(self):
        npu = self._counting(1 << 31 | 0b10)
        assert npu.read(Reg.PMCCNTR_LO) == 0 and npu.read(Reg.PMCCNTR_HI) == 2
        assert npu.read(Reg.PMEVCNTR0) == 0 and npu.read(Reg.PMEVCNTR0 + 4) == 5
        npu.write(Reg.CMD, RUN)
        assert npu.read(Reg.PMEVCNTR0 + 4) == 10

    def test_set_and_clear_show_the_same(self):
        npu = self._counting(0b11)
        npu.write(Reg.PMCNTENCLR, 0b01)
        assert npu.read(Reg.PMCNTENSET) == npu.read(Reg.PMCNTENCLR) == 0b10
        npu.write(Reg.CMD, RUN)
        assert npu.read(Reg.PMEVCNTR0) == 70 and npu.read(Reg.PMEVCNTR0 + 4) == 10

    def test_counts_nothing_while_it_is_off(self):
        npu = self._counting(0b11)
        npu.write(Reg.PMCR, 0)
        npu.write(Reg.CMD, RUN)
        assert npu.read(Reg.PMEVCNTR0) == 70

    def test_reset_bits_clear_and_do_not_stay(self):
        npu = self._counting(1 << 31 | 0b11)
        npu.write(Reg.PMCR, word(arm.pmcr_r, cnt_en=1, event_cnt_rst=1))
        assert npu.read(Reg.PMEVCNTR0) == 0 and npu.read(Reg.PMCCNTR_HI) == 2
        npu.write(Reg.PMCR, word(arm.pmcr_r, cnt_en=1, cycle_cnt_rst=1))
        assert npu.read(Reg.PMCCNTR_HI) == 0
        assert npu.read(Reg.PMCR) == word(arm.pmcr_r, cnt_en=1, num_event_cnt=4)

    def test_an_overflow_is_told(self):
        npu, _ = device(Outcome(counts={Event.NPU_ACTIVE: (1 << 32) + 3}))
        npu.write(Reg.PMEVTYPER0, Event.NPU_ACTIVE)
        npu.write(Reg.PMCR, 1)
        npu.write(Reg.PMCNTENSET, 1)
        npu.write(Reg.CMD, RUN)
        assert npu.read(Reg.PMEVCNTR0) == 3 and npu.read(Reg.PMOVSSET) == 1
        npu.write(Reg.PMOVSCLR, 1)
        assert npu.read(Reg.PMOVSSET) == 0
