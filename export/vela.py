"""Compiles a TFLite model for an Ethos-U with Vela, and reads what Vela says about it.

System configuration and memory mode are always passed: left out, Vela warns and guesses.
"""

import csv
import dataclasses
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Iterable, Mapping
from typing import Any

from udc_tf.cost.accelerators import DEFAULT, family, require_accelerator
from udc_tf.cost.vela_ini import require_mode
from udc_tf.export import tflite_file, vela_names
from udc_tf.export.errors import CpuOperatorsError, ExportError, VelaError
from udc_tf.export.work_folder import work_folder

OPTIMISE = ("Performance", "Size")

# What Vela falls back on for each family, said aloud.
_DEFAULTS = {
    "ethos-u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "ethos-u65": ("Ethos_U65_Client_Server", "Dedicated_Sram_384KB"),
    "ethos-u85": ("Ethos_U85_SYS_DRAM_Mid", "Dedicated_Sram_384KB"),
}
# An Ethos-U85 has a second format for weights of few values, which is faster to decode and takes up
# to half as much flash again. Vela takes it even where nobody waits for the weights.
_FAMILY_OPTIONS = {"ethos-u85": ("--disable-fwd",)}
_NPU_OPERATOR = "ethos-u"
_PLAIN = "network"


@dataclasses.dataclass(frozen=True)
class CompiledOperator:
    """What Vela says about one operator of the original .tflite.

    Attributes:
        index: its place among the operators of the original .tflite.
        kind: as Vela calls it ("Conv2D").
        name: of its output tensor.
        weight_bytes: of its encoded weight stream; 0 where there are no weights.
        cycles: as estimated.
        macs: multiply-accumulates.
    """

    index: int
    kind: str
    name: str
    weight_bytes: int
    cycles: int
    macs: int


@dataclasses.dataclass(frozen=True)
class PlannedTensor:
    """A feature map or buffer in SRAM: its bytes, and from when to when it is there.

    Times are Vela's: two for each operator, in the order in which they run.
    """

    name: str
    bytes: int
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class CpuOperator:
    """An operator that Vela left to the CPU.

    Attributes:
        kind: as TFLite calls it.
        name: of its output tensor.
        reason: in Vela's words; empty if it gave none.
    """

    kind: str
    name: str
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class VelaResult:
    """A compiled file and Vela's report on it.

    Attributes:
        path: the compiled .tflite.
        flash_bytes: size of that file, which is what goes into flash.
        sram_bytes: SRAM the NPU needs for feature maps and buffers.
        left_to_cpu: the operators that the NPU does not run, in order.
        cycles: of one inference, as estimated.
        inferences_per_second: as estimated.
        encoded_weight_bytes: all weight streams together.
        operators: one entry for each operator of the original .tflite that the NPU runs.
        tensors: what is in SRAM, and when.
    """

    path: pathlib.Path
    flash_bytes: int
    sram_bytes: int
    left_to_cpu: tuple[CpuOperator, ...]
    cycles: int
    inferences_per_second: float
    encoded_weight_bytes: int
    macs: int
    operators: tuple[CompiledOperator, ...]
    tensors: tuple[PlannedTensor, ...]
    accelerator: str
    system_config: str
    memory_mode: str
    optimise: str

    @property
    def cpu_operators(self) -> tuple[str, ...]:
        """Kinds of the operators that were left to the CPU, in order."""
        return tuple(operator.kind for operator in self.left_to_cpu)

    @property
    def weight_bytes(self) -> Mapping[int, int]:
        """Index of an operator in the original .tflite -> bytes of its encoded weights."""
        return {o.index: o.weight_bytes for o in self.operators if o.weight_bytes}


@dataclasses.dataclass(frozen=True)
class System:
    """An NPU and the memories around it, by the names that Vela has for them.

    Attributes:
        accelerator: Vela's `--accelerator-config`.
        system_config, memory_mode: of `config`; None takes the family's default.
        config: a user's own vela.ini; None takes the one that Vela ships.
        sram_limit: bytes that Vela should make do with, as in `compile_with_vela`.
    """

    accelerator: str
    system_config: str | None = None
    memory_mode: str | None = None
    config: str | os.PathLike | None = None
    sram_limit: int | None = None

    @classmethod
    def of(cls, targets: Iterable[Any], **given: Any) -> "System":
        """What targets say about the device, and what was given besides; they must agree.

        Raises:
            ValueError: they do not agree, or Vela's configuration has no such names.

        >>> from udc_tf import Flash, Sram
        >>> System.of([Flash("32KiB"), Sram("64KiB", memory_mode="Sram_Only")]).memory_mode
        'Sram_Only'
        """
        names = {"accelerator": "accelerator", "vela_config": "config"}
        found: dict[str, Any] = {}
        for name in ("accelerator", "system_config", "memory_mode", "vela_config"):
            said = {getattr(t, name) for t in targets if getattr(t, name, None) is not None}
            said |= {given[name]} if given.get(name) is not None else set()
            if len(said) > 1:
                raise ValueError(
                    f"A network is compiled for one {name.replace('_', ' ')}, and all targets must "
                    f"be for it. Received: {', '.join(sorted(map(str, said)))}"
                )
            found[names.get(name, name)] = said.pop() if said else None
        system = cls(**{**found, "accelerator": found["accelerator"] or DEFAULT})
        config, mode = default_system(system.accelerator)
        config, mode = system.system_config or config, system.memory_mode or mode
        require_mode(system.accelerator, mode, system.config)
        vela_names.require_names(system.accelerator, config, mode, system.config)
        return system


