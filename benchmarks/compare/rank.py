"""Do shared weights rank networks as final training does?

    python -m benchmarks.compare.rank
    python -m benchmarks.compare.rank --data=cifar --seeds=0 --max_minutes=10

The networks of the comparison are trained already: uniform, random and searched ones of one budget.
Here a search of that budget is run as in the comparison, and each of them takes what it needs of
the shared weights. Spearman's coefficient is between minus the loss of that, on 2,000 training
images with their own batch-norm statistics, and the validation accuracy of the trained network. It
is asked when the warm-up ends, where evidence is measured, and at the end; without a size fit. No
finetuning: whether a change of warm-up or sampling is worth it shows here first, in minutes.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Mapping

import keras
import numpy as np
from absl import flags
from scipy import stats

import udc_tf
from benchmarks import harness
from benchmarks.compare import tasks
from benchmarks.compare.methods import RECIPES, WISH_SPREAD, parse_uniform
from benchmarks.compare.sizing import LOSS, SPACE
from benchmarks.compare.tasks import Task
from benchmarks.harness import Row, Rows, Stopwatch
from udc_tf.compact.build import Compactor, Configuration, LayerChoice, carry_weights
from udc_tf.search.extract import search_weights
from udc_tf.search.repair import Budget, repair, smallest_of

DATA = {"fashion": "compare", "cifar": "compare", "cifar_ds_cnn": "compare_ds_cnn"}
TIGHTER = 2  # of a task's budgets
EPOCHS, IMAGES, ASKED, SEEDS = 12, 24_000, 2_000, (0, 1, 2)
_SIZES_TRIED = np.linspace(0.85, 1.2, 71)

Layers = tuple[tuple[int, int, float], ...]  # outputs, bits, non-zeros


def trained(data: str, budget: int, search) -> dict[Layers, float]:
    """The networks of the comparison at that budget, and their mean validation accuracy."""
    path = harness.RESULTS / f"{DATA[data]}.json"
    found: dict[Layers, list[float]] = {}
    for row in json.loads(path.read_text()).values():
        same = (row["data"], row["budget"], row["epochs"]) == (data, budget, EPOCHS)
        if not same or "validation_accuracy" not in row or row.get("tightening_rounds"):
            continue
        layers = layers_of(row, search)
        if layers is not None:
            found.setdefault(layers, []).append(row["validation_accuracy"])
    return {layers: float(np.mean(accuracies)) for layers, accuracies in found.items()}


def layers_of(row: Row, search) -> Layers | None:
    """What a trained network looks like; None where its row does not tell."""
    if "layers" in row:
        return tuple((int(n), int(bits), float(share)) for n, bits, share in row["layers"])
    if row["method"] == "uniform":
        inner, ends = parse_uniform(row["setting"]), (8, 1.0)
        count = len(row["channels"])
        kinds = [ends if i in (0, count - 1) else inner for i in range(count)]
        return tuple((n, *kind) for n, kind in zip(row["channels"], kinds, strict=True))
    return drawn_layers(row, search) if "draw" in row else None


def drawn_layers(row: Row, search) -> Layers | None:
    """A random network from its draw: of the sizes near its own, one that has its channels."""
    valid = search.state.valid.numpy()
    wish = WISH_SPREAD * np.random.default_rng(row["draw"]).normal(size=valid.shape)
    wish = np.where(valid, wish, -np.inf)
    bound = search.problem.bound[0]
    for share in sorted(_SIZES_TRIED, key=lambda s: abs(s - 1)):
        budget = Budget((dataclasses.replace(bound, budget=share * row["predicted_bytes"]),))
        chosen = repair(wish, valid, budget, smallest_of(search.problem.plan, budget))
        counts = bound.maps.counts(bound.maps.one_hot(chosen))
        if [round(float(n)) for n in counts.outputs] == row["channels"]:
            shares = [round(float(s), 3) for s in counts.nonzeros]
            bits = [int(b) for b in counts.bits]
            return tuple(zip(row["channels"], bits, shares, strict=True))
    return None


def loss_of(search, layers: Layers, x: np.ndarray, y: np.ndarray) -> float:
    """Of a network that takes over the search's weights as they are."""
    plan = search.problem.plan
    channels, choices, of_layers = {}, {}, {}
    for priced, (outputs, bits, nonzeros) in zip(plan.layers, layers, strict=True):
        for group in plan.group_of(priced.outputs):
            channels[plan.groups[group].name] = outputs
        choices[f"bits/{priced.name}"] = bits
        of_layers[priced.name] = LayerChoice(bits=bits, nonzeros=nonzeros, kernel_size=None)
    graph, groups = search.problem.compactable
    compactor = Compactor(graph, groups, Configuration(channels, of_layers, {}))
    network = compactor.build()
    carry_weights(compactor.layers, search_weights(search, choices))
    return float(LOSS(y, network(x, training=True)))


