"""2,000 damaged files: each ends in an error or in a completed run, none in a crash or a hang.

python -m benchmarks.npu_corruption

Files are damaged by bit flips, truncation and splices, half of it aimed at the command stream (see
tests/npu_corruption.py), and run in child processes, so that a crash is seen; a file that takes
longer than LIMIT seconds counts as a hang. Guard bytes around the arena and a copy of the constants
show stray writes. Writes npu_corruption.json beside this file.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from tests.support import npu_corruption

HERE = pathlib.Path(__file__).parent
ANCHORS = HERE.parents[1] / "shared" / "anchors" / "mlperf_tiny"
LIMIT = 60  # seconds a file
CHUNK = 1000  # files a process


def _files() -> list[bytes]:
    from tests.support import npu_networks as nets

    models = [nets.random_network(seed) for seed in (5, 11, 19)]
    models += [path.read_bytes() for path in sorted(ANCHORS.glob("*.tflite"))]
    return [nets.compile_in_process(model) for model in models]


def child(first: int, count: int) -> None:
    """Prints one line a file: its number, the damage, the outcome, the seconds."""

    def expired(*_):
        raise TimeoutError

    files = _files()
    signal.signal(signal.SIGALRM, expired)
    for seed in range(first, first + count):
        kind, data = npu_corruption.damaged(seed, files)
        start = time.perf_counter()
        signal.alarm(LIMIT)
        try:
            result = npu_corruption.attempt(data)
        except TimeoutError:
            result = "HANG"
        except Exception as error:  # anything but an NpuError is what this looks for
            result = f"ESCAPED {type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
        spent = time.perf_counter() - start
        print(json.dumps([seed, kind, result, round(spent, 3)]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--first", type=int, help="run this chunk in the process itself")
    options = parser.parse_args()
    if options.first is not None:
        child(options.first, options.files)
        return 0
    rows, crashes = [], []
    for first in range(0, options.files, CHUNK):
        size = min(CHUNK, options.files - first)
        command = [sys.executable, "-m", "benchmarks.npu_corruption"]
        command += [f"--first={first}", f"--files={size}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
        rows += [json.loads(line) for line in lines]
        if done.returncode or len(lines) != size:
            crashes.append(f"after {len(lines)} files from {first}: status {done.returncode}")
    outcomes = collections.Counter((kind, result) for _, kind, result, _ in rows)
    bad = [row for row in rows if row[2] == "HANG" or row[2].startswith("ESCAPED")]
    result = {
        "files": len(rows),
        "crashes": crashes,
        "hangs_and_escaped_errors": bad,
        "slowest_seconds": max(row[3] for row in rows),
        "outcomes": {f"{kind}: {what}": n for (kind, what), n in sorted(outcomes.items())},
    }
    print(json.dumps(result, indent=1))
    part = HERE / "npu_corruption.json.part"
    part.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(part, HERE / "npu_corruption.json")
    return int(bool(crashes or bad))


if __name__ == "__main__":
    sys.exit(main())
