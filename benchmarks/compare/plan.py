"""Which runs there are, in an order in which an interrupted table is already of use."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.compare import tfmot
from benchmarks.compare.methods import INT8, RECIPES, STRENGTHS, UNIFORM, uniform_setting
from benchmarks.compare.runs import Run
from benchmarks.harness import Row

METHODS = ("udc", "uniform", "int8_width", "int8_full", "random", "tfmot", "dnas")
FEW, MANY = 3, 10  # random trials: times UDC's cost
SETTINGS = {
    "uniform": [uniform_setting(*u) for u in UNIFORM],
    "int8_width": [INT8],
    "tfmot": [tfmot.setting_of(s) for s in tfmot.SPARSITIES],
    "dnas": [f"lambda {s:g}" for s in STRENGTHS],
    "random": [f"trial {n}" for n in range(MANY)],
}
SEARCHES = "default"  # the setting of udc
FIRST_SEED = 0  # settings are chosen by it

# Data -> (epochs, images, budgets).
Sizes = Mapping[str, tuple[int, int, Sequence[int]]]


def plan(sizes: Sizes, methods: Sequence[str], seeds: Sequence[int], rows) -> Iterator[Run]:
    """Runs in order; those that repeat a method's best setting come up once it is known."""
    return (run for run in _all_runs(sizes, methods, seeds, rows) if run.seed in seeds)


def _all_runs(sizes: Sizes, methods, seeds, rows) -> Iterator[Run]:
    first, others = FIRST_SEED, [s for s in seeds if s != FIRST_SEED]
    recipes = [m for m in methods if m in RECIPES]

    def places():
        for data, (_, _, budgets) in sizes.items():
            for budget in budgets:
                yield data, budget

    def run(data, method, setting, budget, seed) -> Run:
        epochs, images, _ = sizes[data]
        return Run(data, stored_as(method), setting, budget, seed, epochs, images)

    def of_method(method, settings, seed=first):
        if method in methods:
            for place, budget in places():
                for setting in settings:
                    yield run(place, method, setting, budget, seed)

    def repeated(method, seed):
        """A method's best setting once more, where it is known."""
        if method in methods:
            for data, budget in places():
                if best := chosen(rows, data, method, budget, *sizes[data][:2]):
                    yield run(data, method, best, budget, seed)

    for data, budget in places():
        for recipe in recipes:
            yield run(data, recipe, SEARCHES, budget, first)
        for method in ("int8_width", "uniform"):
            if method in methods:
                for setting in SETTINGS[method]:
                    yield run(data, method, setting, budget, first)
    if "int8_full" in methods:
        for data in sizes:
            yield run(data, "int8_full", INT8, None, first)
    yield from of_method("tfmot", SETTINGS["tfmot"])
    for seed in others:
        for recipe in recipes:
            yield from of_method(recipe, [SEARCHES], seed)
        yield from repeated("uniform", seed)
        yield from repeated("int8_width", seed)
    yield from of_method("random", SETTINGS["random"][:FEW])
    yield from of_method("dnas", SETTINGS["dnas"])
    for seed in others:
        yield from repeated("tfmot", seed)
        yield from repeated("dnas", seed)
        if "int8_full" in methods:
            for data in sizes:
                yield run(data, "int8_full", INT8, None, seed)
    yield from of_method("random", SETTINGS["random"][FEW:])
    for seed in others:
        yield from repeated("random", seed)


def stored_as(method: str) -> str:
    """int8 by width alone is one of the uniform settings, and its rows are theirs."""
    return "uniform" if method == "int8_width" else method


def chosen(rows: Mapping[str, Row], data, method, budget, epochs, images, among=None) -> str | None:
    """The setting with the best validation accuracy inside the budget; None until all are run."""
    found = {}
    for setting in among or SETTINGS[method]:
        run = Run(data, stored_as(method), setting, budget, FIRST_SEED, epochs, images)
        row = rows.get(run.key)
        if row is None:
            return None
        if row["budget_met"]:
            found[setting] = row["validation_accuracy"]
    return max(found, key=found.get) if found else None
