"""How much faster are two workers on two cores than one worker on one core?

The search of a ResNet8 at half its width on Fashion-MNIST at 14x14, batches of 128. One worker with
four Monte-Carlo samples, and two workers with two each, which compute the same. Every worker is
pinned to a core of its own, with one thread for TensorFlow's operators. All are started once and
take turns, a round of steps each, so that whatever else the machine does meets both. For each round
the seconds that passed and the CPU seconds of the workers; where the machine is busy with other
things, the first is a lower bound (a pair waits for the slower of two cores), while the second
tells what working together costs beyond the work itself.

    python -m benchmarks.multi_worker              # writes multi_worker.json
"""

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

from udc_tf.files import replaced_atomically

RESULTS = pathlib.Path(__file__).with_suffix(".json")
BATCH, STEPS, ROUNDS = 128, 24, 9  # the first round traces and is not counted


def worker(core: int, samples: int) -> None:
    """Trains a round at each line from standard input; answers with seconds and CPU seconds."""
    os.sched_setaffinity(0, {core})
    import keras
    import tensorflow as tf

    import udc_tf
    from benchmarks.finetune_data import fashion_mnist_14, resnet8
    from udc_tf.multi_worker import Workers, leave

    tf.config.threading.set_intra_op_parallelism_threads(1)
    workers = Workers.from_environment()
    keras.utils.set_random_seed(0)
    with workers.scope():
        settings = udc_tf.SearchSettings(samples=samples)
        target = udc_tf.Flash("14KiB")
        search = udc_tf.make_searchable(resnet8(0.5), "ethos_u55", target, settings)
        search.compile(loss="sparse_categorical_crossentropy")

    class TakeTurns(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            sys.stdin.readline()
            self.begun = time.perf_counter(), time.process_time()

        def on_epoch_end(self, epoch, logs=None):
            now = time.perf_counter(), time.process_time()
            took = [b - a for a, b in zip(self.begun, now, strict=True)]
            print(json.dumps(took), flush=True)

    x, y = fashion_mnist_14(BATCH * STEPS)[0]
    search.fit(x, y, batch_size=BATCH, epochs=ROUNDS, callbacks=[TakeTurns()], verbose=0)
    leave(0)


def start(cores: list[int], samples: int) -> list[subprocess.Popen]:
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
        command = [sys.executable, "-m", "benchmarks.multi_worker", str(core), str(samples)]
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


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    teams = {"one worker": start(cores[:1], 4), "two workers": start(cores, 2)}
    rounds: dict[str, list] = {name: [] for name in teams}
    load = os.getloadavg()[0]
    for _ in range(ROUNDS):
        for name, workers in teams.items():
            rounds[name].append([round(t, 3) for t in one_round(workers)])
    one, two = (rounds[name][1:] for name in teams)
    speedups = [a[0] / b[0] for a, b in zip(one, two, strict=True)]
    results = {
        "steps a round": STEPS,
        "batch": BATCH,
        "load of the machine before": round(load, 1),
        "[seconds, CPU seconds] of each round": {"one worker": one, "two workers": two},
        "examples a second, one worker": round(
            BATCH * STEPS / statistics.median(r[0] for r in one)
        ),
        "examples a second, two workers": round(
            BATCH * STEPS / statistics.median(r[0] for r in two)
        ),
        "throughput, two / one, median of the rounds": round(statistics.median(speedups), 3),
        "throughput, two / one, least and most": [round(min(speedups), 3), round(max(speedups), 3)],
        "CPU seconds for the same work, two / one": round(
            statistics.median(r[1] for r in two) / statistics.median(r[1] for r in one), 3
        ),
    }
    for workers in teams.values():
        for process in workers:
            process.wait()
    with replaced_atomically(RESULTS) as partial:
        partial.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        worker(int(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
