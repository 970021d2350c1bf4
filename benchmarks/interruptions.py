"""Does an interrupted run, resumed, end as one that was not, bit for bit?

Search, finetuning, export and the search of a front, each of a tiny network on the digits, are
ended on the way: by SIGINT, SIGTERM, SIGKILL or a full disk. Twenty moments are chosen: just before
one of the changes that the command makes to its folder (a file opened for writing, renamed or
removed), at even distances. Sixty are drawn: signals after a random time, a disk that is full from
a random change on. The same command then goes on, and every file of its folder is compared with
that of a run that nobody interrupted. `udc`, in one go, must leave the same as its three steps,
each in a process of its own. Only times and the list of commands are left out: TensorBoard's files,
what took how long in run.json, results.json and report.html, and dates and addresses inside
network.keras.

Every command is a process of its own, forked from one that has imported TensorFlow and computed
nothing. What ends it is no part of the product: Python's audit hooks see every change to a file
before it happens. Rows that are there already are not run again.

    python -m benchmarks.interruptions                                # writes interruptions.json
    python -m benchmarks.interruptions --step=search --chosen=2 --drawn=2 --results=few.json
"""

import errno
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from absl import flags

from benchmarks import harness
from benchmarks.harness import Row, Rows, table

# With all that a command imports on its way, so that its process need not.
from udc_tf.cli import commands
from udc_tf.report import front_page, page  # noqa: F401

_FLAGS = (
    "--model=benchmarks.interruptions:network", "--data=digits", "--image_size=8", "--channels=1",
    "--examples=16", "--batch_size=8", "--samples=1", "--size_compiles=1", "--widths=0.5,1",
    "--bits=2,4,8", "--sparsities=0.3,1", "--search_epochs=3", "--finetune_epochs=1,1,1",
    "--runners=tflm", "--verify_examples=4", "--workdir=work",
)  # fmt: skip
# The command of each step, and the step whose folder it goes on from.
STEPS = {
    "search": (["udc-search", "--flash=6500B"], None),
    "finetune": (["udc-finetune", "--flash=6500B"], "search"),
    "export": (["udc-export", "--flash=6500B"], "finetune"),
    "front": (["udc-search", "--flash=6500B,6700B"], None),
    "udc": (["udc", "--flash=6500B"], None),
}
_IN_ONE_GO = "udc"  # which must end as the steps did, one after the other
KINDS = ("SIGINT", "SIGTERM", "SIGKILL", "full disk")


def network(input_shape, classes):
    """With all that a resumed run could get wrong: batch norms, dropout, names that Keras gives."""
    x = inputs = keras.Input(input_shape)
    x = keras.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Dropout(0.2)(x)
    x = keras.layers.Conv2D(12, 3, strides=2, padding="same", use_bias=False)(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Dropout(0.2)(keras.layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))


def count_changes(folder: pathlib.Path, at_change: Callable[[int], None]) -> None:
    """Calls `at_change(n)` before the n-th change that this process makes below a folder."""
    root, count = f"{folder.resolve()}{os.sep}", 0

    def hook(event, args):
        nonlocal count
        if event == "open":
            path, _, flags = args
            if not isinstance(path, str | bytes) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            path = args[0]
        else:
            return
        if os.path.abspath(os.fsdecode(path)).startswith(root):
            count += 1
            at_change(count)

    sys.addaudithook(hook)


