"""What measuring evidence adds to the processor time of a whole search.

The same search with and without it, in turns: `make_searchable` to the last of 20 epochs, tracing
included. The setting `evidence` bounds it by forward passes; here is what that comes to.

    python -m benchmarks.search_time
"""

import functools
from collections.abc import Mapping

import keras
import numpy as np

import udc_tf
from benchmarks import harness
from benchmarks.data import scaled_digits
from benchmarks.harness import Row, Rows, interleaved
from benchmarks.networks import DIGIT_NETWORKS

BUDGETS = {"small_cnn": 8_000, "resnet8": 12_000}
ROUNDS, EPOCHS, IMAGES, BATCH = 3, 20, 960, 32
RATIO = "with / without evidence (CPU, wall)"


def search(name: str, evidence: float) -> None:
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    settings = udc_tf.SearchSettings(evidence=evidence)
    target = udc_tf.Flash(BUDGETS[name])
    model = udc_tf.make_searchable(DIGIT_NETWORKS[name](), "ethos_u55", target, settings)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(*scaled_digits("train", IMAGES), batch_size=BATCH, epochs=EPOCHS, verbose=0)


def measure(name: str) -> Row:
    share = udc_tf.SearchSettings().evidence
    actions = {e: functools.partial(search, name, e) for e in (0.0, share)}
    times = interleaved({str(e): action for e, action in actions.items()}, ROUNDS, unmeasured=0)
    ratios = np.median(times[str(share)] / times["0.0"], axis=0)
    seconds = float(np.median(times["0.0"][:, 0]))
    return {"CPU seconds without": round(seconds, 1), RATIO: [round(float(r), 3) for r in ratios]}


def report(rows: Mapping[str, Row]) -> str:
    lines = [(name, *row[RATIO], row["CPU seconds without"]) for name, row in rows.items()]
    head = ("network", "with / without evidence: processor", "wall", "CPU seconds without")
    return harness.table(head, lines)


def run(rows: Rows) -> str:
    for name in BUDGETS:
        rows.once(name, functools.partial(measure, name))
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "search_time")