def default_system(accelerator: str) -> tuple[str, str]:
    """The system configuration and memory mode that Vela ships for an accelerator.

    >>> default_system("ethos-u55-128")
    ('Ethos_U55_High_End_Embedded', 'Shared_Sram')
    """
    require_accelerator(accelerator)
    return _DEFAULTS[family(accelerator)]


def compile_with_vela(
    tflite_path: str | os.PathLike,
    out_dir: str | os.PathLike,
    accelerator: str = "ethos-u55-128",
    system_config: str | None = None,
    memory_mode: str | None = None,
    optimise: str = "Performance",
    config: str | os.PathLike | None = None,
    allow_cpu_operators: bool = False,
    sram_limit: int | None = None,
) -> VelaResult:
    """Compiles `tflite_path` into `out_dir/<name>_vela.tflite`.

    Args:
        tflite_path: an int8 TFLite model.
        out_dir: made if it is not there.
        accelerator: Vela's `--accelerator-config`, e.g. "ethos-u55-128".
        system_config: a `[System_Config.*]` of `config`; None takes the family's default.
        memory_mode: a `[Memory_Mode.*]` of `config`; None takes the family's default.
        optimise: "Performance" (faster, smaller file) or "Size" (less SRAM).
        config: a user's own vela.ini; None takes the one that Vela ships.
        allow_cpu_operators: whether operators may be left to the CPU.
        sram_limit: bytes that Vela should make do with, at the price of cycles: it then works layer
            by layer in stripes and buffers less. It says nothing if it cannot.

    Raises:
        VelaError: Vela is not installed or fails; with its own words.
        CpuOperatorsError: operators were left to the CPU, with Vela's reasons.

    Example:

    ```python
    compiled = udc_tf.export.compile_with_vela("model.tflite", "out/", "ethos-u55-64")
    print(compiled.flash_bytes, compiled.sram_bytes, compiled.cycles)
    ```
    """
    source = pathlib.Path(tflite_path)
    default_config, default_mode = default_system(accelerator)
    system_config, memory_mode = system_config or default_config, memory_mode or default_mode
    if optimise not in OPTIMISE:
        raise ValueError(f"`optimise` must be one of {OPTIMISE}. Received: {optimise!r}")
    if config is not None and not pathlib.Path(config).is_file():
        raise VelaError(f"The Vela configuration file does not exist. Received: config={config}")
    if not source.is_file():
        raise ExportError(f"There is no file to compile. Received: {source}")
    tflite_file.read(source)  # a damaged file is better told here than from inside Vela
    out_dir = pathlib.Path(out_dir)
    with work_folder(out_dir, ".vela-") as folder:
        # Under plain names: Vela writes them into its XML as they are, whatever they hold.
        shutil.copyfile(source, folder / f"{_PLAIN}.tflite")
        arguments = [
            *("--accelerator-config", accelerator),
            *("--system-config", system_config),
            *("--memory-mode", memory_mode),
            *("--config", vela_names.SHIPPED if config is None else os.path.abspath(config)),
            *("--optimise", optimise),
            *("--output-dir", "."),
            "--enable-debug-db",
            *_FAMILY_OPTIONS.get(family(accelerator), ()),
            *(() if sram_limit is None else ("--arena-cache-size", str(sram_limit))),
        ]
        said = _run_vela([*arguments, f"{_PLAIN}.tflite"], folder, source)
        produced = folder / f"{_PLAIN}_vela.tflite"
        if not produced.is_file():
            raise VelaError(f"Vela wrote no compiled file for {source}. It said:\n{said}")
        summary = _summary(folder)
        tables = _debug_tables(folder / f"{_PLAIN}_debug.xml")
        cpu = _cpu_operators(produced, said)
        if cpu and not allow_cpu_operators:
            raise CpuOperatorsError(_explain_cpu_operators(source, accelerator, cpu, said))
        path = out_dir / f"{source.stem}_vela.tflite"
        os.replace(produced, path)
    encoded = round(float(summary["total_npu_encoded_weights"]))
    return VelaResult(
        path=path,
        flash_bytes=path.stat().st_size,
        sram_bytes=round(float(summary["sram_memory_used"]) * 1024),
        left_to_cpu=cpu,
        cycles=round(float(summary["cycles_total"])),
        inferences_per_second=float(summary["inferences_per_second"]),
        encoded_weight_bytes=encoded,
        macs=round(float(summary["nn_macs"])),
        operators=_operators(tables, encoded),
        tensors=_tensors(tables),
        accelerator=accelerator,
        system_config=system_config,
        memory_mode=memory_mode,
        optimise=optimise,
    )


