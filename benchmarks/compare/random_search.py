"""Random search through keras-tuner, in one process or with keras-tuner's chief and workers.

    python -m benchmarks.compare.random_search --data=fashion --budget=9000 --trials=10

With KERASTUNER_TUNER_ID=chief, KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT set, the process
hands out the trials; with another id it works on them. Rows go where the comparison looks for them.

A trial draws random preferences for all options of the search space, repairs them to the budget as
`SearchModel.architecture` does, and trains what comes out from scratch for as many epochs as UDC
has for search and finetuning together: n trials are n times UDC's cost.
"""

import dataclasses
import pathlib
import zlib
from collections.abc import Callable

import keras
import keras_tuner
from absl import app, flags

from benchmarks.compare import tasks
from benchmarks.compare.methods import random_trial
from benchmarks.compare.options import define_flags
from benchmarks.compare.runs import Run
from benchmarks.compare.sizing import Bench
from benchmarks.harness import Row, Rows, rows_of

_LARGEST_DRAW = 2**31 - 1


class RandomSearch(keras_tuner.Tuner):
    """Trials of random draws. A project that is there already goes on.

    Args:
        evaluate: from the number of a trial and its draw to a score; larger is better.
        trials: how many there are to be in the end.
        folder: of the project.
        seed: of the draws.
    """

    def __init__(
        self, evaluate: Callable[[int, int], float], trials: int, folder: pathlib.Path, seed=0
    ):
        space = keras_tuner.HyperParameters()
        space.Int("draw", 0, _LARGEST_DRAW)
        self._evaluate = evaluate
        oracle = keras_tuner.oracles.RandomSearchOracle(
            objective=keras_tuner.Objective("score", "max"),
            max_trials=trials,
            seed=seed,
            hyperparameters=space,
            tune_new_entries=False,
            allow_new_entries=False,
        )
        oracle.verbose = 0
        super().__init__(oracle=oracle, directory=str(folder.parent), project_name=folder.name)

    def run_trial(self, trial):
        try:
            score = self._evaluate(int(trial.trial_id), trial.hyperparameters.get("draw"))
        except Exception as error:
            # Anything else is taken for a bad trial, and the search goes on without a word.
            raise keras_tuner.errors.FatalError(f"Trial {trial.trial_id} failed.") from error
        return {"score": score}

    def draws(self) -> dict[int, int]:
        """Trial -> draw, of the trials so far."""
        return {
            int(number): trial.hyperparameters.get("draw")
            for number, trial in self.oracle.trials.items()
        }


def run_trials(bench: Bench, rows: Rows, run: Run, trials: int) -> Row | None:
    """Sees to it that the first trials have rows; returns the last one's (not as a chief)."""

    def evaluate(number: int, draw: int) -> float:
        trial = dataclasses.replace(run, setting=f"trial {number}")
        row = rows.read().get(trial.key)
        if row is None:
            keras.utils.clear_session()
            bench.target(trial.budget)  # a size fit that is made now is not this trial's time
            row = random_trial(bench, trial, draw)
            rows.add(trial.key, trial.row(row))
        return row.get("validation_accuracy", 0.0)

    name = f"random_{run.data}_{run.budget}_{run.epochs}_{run.images}"
    seed = zlib.crc32(name.encode())  # other draws for each budget
    tuner = RandomSearch(evaluate, trials, bench.cache / name, seed)
    tuner.search()
    if not hasattr(tuner.oracle, "trials"):
        return None  # a worker's: the chief knows the trials
    last = trials - 1
    evaluate(last, tuner.draws()[last])  # if the project is older than the rows
    return rows.read()[dataclasses.replace(run, setting=f"trial {last}").key]


def main(_) -> None:
    given = flags.FLAGS
    cache = pathlib.Path(given.cache).expanduser()
    rows = rows_of(given)
    for name in given.data:
        task = tasks.load(name, given.images, cache)
        images = len(task.train[0])
        run = Run(name, "random", "", given.budget, 0, given.epochs, images)
        run_trials(Bench(task, cache, given.size_compiles), rows, run, given.trials)


if __name__ == "__main__":
    flags.DEFINE_integer("budget", None, "Bytes of compiled flash.", required=True)
    flags.DEFINE_integer("trials", 10, "How many.")
    define_flags()
    app.run(main)
