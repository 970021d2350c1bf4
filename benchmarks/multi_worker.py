"""How much faster are two workers on two cores than one worker on one core?

The search of a ResNet8, small (half its width, 14x14 pixels, batches of 128) and as it is (32x32,
batches of 256), on random images. One worker with four Monte-Carlo samples, and two workers with
two each, which compute the same. Every worker is pinned to a core of its own, with one thread for
TensorFlow's operators. All are started once and take turns, a round of steps each, so that whatever
else the machine does meets both. For each round the seconds that passed and the CPU seconds of the
workers; where the machine is busy with other things, the first is a lower bound (a pair waits for
the slower of two cores), while the second tells what working together costs beyond the work itself.
Rounds may be held up for long on a shared machine: the ratio of the fastest rounds of each
is what such waiting touches least.

    python -m benchmarks.multi_worker
"""

import dataclasses
import functools
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Mapping

from benchmarks import harness
from benchmarks.harness import Row, Rows, Stopwatch, table

ROUNDS = 7  # the first traces and is not counted


@dataclasses.dataclass(frozen=True)
class Case:
    input_shape: tuple[int, int, int]
    filters: tuple[int, int, int]
    batch: int
    steps: int  # of a round


CASES = {
    "small": Case((14, 14, 1), (8, 16, 32), batch=128, steps=48),
    "full": Case((32, 32, 3), (16, 32, 64), batch=256, steps=8),
}


def worker(name: str, core: int, samples: int) -> None:
    """Trains a round at each line from standard input; answers with seconds and CPU seconds."""
    os.sched_setaffinity(0, {core})
    import keras
    import numpy as np
    import tensorflow as tf

    import udc_tf
    from udc_tf.training.workers import Workers, leave

    tf.config.threading.set_intra_op_parallelism_threads(1)
    workers, case = Workers.from_environment(), CASES[name]
    keras.utils.set_random_seed(0)
    with workers.scope():
        # Without a first guess: it is made once in a search, and would be in one of the rounds.
        settings = udc_tf.SearchSettings(samples=samples, certainty=0.0)
        target = udc_tf.Flash("14KiB")
        network = udc_tf.models.resnet8(case.input_shape, 10, case.filters)
        search = udc_tf.make_searchable(network, "ethos_u55", target, settings)
        search.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    class TakeTurns(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            sys.stdin.readline()
            self.watch = Stopwatch()

        def on_epoch_end(self, epoch, logs=None):
            took = self.watch.read(digits=3)
            print(json.dumps([took.wall, took.cpu]), flush=True)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(case.batch * case.steps, *case.input_shape)).astype("float32")
    y = rng.integers(0, 10, len(x))
    search.fit(x, y, batch_size=case.batch, epochs=ROUNDS, callbacks=[TakeTurns()], verbose=0)
    leave(0)


def start(name: str, cores: list[int], samples: int) -> list[subprocess.Popen]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in cores]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    started = []
    for index, core in enumerate(cores):
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if len(cores) > 1:
            task = {"type": "worker", "index": index}
            config = {"cluster": {"worker": addresses}, "task": task}
            environment["TF_CONFIG"] = json.dumps(config)
        command = [sys.executable, "-m", "benchmarks.multi_worker"]
        command += [name, str(core), str(samples)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
    return started


def one_round(workers: list[subprocess.Popen]) -> tuple[float, float]:
    """Seconds until all were done, and CPU seconds of all together."""
    for process in workers:
        process.stdin.write("go\n")
        process.stdin.flush()
    took = [json.loads(process.stdout.readline()) for process in workers]
    return max(t[0] for t in took), sum(t[1] for t in took)


def measure(name: str) -> Row:
    cores, case = sorted(os.sched_getaffinity(0))[:2], CASES[name]
    load = os.getloadavg()[0]
    teams = {"one worker": start(name, cores[:1], 4), "two workers": start(name, cores, 2)}
    rounds: dict[str, list] = {team: [] for team in teams}
    for _ in range(ROUNDS):
        for team, workers in teams.items():
            rounds[team].append([round(t, 3) for t in one_round(workers)])
    for workers in teams.values():
        for process in workers:
            process.wait()
    one, two = (rounds[team][1:] for team in teams)
    speedups = [a[0] / b[0] for a, b in zip(one, two, strict=True)]

    def speed(of_team) -> int:
        return round(case.batch * case.steps / statistics.median(r[0] for r in of_team))

    return {
        **dataclasses.asdict(case),
        "load of the machine before": round(load, 1),
        "[seconds, CPU seconds] of each round": {"one worker": one, "two workers": two},
        "examples a second, one worker": speed(one),
        "examples a second, two workers": speed(two),
        "throughput, two / one, median of the rounds": round(statistics.median(speedups), 3),
        "throughput, two / one, least and most": [round(min(speedups), 3), round(max(speedups), 3)],
        "throughput, two / one, fastest rounds": round(
            min(r[0] for r in one) / min(r[0] for r in two), 3
        ),
        "CPU seconds for the same work, two / one": round(
            statistics.median(r[1] for r in two) / statistics.median(r[1] for r in one), 3
        ),
    }


def report(rows: Mapping[str, Row]) -> str:
    kinds = (
        "throughput, two / one, fastest rounds",
        "throughput, two / one, median of the rounds",
        "throughput, two / one, least and most",
        "CPU seconds for the same work, two / one",
    )
    return table(("case", *kinds), [(name, *(row[k] for k in kinds)) for name, row in rows.items()])


def run(rows: Rows) -> str:
    for name in CASES:
        rows.once(name, functools.partial(measure, name))
    return report(rows.read())


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in CASES:
        worker(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        harness.main(run, "multi_worker")
