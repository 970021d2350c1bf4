"""Does the choice matter? Networks of about one size, all trained from scratch alike.

    python -m benchmarks.compare.choices                 # runs what is missing, then reports
    python -m benchmarks.compare.choices --only_report

Two questions that the comparison leaves open, on its CIFAR-10 task:

- designs: at 26,000 bytes UDC is level with a uniform network. Is its choice bad, or is there
  little to choose? Networks of full width with the same bits, which keep their weights in very
  different places, and one with a narrow middle, as UDC likes it.
- searches: at 12,000 bytes, does a longer search choose better than a short one, which hardly
  leaves its first guess, and what does it choose without one?

What comes out is trained for twelve epochs of 24,000 images by `udc_tf.finetune`, with fresh
weights, so that nothing but the choice differs. Accuracies are those of the int8 file on the
21,000 training images that no run has seen, which tell smaller differences than the 5,000
validation images; the test images are not looked at. Several processes may share the work.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping

import keras
import numpy as np
from absl import flags

import udc_tf
from benchmarks import harness
from benchmarks.compare import tasks
from benchmarks.compare.methods import proposed, searched, trained_and_deployed
from benchmarks.compare.runs import Run
from benchmarks.compare.sizing import SPACE, Bench, statistics_batches
from benchmarks.compare.tasks import Task
from benchmarks.harness import Row, Rows, Stopwatch, table, write
from udc_tf.models import data as data_sets
from udc_tf.search.extract import architecture_of, chosen_options

EPOCHS, IMAGES, UNSEEN = 12, 24_000, 21_000


@dataclasses.dataclass(frozen=True)
class Design:
    """A network by hand: 4 bits, the ends dense with 8, as in the uniform ones.

    Attributes:
        nonzeros: by layer; `others` where none is given.
        widths: by channel group; all channels where none is given.
    """

    nonzeros: Mapping[str, float] = dataclasses.field(default_factory=dict)
    others: float = 1.0
    widths: Mapping[str, float] = dataclasses.field(default_factory=dict)


_ENDS = ("stem", "head")
DESIGN_BUDGET, SEARCH_BUDGET = 26_000, 12_000
DESIGNS = {
    "uniform, 20%": Design(others=0.2),
    "the larger the sparser": Design(
        {
            "block1_conv1": 0.5,
            "block1_conv2": 0.5,
            "block2_conv1": 0.4,
            "block2_conv2": 0.3,
            "block3_conv1": 0.2,
            "block3_conv2": 0.1,
        }
    ),
    "the two largest at 10%, all else dense": Design({"block3_conv1": 0.1, "block3_conv2": 0.1}),
    "narrow between the two largest": Design(
        {"block2_conv2": 0.4, "block3_conv1": 0.4, "block3_conv2": 0.2},
        widths={"block3_conv1": 0.5},
    ),
}
# Name -> epochs, settings.
SEARCHES = {
    "1 epoch": (1, {"warmup": 0.5}),  # as in the comparison
    "8 epochs": (8, {}),
    "8 epochs from uniform probabilities": (8, {"certainty": 0.0}),
}


def load(cache: pathlib.Path) -> Task:
    """The comparison's CIFAR-10, with unseen training images to validate on."""
    task = tasks.load("cifar", IMAGES, cache)
    found = data_sets.cifar("cifar10", tasks.unpacked_cifar(cache))
    part = found.part("train")
    unseen = slice(IMAGES, IMAGES + UNSEEN)
    images = found.scaling(tasks.halved(part.x[unseen]))
    return dataclasses.replace(task, validation=(images, np.asarray(part.y[unseen], np.int32)))


def designed(bench: Bench, design: Design) -> udc_tf.Architecture:
    target = dataclasses.replace(bench.target(DESIGN_BUDGET), budget=2**30)  # of any size
    search = udc_tf.make_searchable(bench.plain_network(), SPACE, target)
    plan = search.problem.plan

    def option(decision) -> float:
        name = decision.subject
        if decision.kind == "width":
            return design.widths.get(name, 1.0)
        if decision.kind == "bits":
            return 8 if name in _ENDS else 4
        return 1.0 if name in _ENDS else design.nonzeros.get(name, design.others)

    choices = {d.name: option(d) for d in plan.decisions}
    chosen = chosen_options(plan, choices, np.zeros(len(plan.decisions), int))
    return architecture_of(search, chosen, statistics_batches(bench.task))