class Asks(keras.callbacks.Callback):
    """Asks for the losses of networks when the warm-up has ended."""

    def __init__(self, ask):
        super().__init__()
        self._ask, self.found = ask, None

    def on_train_batch_end(self, batch, logs=None):
        state = self.model.state
        if self.found is None and state.steps_done() >= state.warmup_steps():
            self.found = self._ask(self.model)


def measure(task: Task, budget: int, seed: int) -> Row:
    keras.utils.clear_session()
    watch = Stopwatch()
    keras.utils.set_random_seed(seed)
    settings = udc_tf.SearchSettings(**{**RECIPES["udc"].search, "seed": seed})
    search = udc_tf.make_searchable(task.network(), SPACE, udc_tf.Flash(budget), settings)
    search.compile(loss=LOSS)
    networks = trained(task.name, budget, search)
    x, y = (part[:ASKED] for part in task.train)

    def rank(model) -> float:
        losses = [-loss_of(model, layers, x, y) for layers in networks]
        accuracies = list(networks.values())
        return round(float(stats.spearmanr(losses, accuracies).statistic), 3)

    asks = Asks(rank)
    search.fit(*task.train, batch_size=task.batch_size, callbacks=[asks], verbose=0)
    return {
        "networks": len(networks),
        "after the warm-up": asks.found,
        "at the end": rank(search),
        "cpu_seconds": watch.read().cpu,
    }


def report(rows: Mapping[str, Row]) -> str:
    lines = []
    for name in dict.fromkeys(key.rsplit(", ", 1)[0] for key in rows):
        of = [row for key, row in rows.items() if key.startswith(f"{name}, ")]
        cells = [
            ", ".join(f"{row[moment]:.2f}" for row in of)
            for moment in ("after the warm-up", "at the end")
        ]
        lines.append([name, of[0]["networks"], *cells])
    head = ("task", "networks", "after the warm-up, by seed", "at the end, by seed")
    return harness.table(head, lines)


def run(rows: Rows) -> str:
    given = flags.FLAGS
    cache = pathlib.Path(given.cache).expanduser()
    for seed, data in itertools.product(map(int, given.seeds), given.data):
        task = functools.cache(lambda data=data: tasks.load(data, IMAGES, cache))
        for budget in tasks.BUDGETS[data][:TIGHTER]:
            key = f"{data}, {budget} bytes, seed {seed}"
            rows.once(key, lambda task=task, b=budget, s=seed: measure(task(), b, s))
    return harness.write(rows.path.with_suffix(".md"), report(rows.read()))


if __name__ == "__main__":
    flags.DEFINE_list("data", list(DATA), f"Of {', '.join(DATA)}.")
    flags.DEFINE_list("seeds", [str(s) for s in SEEDS], "Of the searches.")
    flags.DEFINE_string("cache", tasks.CACHE, "For data.")
    harness.main(run, "compare_rank")
