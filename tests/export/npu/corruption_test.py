"""Damaged files end in an error or a completed run: never in a crash, a hang or a stray write."""

import collections

import numpy as np
import pytest

from tests.support import npu_corruption, npu_networks
from udc_tf.export.npu import NpuError, NpuNetwork, container

FILES = 120  # benchmarks/npu_corruption.py runs 2,000


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    """Three compiled networks that use convolutions, softmax and look-up tables."""
    return [npu_networks.compile_in_process(npu_networks.random_network(s)) for s in (5, 11, 19)]


class TestDamage:
    @pytest.mark.parametrize("first", range(0, FILES, 30))
    def test_ends_well(self, files, first):
        outcomes = collections.Counter()
        for seed in range(first, first + 30):
            _, data = npu_corruption.damaged(seed, files)
            outcomes[npu_corruption.attempt(data)] += 1
        assert len(outcomes) > 2  # the damage hits more than one layer of the file

    def test_every_prefix_of_a_file(self, files):
        data = min(files, key=len)
        for end in range(0, len(data), max(1, len(data) // 150)):
            with pytest.raises(NpuError):
                NpuNetwork(data[:end])

    def test_offsets_that_go_everywhere(self, files):
        data = min(files, key=len)
        for at in range(0, min(len(data), 800), 4):
            broken = bytearray(data)
            broken[at : at + 4] = b"\xff\xff\xff\x7f"
            try:
                container.parse(bytes(broken))
            except NpuError:
                continue

    def test_the_guard_sees_a_stray_write(self, files):
        network = npu_corruption.GuardedNetwork(files[0])
        network._new_stores(1)
        network.fences[0][0, 0] = 0
        with pytest.raises(AssertionError, match="outside the arena"):
            network.check_fences()

    def test_an_undamaged_file_runs(self, files):
        assert [npu_corruption.attempt(data) for data in files] == ["ran"] * len(files)
        assert np.unique([len(data) for data in files]).size == len(files)