def _run_vela(arguments: list[str], folder: pathlib.Path, source: pathlib.Path) -> str:
    """What Vela printed, run in `folder`; its last words as an error if it failed."""
    # -P: Python would else import what lies in that folder, and Vela's own name is common.
    command = [sys.executable, "-P", "-m", "ethosu.vela", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout + done.stderr
    if "No module named" in done.stderr and "ethosu" in done.stderr:
        raise VelaError(
            "Vela is not installed for this Python: pip install ethos-u-vela. "
            f"Received: {sys.executable} without the module ethosu.vela"
        )
    words = [*_interesting(done.stdout), *_interesting(done.stderr)]
    text = "\n".join(words[-12:]) or "(nothing)"
    raise VelaError(f"Vela failed on {source} with exit {done.returncode}. It said:\n{text}")


def _interesting(text: str) -> list[str]:
    """Lines for the user: neither tracebacks nor the notes on dynamic batch axes."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [
        line
        for line in lines
        if not line.startswith(("Traceback", "  ")) and "has a dynamic signature" not in line
    ]


def _summary(folder: pathlib.Path) -> dict[str, str]:
    (path,) = folder.glob("*_summary_*.csv")
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))[-1]


_Tables = Mapping[str, list[dict[str, str]]]


def _debug_tables(path: pathlib.Path) -> _Tables:
    """Vela's debug database."""
    return {
        table.get("name") or "": list(csv.DictReader(io.StringIO((table.text or "").strip())))
        for table in xml.etree.ElementTree.parse(path).getroot()
    }


def _tensors(tables: _Tables) -> tuple[PlannedTensor, ...]:
    """What lies in SRAM; a tensor that another one is written over has its place only once."""
    found: dict[tuple[int, int, int], PlannedTensor] = {}
    for row in tables.get("tensors", ()):
        if row["memory"] == "Sram":
            start, end, size = int(row["start_time"]), int(row["end_time"]), int(row["size"], 0)
            place = (int(row["start_address"], 0), start, end)
            found.setdefault(place, PlannedTensor(row["name"], size, start, end))
    return tuple(found.values())


def _operators(tables: _Tables, encoded: int) -> tuple[CompiledOperator, ...]:
    """Sums Vela's debug database by operator of the original file.

    One operator becomes several passes (a softmax dozens); `ext_key` is its original index. Where
    all streams would be more than are `encoded`, those of equal passes are one: a convolution of
    strides above 3 is a pass for each position.
    """
    sources = {row["id"]: row for row in tables["source"]}
    details = {row["id"]: row for row in tables.get("perf_debug", ())}
    found: dict[int, CompiledOperator] = {}
    streams: dict[int, list[int]] = {}
    for row in tables.get("perf", ()):
        source = sources.get(row["source_id"])
        if source is None:
            continue
        index = int(source["ext_key"])
        so_far = found.get(index, CompiledOperator(index, source["operator"], row["name"], 0, 0, 0))
        streams.setdefault(index, []).append(
            int(details.get(row["id"], {}).get("weight_total_bytes") or 0)
        )
        found[index] = dataclasses.replace(
            so_far,
            name=row["name"],
            cycles=so_far.cycles + int(row["op_cycles"]),
            macs=so_far.macs + int(row["mac_count"]),
        )
    if sum(map(sum, streams.values())) > encoded:
        streams = {i: sizes[:1] if len({*sizes}) == 1 else sizes for i, sizes in streams.items()}
    return tuple(
        dataclasses.replace(found[index], weight_bytes=sum(streams[index]))
        for index in sorted(found)
    )


def _cpu_operators(path: pathlib.Path, said: str) -> tuple[CpuOperator, ...]:
    """The compiled file's operators besides the NPU's, each with what Vela said about it."""
    blocks = re.split(r"^Warning \(supported operators\) ", said, flags=re.MULTILINE)[1:]
    reasons = {}
    for block in blocks:
        named, why = (re.search(p, block) for p in (r"ofm: '(.*)'", r"(?m)^Reason: *(.*)$"))
        if named and why:
            reasons[named[1]] = why[1].strip()
    file = tflite_file.read(path)
    return tuple(
        CpuOperator(operator.kind, name, reasons.get(name, ""))
        for operator in file.operators
        if operator.kind != _NPU_OPERATOR
        for name in [file.tensors[operator.outputs[0]].name]
    )


def _explain_cpu_operators(
    source: pathlib.Path, accelerator: str, cpu: tuple[CpuOperator, ...], said: str
) -> str:
    reasons = [
        line
        for line in _interesting(said)
        if line.startswith(("Warning (supported operators)", "Reason:", "Feature-map"))
    ]
    kinds = ", ".join(sorted({operator.kind for operator in cpu}))
    return (
        f"{accelerator} does not run all of {source.name}: {len(cpu)} operators were left to the "
        f"CPU ({kinds}). Change these layers, or pass "
        "allow_cpu_operators=True (--allow_cpu). Vela's reasons:\n" + "\n".join(reasons)
    )