def start(case: pathlib.Path, step: str, at_change: Callable[[int], None]) -> int:
    """The command of a step in a process of its own, in the folder `case`; its process id."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    code = 70
    try:
        os.chdir(case)
        log = os.open("log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tf.config.run_functions_eagerly(True)  # a few steps take less time than tracing them
        count_changes(case / "work", at_change)
        command = STEPS[step][0]
        code = commands.main(command[0], [*command, *_FLAGS], lambda text: print(text, flush=True))
    finally:
        sys.stdout.flush()
        os._exit(code)


def run_command(
    case: pathlib.Path, step: str, kind: str = "", moment: float = 0.0, drawn=False
) -> dict:
    """Runs a command, ended at a moment if a kind is given: its exit code, seconds and changes."""
    (case / "work").mkdir(parents=True, exist_ok=True)
    counter = case / "changes.txt"

    def at_change(number: int) -> None:
        counter.write_text(str(number))
        if kind == "full disk" and number >= moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if kind and not drawn and number == moment:
            os.kill(os.getpid(), getattr(signal, kind))

    begun = time.monotonic()
    child = start(case, step, at_change)
    if drawn and kind != "full disk":
        time.sleep(moment)
        os.kill(child, getattr(signal, kind))
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - begun
    changes = int(counter.read_text()) if counter.exists() else 0
    return {"code": os.waitstatus_to_exitcode(status), "seconds": seconds, "changes": changes}


def contents(work: pathlib.Path) -> dict[str, str]:
    """File -> a digest of what is in it, without times."""
    found = {}
    for path in sorted(p for p in work.rglob("*") if p.is_file()):
        name = str(path.relative_to(work))
        if path.name == ".lock" or "tfevents" in name:
            continue
        found[name] = hashlib.sha256(_without_times(path)).hexdigest()
    return found


def _without_times(path: pathlib.Path) -> bytes:
    if path.suffix == ".keras":
        with zipfile.ZipFile(path) as archive:
            # What two layers share, such as a dtype policy, Keras names by its place in memory.
            config = re.sub(rb'"shared_object_id": \d+', b"", archive.read("config.json"))
            return config + archive.read("model.weights.h5")
    content = path.read_bytes()
    if path.name == "run.json":
        return json.dumps({**json.loads(content), "commands": None}).encode()
    if path.name == "results.json":
        return re.sub(rb'"\w*seconds": [^,\n]*', b"", content)
    if path.name in ("report.html", "front.html"):
        content = re.sub(rb"<pre>udc[^<]*</pre>", b"", content)  # the commands, as in run.json
        return re.sub(rb">[\d.]+( s| min| h)?<", b"><", content)
    return content


def different(one: pathlib.Path, other: pathlib.Path) -> list[str]:
    """The files that are not in both folders, or not the same."""
    a, b = contents(one), contents(other)
    return [n for n in sorted({*a, *b}) if a.get(n) != b.get(n)]


def interrupted(scratch: pathlib.Path, step: str, kind: str, moment: float, drawn: bool) -> dict:
    """One row: what became of a run that was ended and resumed."""
    case = scratch / "case"
    shutil.rmtree(case, ignore_errors=True)
    before = STEPS[step][1]
    if before is not None:
        shutil.copytree(scratch / before / "work", case / "work")
    else:
        case.mkdir()
    ended = run_command(case, step, kind, moment, drawn)
    text = (case / "log.txt").read_text(errors="replace")
    said = next((x for x in reversed(text.splitlines()) if x.startswith("udc")), "")
    (case / "log.txt").unlink()
    resumed = run_command(case, step)
    differing = different(scratch / step / "work", case / "work")
    if differing or resumed["code"]:
        shutil.rmtree(scratch / "failed", ignore_errors=True)
        shutil.copytree(case, scratch / "failed")
    return {
        "ended": ended["code"],
        "in_one_line": "Traceback" not in text,
        "said": said.split(": ", 1)[-1][:200],
        "resumed": resumed["code"],
        "files": len(contents(case / "work")),
        "differing": differing,
    }


def references(scratch: pathlib.Path, steps) -> dict[str, dict]:
    """Runs that nobody interrupts, of these steps and of those that they go on from."""
    needed = set(steps)
    for step in reversed(STEPS):
        needed |= {STEPS[step][1]} if step in needed else set()
    measured = {}
    for step, (_, before) in STEPS.items():
        if step not in needed:
            continue
        shutil.rmtree(scratch / step, ignore_errors=True)
        if before is not None:
            shutil.copytree(scratch / before / "work", scratch / step / "work")
        measured[step] = run_command(scratch / step, step)
        if measured[step]["code"]:
            raise RuntimeError((scratch / step / "log.txt").read_text()[-3000:])
        print(f"{step}: {measured[step]}", flush=True)
    return measured


def moments(step: str, reference: dict, chosen: int, drawn: int):
    """(key, kind, moment, whether it is drawn) of every row of a step."""
    rng = np.random.default_rng(sum(map(ord, step)))
    changes = reference["changes"]
    for i in range(chosen):
        kind = KINDS[(i + len(step)) % len(KINDS)]
        yield f"{step}/chosen/{i}", kind, max(1, round((i + 0.5) / chosen * changes)), False
    for i in range(drawn):
        kind, share = KINDS[i % len(KINDS)], rng.uniform(0, 1)
        full = kind == "full disk"
        moment = 1 + int(share * changes) if full else round(share * reference["seconds"], 2)
        yield f"{step}/drawn/{i}", kind, moment, True


def same(row: Row) -> bool:
    """Whether the resumed run ended as one that was not interrupted."""
    return row["resumed"] == 0 and not row["differing"]


def report(rows: Mapping[str, Row]) -> str:
    lines = []
    for step in STEPS:
        for kind in (*KINDS, "in one go"):
            of = [r for k, r in rows.items() if k.startswith(f"{step}/") and r["kind"] == kind]
            if of:
                lines.append((step, kind, len(of), sum(map(same, of))))
    lines.append(("all", "", len(rows), sum(map(same, rows.values()))))
    return table(("step", "ended by", "runs", "same in the end"), lines)


def run_all(rows: Rows, scratch: pathlib.Path, steps: Sequence[str]) -> None:
    given = flags.FLAGS
    measured = references(scratch, steps)
    if "export" in measured and f"{_IN_ONE_GO}/0" not in rows.read():
        measured |= references(scratch, [_IN_ONE_GO])
        files = different(scratch / "export" / "work", scratch / _IN_ONE_GO / "work")
        rows.add(f"{_IN_ONE_GO}/0", {"kind": "in one go", "resumed": 0, "differing": files})
    plans = [list(moments(s, measured[s], given.chosen, given.drawn)) for s in steps]
    # In turns, so that whatever was run of it is spread over the steps.
    for i in range(max(map(len, plans))):
        for key, kind, moment, drawn in (plan[i] for plan in plans if i < len(plan)):
            case = functools.partial(interrupted, scratch, key.split("/")[0], kind, moment, drawn)
            rows.once(key, lambda case=case, kind=kind, moment=moment: {
                "kind": kind, "moment": moment, **case(),
            })  # fmt: skip
    failed = scratch / "failed"
    if failed.exists() and given.keep_failed:
        shutil.copytree(failed, given.keep_failed, dirs_exist_ok=True)


def run(rows: Rows) -> str:
    if not flags.FLAGS.only_report:
        steps = flags.FLAGS.step or [step for step in STEPS if step != _IN_ONE_GO]
        with tempfile.TemporaryDirectory() as folder:
            run_all(rows, pathlib.Path(folder), steps)
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_multi_enum("step", None, list(STEPS), "Which; all by default.")
    flags.DEFINE_integer("chosen", 5, "Moments per step.")
    flags.DEFINE_integer("drawn", 15, "Moments per step.")
    flags.DEFINE_string("keep_failed", None, "Where a run that ended otherwise is kept.")
    harness.main(run, "interruptions")
