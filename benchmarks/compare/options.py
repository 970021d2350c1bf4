"""The flags of the comparison."""

from collections.abc import Sequence

from absl import flags

from benchmarks import harness
from benchmarks.compare import tasks
from benchmarks.compare.methods import RECIPES
from benchmarks.compare.plan import METHODS
from udc_tf.export.size_fit import DEFAULT_CONFIGURATIONS


def define_flags() -> None:
    harness.define_flags("compare")
    _define_choices("data", ["fashion", "cifar"], tasks.NAMES)
    _define_choices("methods", list(METHODS), [*METHODS, *RECIPES])
    flags.DEFINE_list("budgets", [], "Bytes; the task's own by default.")
    flags.DEFINE_list("seeds", ["0", "1", "2"], "Settings are chosen by seed 0.")
    flags.DEFINE_integer("epochs", 12, "Of a run, the search included.", lower_bound=2)
    flags.DEFINE_integer("images", 24_000, "To train on.")
    flags.DEFINE_string("cache", tasks.CACHE, "For data, size fits and random search.")
    flags.DEFINE_integer(
        "size_compiles", DEFAULT_CONFIGURATIONS, "Networks that a size fit compiles."
    )
    flags.DEFINE_bool("full", False, "The full-size recipes: one UDC and one int8 run of each.")


def _define_choices(name: str, default: list[str], choices: Sequence[str]) -> None:
    flags.DEFINE_list(name, default, f"Of {', '.join(choices)}.")
    flags.register_validator(
        name, lambda given: set(given) <= set(choices), f"must be of {', '.join(choices)}"
    )
