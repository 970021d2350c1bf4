"""What may be read: only what has been written, but for the ends of copies."""

import pytest

from udc_tf.export.npu.command_words import Position
from udc_tf.export.npu.faults import MemoryAccessError
from udc_tf.export.npu.operations import Dma
from udc_tf.export.npu.program import AccessChecker
from udc_tf.export.npu.streams import Span

POSITION = Position(0, 0, "OP_DMA_START")


def _copied(written: int, length: int) -> AccessChecker:
    """Memory after a copy of `length` bytes, of which the first `written` have been written."""
    checker = AccessChecker({"arena": 256}, work_limit=10**9)
    checker.define("arena", 0, written)
    source, target = Span("DMA SRC", "arena", 0, length), Span("DMA DST", "arena", 128, length)
    checker.copy(Dma(POSITION, source, target))
    return checker


class TestCopy:
    def test_takes_along_what_vela_rounds_up(self):
        checker = _copied(written=33, length=48)
        assert checker.defined("arena", 128, 33)
        assert not checker.defined("arena", 128 + 33, 1)  # so that nothing may use it

    def test_takes_no_more_along(self):
        with pytest.raises(MemoryAccessError, match="DMA SRC that nothing has written"):
            _copied(written=32, length=48)
