"""The estimate of cycles, held against the report of the compiler it takes its model from."""

import csv
import io
import pathlib
import xml.etree.ElementTree

import numpy as np
import pytest
from ethosu.vela import vela

from tests.support import npu_networks as nets
from tests.support.paths import SHARED
from udc_tf.export.npu import NpuNetwork, timing
from udc_tf.export.npu.operations import Dma

ANCHORS = SHARED / "anchors" / "mlperf_tiny"


def reported(folder: pathlib.Path, model: bytes, accelerator: str):
    """The compiled network, Vela's cycles of each operation, and its cycles of all."""
    path = folder / "net.tflite"
    path.write_bytes(model)
    arguments = [str(path), "--output-dir", str(folder), "--config", "Arm/vela.ini"]
    arguments += ["--accelerator-config", accelerator, "--enable-debug-db"]
    arguments += ["--system-config", timing.SYSTEM, "--memory-mode", timing.MEMORY_MODE]
    with nets.quiet():
        vela.main(arguments)
    tables = {}
    for table in xml.etree.ElementTree.parse(folder / "net_debug.xml").getroot():
        tables[table.get("name")] = list(csv.DictReader(io.StringIO((table.text or "").strip())))
    each = [int(row["est_op_cycles_without_buffering"]) for row in tables["perf_debug"]]
    (summary,) = folder.glob("*_summary_*.csv")
    total = list(csv.DictReader(summary.open()))[-1]["cycles_total"]
    network = NpuNetwork((folder / "net_vela.tflite").read_bytes())
    return network, [n for n in each if n], round(float(total))


def chain() -> bytes:
    """Operations that Vela keeps whole, one of a kind."""
    build = nets.NetworkBuilder(np.random.default_rng(0))
    x = build.pool(build.input(40, 40, 24), (3, 3), (1, 1), nets.SAME, True)
    x = build.pool(x, (2, 2), (2, 2), nets.SAME, False)
    x = build.depthwise(x, kernel=(3, 3))
    x = build.binary("mul", x, build.conv(x, 24, kernel=(1, 1)))
    x = build.binary("add", x, build.conv(x, 24, kernel=(5, 3)))
    return build.finish(build.unary("LEAKY_RELU", build.conv(x, 40, kernel=(3, 3))))


@pytest.mark.parametrize("accelerator", ["ethos-u55-32", "ethos-u55-64", "ethos-u55-128"])
def test_computing_costs_what_vela_says_operation_by_operation(tmp_path, accelerator):
    network, each, _ = reported(tmp_path, chain(), accelerator)
    npu = timing.ACCELERATORS[network.macs_per_cycle]
    kernels = [o for o in network.operations if not isinstance(o, Dma)]
    assert [timing._compute_cycles(o, npu) for o in kernels] == each


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("accelerator", ["ethos-u55-128", "ethos-u55-256"])
def test_a_stream_costs_about_what_vela_says(tmp_path, accelerator, seed):
    network, _, total = reported(tmp_path, nets.random_network(seed), accelerator)
    assert sum(map(sum, network.estimated_cycles)) == pytest.approx(total, rel=0.15)


@pytest.mark.parametrize("name", ["resnet8_cifar10_int8", "dscnn_kws_int8"])
def test_mlperf_tiny_costs_nearly_what_vela_says(tmp_path, name):
    source = ANCHORS / f"{name}.tflite"
    if not source.is_file():
        pytest.skip(f"needs {source.name} in ../shared")
    network, _, total = reported(tmp_path, source.read_bytes(), "ethos-u55-128")
    assert sum(map(sum, network.estimated_cycles)) == pytest.approx(total, rel=0.03)


def test_every_operation_has_its_share():
    network = NpuNetwork(nets.compile_in_process(nets.random_network(7)))
    (stream,) = network.estimated_cycles
    assert len(stream) == len(network.operations) and min(stream) >= 0
    shares = zip(network.operations, stream, strict=True)
    assert all(n > 0 for o, n in shares if not isinstance(o, Dma))


@pytest.mark.parametrize("macs", timing.ACCELERATORS)
def test_speeds_are_those_that_vela_knows(macs):
    from ethosu.vela import architecture_features as features

    config = f"{features.CONFIG_FILES_PATH}/Arm/vela.ini"
    with nets.quiet():
        arch = features.ArchitectureFeatures(
            [config], f"ethos-u55-{macs}", timing.SYSTEM, timing.MEMORY_MODE, 3, False, None
        )
    npu, micro = timing.ACCELERATORS[macs], arch.ofm_ublock
    assert npu.micro_block == (micro.height, micro.width, micro.depth)
    ours = (
        npu.unary_32,
        npu.binary_32,
        npu.product_32,
        npu.product,
        npu.sum,
        npu.maximum,
        npu.other,
    )
    theirs = arch.output_cycles_per_elem
    assert ours == (*theirs[:4], *theirs[5:])  # the fifth, a simpler sum, is never used
    for memory, area in ((timing.SRAM, "Sram"), (timing.FLASH, "OffChipFlash")):
        place = features.MemArea[area]
        assert memory == timing.Memory(
            *arch.memory_latency[place],
            arch.memory_burst_length[place],
            arch.memory_bandwidths_per_cycle[place],
        )
