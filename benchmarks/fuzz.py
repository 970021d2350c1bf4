"""Fuzzes every reader of files from elsewhere: 20 minutes of processor time each, by Atheris.

python -m benchmarks.fuzz                       # all targets, one after the other
python -m benchmarks.fuzz --targets=weights     # one of them; goes on where it was interrupted

The targets, and the errors each may end with, are in tests/support/fuzz_targets.py. Branches of the
readers guide libFuzzer; half of the mutations or more know what the input is (words, commands,
JSON), the others are libFuzzer's own. A finding is an exception that the reader does not document,
an input that takes more than HANG_SECONDS of processor time, or a process above MEMORY_LIMIT. It is
written to build/fuzz/<target>/findings and fuzzing goes on; each place of the code is told once. A
target whose code has changed begins anew, with the inputs found so far. Writes results/fuzz.json.
"""

from __future__ import annotations

import argparse
import ast
import collections
import hashlib
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
import types

HERE = pathlib.Path(__file__).parent
FOLDER = HERE.parent / "build" / "fuzz"
RESULT = HERE / "results" / "fuzz.json"
HANG_SECONDS = 10
MEMORY_LIMIT = 1 << 30
CRASH_LIMIT = 20  # processes that may die before a target is given up
# The code of each target, whose branches guide the fuzzer; with "udc_tf" all of it is imported.
CODE = {
    "container": ("export/npu",),
    "commands": ("export/npu",),
    "weights": ("export/npu",),
    "tflite": ("export/tflite_file.py", "export/npu/flatbuffer.py"),
    "architecture": ("udc_tf/compact", "udc_tf/files.py"),
    "record": ("udc_tf/cli",),
}
NEEDS_TENSORFLOW = ("architecture", "record")
_SAVE_EVERY = 5  # seconds between two notes of the state
_RESTART = 75  # status of a process that wants a successor
_LEAK_LIMIT = 256 << 20  # bytes Atheris may lose (it keeps operands of comparisons) before that


class Hang(BaseException):
    """An input has used up its processor time."""


class State:
    """What a target's runs add up to, kept on disk so that a run can be interrupted."""

    def __init__(self, folder: pathlib.Path, code: str):
        self._path = folder / "state.json"
        fresh = {
            "code": code,
            "executions": 0,
            "processor_seconds": 0.0,
            "peak_memory_mib": 0,
            "slowest_seconds": 0.0,
            "crashes": [],
            "hangs": [],
            "escaped_errors": [],
            "over_memory": [],
            "outcomes": {},
        }
        found = json.loads(self._path.read_text()) if self._path.exists() else fresh
        self.values = found if found["code"] == code else fresh

    def save(self) -> None:
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.values, indent=1) + "\n")
        os.replace(partial, self._path)


