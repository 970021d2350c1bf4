"""Builds the bare-metal firmware: the compiled network, its golden data, and the C around them."""

from __future__ import annotations

import enum
import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

import numpy as np

from udc_tf.export.npu import NpuError, NpuNetwork, UnsupportedOperatorError
from udc_tf.export.npu.container import CpuOperator
from udc_tf.export.npu.memory import Region
from udc_tf.export.runners.base import RunFailedError

COMPILER = "arm-none-eabi-gcc"
SOURCES = pathlib.Path(__file__).resolve().parent.parent / "firmware"

_FLAGS = (
    *("-mcpu=cortex-m55", "-mthumb", "-mfloat-abi=soft", "-std=c11", "-O2", "-g"),
    *("-Wall", "-Wextra", "-Werror", "-ffreestanding", "-nostdlib"),
    "-fno-tree-loop-distribute-patterns",  # no calls of memcpy and memset: there is no libc
    *("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"),
    "-Wl,--no-warn-rwx-segments",
)
DRIVER_PAYLOAD = "COP1"  # Arm's driver (1.0) refuses any other, so our firmware does, too
_SRAM_BYTES = 2 << 20  # as in corstone300.ld
_REGIONS = 8  # base pointers of an Ethos-U55
_BUILD_SECONDS = 120


class Exit(enum.IntEnum):
    """Exit codes of the firmware, as in board.h."""

    PASS = 0
    FAIL = 1
    NPU_ERROR = 2
    NO_NPU = 3
    WRONG_NPU = 4
    FAULT = 5


def compiler_missing() -> str | None:
    """Why firmware cannot be built here; None if it can."""
    if shutil.which(COMPILER) is None:
        return f"{COMPILER} is not on PATH (Debian: apt-get install gcc-arm-none-eabi)"
    return None


def build_firmware(
    network: NpuNetwork,
    inputs: Sequence[np.ndarray],
    golden: Sequence[np.ndarray],
    folder: str | os.PathLike[str],
) -> pathlib.Path:
    """Builds firmware that runs `network` on `inputs` and compares with `golden`.

    Args:
        network: the compiled network.
        inputs: one array per network input, first axis the cases.
        golden: one array per network output, first axis the cases.
        folder: for the generated sources and the ELF; made if it is not there.

    Returns:
        Path of the ELF file, for QEMU and the Corstone-300 models alike.
    """
    on_cpu = [op.name for op in network.container.operators if isinstance(op, CpuOperator)]
    if on_cpu:
        raise UnsupportedOperatorError(
            f"the firmware runs networks that are wholly on the NPU. Received: {on_cpu} on the CPU"
        )
    for operator in network.container.npu_operators:
        if operator.payload != DRIVER_PAYLOAD:
            raise NpuError(
                f"drivers take the payload {DRIVER_PAYLOAD}: compile without --cop-format and "
                f"--separate-io-regions. Received: {operator.payload}"
            )
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write_network(network, inputs, golden, folder)
    # Under a temporary name first: whoever finds the ELF finds a whole one.
    elf, unfinished = folder / "firmware.elf", folder / "firmware.elf.part"
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    command = [COMPILER, *_FLAGS, f"-I{SOURCES}", f"-I{folder}", "-T", f"{SOURCES}/corstone300.ld"]
    command += [*sources, "network_data.c", "network_blobs.S", "-o", unfinished.name]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False
    )
    if done.returncode:
        raise RunFailedError(f"{COMPILER} failed:\n{done.stderr[-4000:]}")
    os.replace(unfinished, elf)
    return elf


def _write_network(
    network: NpuNetwork,
    inputs: Sequence[np.ndarray],
    golden: Sequence[np.ndarray],
    folder: pathlib.Path,
) -> None:
    blobs: dict[str, bytes] = {}
    parsed = network.container
    jobs = []
    for number, operator in enumerate(parsed.npu_operators):
        commands = f"network_commands_{number}"
        blobs[commands] = operator.words.tobytes()
        regions = []
        for index in operator.regions[:_REGIONS]:
            place = network.region(index, optional=True)
            regions.append("0" if place is None else _symbol(place))
            if place is not None and not place.writable:
                blobs[_name(place)] = parsed.tensors[index].data or b""
        jobs.append(
            f"    {{{commands}, {len(blobs[commands])}u, {operator.config:#x}u, "
            f"{operator.architecture:#x}u, {{{', '.join(regions)}}}}},"
        )
    tables = {}
    for kind, indices, arrays in (
        ("input", parsed.inputs, inputs),
        ("output", parsed.outputs, golden),
    ):
        lines = []
        for number, (index, array) in enumerate(zip(indices, arrays, strict=True)):
            blob = f"network_golden_{kind}_{number}"
            blobs[blob] = np.ascontiguousarray(array).tobytes()
            place = network.region(index)
            lines.append(f"    {{{_symbol(place)}, {place.size}u, {blob}}},")
        tables[kind] = lines
    _write_text(folder / "network_data.c", _data_source(network, blobs, jobs, tables, inputs))
    for name, data in blobs.items():
        _write_bytes(folder / f"{name}.bin", data)
    _write_text(folder / "network_blobs.S", _blob_source(blobs))


def _data_source(
    network: NpuNetwork,
    blobs: dict[str, bytes],
    jobs: list[str],
    tables: dict[str, list[str]],
    inputs: Sequence[np.ndarray],
) -> str:
    parsed = network.container
    stores = {"arena": parsed.arena_bytes}
    for index in (*parsed.inputs, *parsed.outputs):
        place = network.region(index)
        if place.store != "arena":
            stores[place.store] = place.size
    # The NPU's memory goes to SRAM; a network too large for it runs from DDR, only slower.
    section = ".arena_sram" if sum(stores.values()) + 256 <= _SRAM_BYTES else ".arena_ddr"
    lines = ['#include "network.h"', ""]
    lines += [f"extern const uint8_t {name}[];" for name in blobs]
    lines += [
        f'__attribute__((aligned(16), section("{section}"))) static uint8_t '
        f"{_identifier(name)}[{max(size, 1)}];"
        for name, size in stores.items()
    ]
    lines += [
        f"const uint32_t network_cases = {len(inputs[0])};",
        f"const uint32_t network_arena_bytes = {network.arena_bytes};",
        f"const uint32_t network_job_count = {len(jobs)};",
        "const struct ethosu_job network_jobs[] = {",
        *jobs,
        "};",
    ]
    for kind, entries in tables.items():
        lines += [
            f"const uint32_t network_{kind}_count = {len(entries)};",
            f"const struct network_tensor network_{kind}s[] = {{",
            *entries,
            "};",
        ]
    return "\n".join(lines) + "\n"


def _blob_source(blobs: dict[str, bytes]) -> str:
    lines = ['    .section .network, "a"']
    for name in blobs:
        lines += ["    .balign 16", f"    .global {name}", f"{name}:", f'    .incbin "{name}.bin"']
    return "\n".join(lines) + "\n"


def _identifier(store: str) -> str:
    return "network_" + store.replace(" ", "_")


def _name(place: Region) -> str:
    return _identifier(place.store)


def _symbol(place: Region) -> str:
    return f"{_name(place)} + {place.offset}" if place.offset else _name(place)


def _write_text(path: pathlib.Path, text: str) -> None:
    _write_bytes(path, text.encode())


def _write_bytes(path: pathlib.Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)
