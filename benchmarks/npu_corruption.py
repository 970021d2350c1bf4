"""2,000 damaged files: each ends in an error or in a completed run, none in a crash or a hang.

    python -m benchmarks.npu_corruption

Files are damaged by bit flips, truncation and splices, half of it aimed at the command stream (see
tests/npu_corruption.py), and run in child processes, so that a crash is seen; a file that takes
longer than LIMIT seconds counts as a hang. Guard bytes around the arena and a copy of the constants
show stray writes.
"""

import collections
import json
import signal
import subprocess
import sys
from collections.abc import Mapping

from absl import app, flags

from benchmarks import harness
from benchmarks.data import mlperf_tiny
from benchmarks.harness import Row, Rows, Stopwatch, table
from tests.support import npu_corruption
from tests.support import npu_networks as nets

LIMIT = 60  # seconds of a file
CHUNK = 1000  # files of a process


def _files() -> list[bytes]:
    models = [nets.random_network(seed) for seed in (5, 11, 19)]
    models += [path.read_bytes() for path in mlperf_tiny().values()]
    return [nets.compile_in_process(model) for model in models]


def child(first: int, count: int) -> None:
    """Prints a line for each file: its number, the damage, the outcome, the seconds."""

    def expired(*_):
        raise TimeoutError

    files = _files()
    signal.signal(signal.SIGALRM, expired)
    for seed in range(first, first + count):
        kind, data = npu_corruption.damaged(seed, files)
        watch = Stopwatch()
        signal.alarm(LIMIT)
        try:
            result = npu_corruption.attempt(data)
        except TimeoutError:
            result = "HANG"
        except Exception as error:  # anything but an NpuError is what this looks for
            result = f"ESCAPED {type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
        print(json.dumps([seed, kind, result, watch.read(digits=3).wall]), flush=True)


def measure(files: int) -> Row:
    lines, crashes = [], []
    for first in range(0, files, CHUNK):
        size = min(CHUNK, files - first)
        command = [sys.executable, "-m", "benchmarks.npu_corruption"]
        command += [f"--first={first}", f"--files={size}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [line for line in done.stdout.splitlines() if line.startswith("[")]
        lines += [json.loads(line) for line in found]
        if done.returncode or len(found) != size:
            crashes.append(f"after {len(found)} files from {first}: status {done.returncode}")
    outcomes = collections.Counter((kind, result) for _, kind, result, _ in lines)
    return {
        "files": len(lines),
        "crashes": crashes,
        "hangs_and_escaped_errors": [
            line for line in lines if line[2] == "HANG" or line[2].startswith("ESCAPED")
        ],
        "slowest_seconds": max(line[3] for line in lines),
        "outcomes": {f"{kind}: {what}": n for (kind, what), n in sorted(outcomes.items())},
    }


def report(rows: Mapping[str, Row]) -> str:
    lines = [
        (seeds, len(row["crashes"]), len(row["hangs_and_escaped_errors"]), row["slowest_seconds"])
        for seeds, row in rows.items()
    ]
    return table(("files", "crashes", "hangs and escaped errors", "slowest, seconds"), lines)


def run(rows: Rows) -> str:
    count = flags.FLAGS.files
    rows.once(f"0 to {count - 1}", lambda: measure(count))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_integer("files", 2000, "How many.", lower_bound=1)
    flags.DEFINE_integer("first", None, "Run the files from here on in the process itself.")
    if any(argument.startswith("--first=") for argument in sys.argv):
        app.run(lambda _: child(flags.FLAGS.first, flags.FLAGS.files))
    else:
        harness.main(run, "npu_corruption")