class Session:
    """One fuzzing process: runs inputs, notes what happens, ends when its time is up."""

    def __init__(self, target, folder: pathlib.Path, state: State, seconds: float):
        self._target = target
        self._folder = folder
        self._state = state
        self._before = state.values["processor_seconds"]
        self._seconds = seconds
        self._outcomes = collections.Counter(state.values["outcomes"])
        self._seeds = [path.read_bytes() for path in sorted((folder / "seeds").iterdir())]
        self._saved = 0.0
        self._resident = _resident_bytes()

    def one_input(self, data: bytes) -> None:
        """What libFuzzer calls."""
        values = self._state.values
        start = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
        try:
            outcome = self._target.run(data)
        except Hang as error:
            outcome = "HANG"
            self._found("hangs", _place(error), data)
        except Exception as error:  # whatever the reader does not document
            outcome = f"ESCAPED {type(error).__name__}"
            self._found("escaped_errors", f"{_place(error)} {type(error).__name__}: {error}", data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        end = time.process_time()
        self._outcomes[outcome] += 1
        values["executions"] += 1
        values["slowest_seconds"] = max(values["slowest_seconds"], round(end - start, 3))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        values["peak_memory_mib"] = max(values["peak_memory_mib"], peak)
        if peak << 20 > MEMORY_LIMIT:
            self._found("over_memory", f"{peak >> 8 << 8} MiB or more", data)
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # measure the next one anew
        done = self._before + end >= self._seconds
        leaked = _resident_bytes() - self._resident > _LEAK_LIMIT
        if done or leaked or end - self._saved > _SAVE_EVERY:
            self._saved = end
            values["processor_seconds"] = round(self._before + end, 1)
            values["outcomes"] = dict(sorted(self._outcomes.items()))
            self._state.save()
        if done or leaked:
            os._exit(0 if done else _RESTART)

    def mutate(self, data: bytes, max_size: int, seed: int) -> bytes:
        """What libFuzzer calls for a new input: partly its own way, partly ours."""
        import atheris

        if not data or seed % 8 >= self._target.own_eighths:
            return atheris.Mutate(data, max_size)
        # Most inputs that reach new code are broken for good: go back to a sound one now and then.
        base = random.Random(seed).choice(self._seeds) if seed % 3 == 0 else bytes(data)
        return self._target.damaged(base, seed)[:max_size] or b"\0"

    def _found(self, kind: str, what: str, data: bytes) -> None:
        known = self._state.values[kind]
        place = what.split(" ", 1)[0]
        if any(entry["what"].startswith(place) for entry in known) or len(known) >= 50:
            return
        name = f"{kind}-{hashlib.sha256(data).hexdigest()[:12]}"
        (self._folder / "findings" / name).write_bytes(data)
        known.append({"what": what[:300], "input": name, "bytes": len(data)})
        self._state.save()


def _resident_bytes() -> int:
    pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def _place(error: BaseException) -> str:
    """The innermost place of our own code in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "udc_tf" in f.filename or "/tests/" in f.filename] or frames
    return f"{pathlib.Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "unknown"


def _without_tensorflow() -> None:
    """Lets the readers be imported alone: `import udc_tf` brings TensorFlow and its 600 MB, which
    would hide the memory that the readers take."""
    package = types.ModuleType("udc_tf")
    package.__path__ = [str(HERE.parent / "udc_tf")]
    sys.modules["udc_tf"] = package


def child(name: str, folder: pathlib.Path, seconds: float, code: str) -> None:
    """Fuzzes in this process until the target has had `seconds` of processor time."""
    import atheris  # a development requirement, for Linux on x86-64

    if name not in NEEDS_TENSORFLOW:
        _without_tensorflow()
    with atheris.instrument_imports(include=_modules(name)):
        from tests.support import fuzz_targets

        target = fuzz_targets.find(name)
    session = Session(target, folder, State(folder, code), seconds)

    def expired(*_):
        raise Hang

    signal.signal(signal.SIGPROF, expired)
    corpus = [str(folder / "corpus"), str(folder / "seeds")]
    options = [f"-max_len={target.max_bytes}", f"-artifact_prefix={folder}/findings/"]
    options += [f"-timeout={30 * HANG_SECONDS}", "-rss_limit_mb=4096", "-verbosity=0"]
    options += [f"-seed={random.randrange(1, 1 << 31)}", "-len_control=0", "-reload=0"]
    atheris.Setup(
        [sys.argv[0], *corpus, *options], session.one_input, custom_mutator=session.mutate
    )
    atheris.Fuzz()


def _modules(name: str) -> list[str]:
    paths = [code.removesuffix(".py").replace("/", ".") for code in CODE[name]]
    return [path if path.startswith("udc_tf") else f"udc_tf.{path}" for path in paths]


def _code_digest(name: str) -> str:
    """A result is of this code and no other; comments and docstrings do not count."""
    digest = hashlib.sha256()
    for code in CODE[name]:
        path = HERE.parent / code
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            tree = ast.parse(file.read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    node.value.value = ""
            digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


def fuzz(name: str, minutes: float) -> dict:
    """Runs one target to its end, in as many processes as it takes."""
    folder = FOLDER / name
    for part in ("seeds", "corpus", "findings"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    if not any((folder / "seeds").iterdir()):
        command = [sys.executable, "-m", "benchmarks.fuzz", f"--make_seeds={name}"]
        subprocess.run(command, check=True)
    code = _code_digest(name)
    command = [sys.executable, "-m", "benchmarks.fuzz", f"--child={name}", f"--minutes={minutes}"]
    state = State(folder, code)
    state.save()
    while True:
        before = {path.name for path in (folder / "findings").iterdir()}
        done = subprocess.run([*command, f"--code={code}"], check=False, capture_output=True)
        state = State(folder, code)
        if done.returncode == 0:
            break
        if done.returncode == _RESTART:
            continue
        new = sorted({path.name for path in (folder / "findings").iterdir()} - before)
        kind = "hangs" if any(n.startswith("timeout") for n in new) else "crashes"
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        found = {"what": f"status {done.returncode}: {' '.join(last)[:300]}", "input": new[:1]}
        state.values[kind].append(found)
        state.save()
        (folder / "last_crash.log").write_bytes(done.stderr)
        if len(state.values["crashes"]) + len(state.values["hangs"]) >= CRASH_LIMIT:
            break
    return state.values


def _write(name: str, values: dict) -> None:
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    results[name] = values
    part = RESULT.with_suffix(".partial")
    part.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    os.replace(part, RESULT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", default="all", help="names with commas between, or all")
    parser.add_argument("--minutes", type=float, default=20, help="of processor time, per target")
    parser.add_argument("--make_seeds", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--code", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make_seeds:
        from tests.support import fuzz_targets

        for number, data in enumerate(fuzz_targets.seeds(options.make_seeds)):
            (FOLDER / options.make_seeds / "seeds" / f"{number:03d}").write_bytes(data)
        return 0
    if options.child:
        child(options.child, FOLDER / options.child, 60 * options.minutes, options.code)
        return 0
    names = options.targets.split(",")
    if names == ["all"]:
        names = list(CODE)
    bad = 0
    for name in names:
        values = fuzz(name, options.minutes)
        _write(name, values)
        findings = {k: values[k] for k in ("crashes", "hangs", "escaped_errors", "over_memory")}
        bad += sum(map(len, findings.values()))
        print(
            f"{name}: {values['executions']} executions, {values['processor_seconds']} s, "
            f"{values['peak_memory_mib']} MiB; findings: {json.dumps(findings)}"
        )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