def chosen_by_search(bench: Bench, name: str, seed: int) -> udc_tf.Architecture:
    epochs, changes = SEARCHES[name]
    settings = udc_tf.SearchSettings(seed=seed, **changes)
    target = bench.target(SEARCH_BUDGET)
    search, _ = searched(bench.task, target, settings, epochs)
    return proposed(search, bench.task, target)


def perform(bench: Bench, run: Run) -> Row:
    """One network, trained from scratch; its size is told, not tightened."""
    keras.utils.clear_session()
    watch = Stopwatch()
    if run.method == "design":
        arch = designed(bench, DESIGNS[run.setting])
    else:
        arch = chosen_by_search(bench, run.setting, run.seed)
    layers = [(q.outputs, q.bits, round(q.nonzeros, 3)) for q in arch.layers]
    keras.utils.set_random_seed(run.seed)
    tiny = arch.build(inherit_weights=False)
    row = trained_and_deployed(bench, run, tiny, udc_tf.Stages(epochs=EPOCHS), None, watch)
    row.pop("test_accuracy", None)
    return {"layers": layers, **row}


def runs(seeds: list[int]) -> Iterator[Run]:
    for seed in seeds:
        for method, names, budget in (
            ("design", DESIGNS, DESIGN_BUDGET),
            ("search", SEARCHES, SEARCH_BUDGET),
        ):
            for name in names:
                yield Run("cifar", method, name, budget, seed, EPOCHS, IMAGES)


def report(rows: Mapping[str, Row]) -> str:
    """A table for each question, and whether choices differ by more than seeds do."""
    text = ""
    for method, names in (("design", DESIGNS), ("search", SEARCHES)):
        found = {n: [r for r in rows.values() if _is(r, method, n)] for n in names}
        found = {n: sorted(rs, key=lambda r: r["seed"]) for n, rs in found.items() if rs}
        if not found:
            continue
        lines = []
        for name, of_seeds in found.items():
            accuracies = [100 * r["validation_accuracy"] for r in of_seeds]
            size = np.mean([r["flash_bytes"] for r in of_seeds])
            each = ", ".join(f"{a:.1f}" for a in accuracies)
            lines.append((name, f"{size:,.0f}", each, f"{np.mean(accuracies):.1f}"))
        text += table((method, "compiled, bytes", "accuracy by seed, %", "mean"), lines)
        groups = [[100 * r["validation_accuracy"] for r in rs] for rs in found.values()]
        text += _spread(groups) + "\n"
    return text


def _is(row: Row, method: str, name: str) -> bool:
    return (row["method"], row["setting"]) == (method, name) and "validation_accuracy" in row


def _spread(groups: list[list[float]]) -> str:
    """
    >>> _spread([[66.0, 67.0], [66.2, 66.8]])
    '\\nStandard deviation between the means 0.00, between seeds 0.58.\\n'
    """
    if len(groups) < 2 or min(len(g) for g in groups) < 2:
        return ""
    means = np.std([np.mean(g) for g in groups], ddof=1)
    seeds = np.sqrt(np.mean([np.var(g, ddof=1) for g in groups]))
    return f"\nStandard deviation between the means {means:.2f}, between seeds {seeds:.2f}.\n"


def run(rows: Rows) -> str:
    cache = pathlib.Path(flags.FLAGS.cache).expanduser()

    @functools.cache
    def bench() -> Bench:
        return Bench(load(cache), cache)

    for one in runs([int(s) for s in flags.FLAGS.seeds]):
        rows.once(one.key, lambda one=one: one.row(perform(bench(), one)))
    return write(
        rows.path.with_suffix(".md"),
        "# Networks of about one size, trained from scratch alike\n\n"
        f"Made by `python -m benchmarks.compare.choices` from `{rows.path.name}`: CIFAR-10 "
        f"at 16x16, {EPOCHS} epochs of {IMAGES:,} images, accuracy of the int8 file on "
        f"{UNSEEN:,} training images that no run has seen.\n\n{report(rows.read())}",
    )


if __name__ == "__main__":
    flags.DEFINE_list("seeds", ["0", "1", "2"], "One run each.")
    flags.DEFINE_string("cache", tasks.CACHE, "For data and size fits.")
    harness.main(run, "compare_choices")
