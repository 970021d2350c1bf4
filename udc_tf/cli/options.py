"""What the user said, and the run that follows from it."""

import dataclasses
import math
from typing import Any

import keras

from udc_tf.cli import flag_values
from udc_tf.cli.device_flags import Device, flash_budget
from udc_tf.cli.own_model import load_model
from udc_tf.cli.usage import UsageError
from udc_tf.cost.byte_sizes import parse_bytes
from udc_tf.cost.targets import Flash, Target
from udc_tf.models import data, recipes
from udc_tf.models.data import Dataset, FileDataset
from udc_tf.models.recipes import Recipe
from udc_tf.search.front import shared_epochs

_WINDOW = 128  # steps
# Flags that are the recipe's fields.
_AS_THEY_ARE = (
    "macs",
    "search_epochs",
    "batch_size",
    "search_batch_size",
    "decision_learning_rate",
)
# Kept with the work directory if given: those of earlier versions did not have them.
_TRAINED_WITH = ("optimizer", "decision_learning_rate", "augmentation")
_SIZE_COMPILES = 8  # enough for a few coefficients; each takes some seconds


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags as they were given; None where nothing was said, and the recipe decides."""

    recipe: str | None = None
    model: str | None = None
    task: str | None = None
    data: str | None = None
    data_dir: str | None = None
    image_size: str | None = None
    channels: int | None = None
    clip_seconds: float | None = None
    window: int | None = None
    sequences: bool | None = None
    examples: int | None = None
    flash: str | None = None
    macs: float | None = None
    sram: str | None = None
    cycles: float | None = None
    latency: str | None = None
    clock: str | None = None
    board: str | None = None
    accelerator: str | None = None
    system_config: str | None = None
    memory_mode: str | None = None
    vela_config: str | None = None
    allow_cpu: bool | None = None
    widths: str | None = None
    bits: str | None = None
    sparsities: str | None = None
    kernels: str | None = None
    search_epochs: int | None = None
    warmup: float | None = None
    samples: int | None = None
    samples_per_pass: int | None = None
    certainty: float | None = None
    size_compiles: int | None = None
    batch_size: int | None = None
    search_batch_size: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    decision_learning_rate: float | None = None
    augmentation: str | None = None
    finetune_epochs: str | None = None
    teacher: str | None = None
    teacher_epochs: int | None = None
    runners: str | None = None
    verify_examples: int | None = None
    seed: int | None = None

    def given(self) -> dict[str, Any]:
        return {k: v for k, v in dataclasses.asdict(self).items() if v is not None}

    def budgets(self) -> tuple[str, ...]:
        """What --flash lists; for more than one, a front is searched.

        >>> Options(flash="16KiB,24KiB").budgets()
        ('16KiB', '24KiB')
        """
        return () if self.flash is None else tuple(self.flash.split(","))

    def over(self, earlier: dict[str, Any]) -> "Options":
        """These options, and those of `earlier` where nothing was said.

        A flag that is given empty takes back what was said earlier.

        >>> Options(teacher="", seed=1).over({"teacher": "big.keras"}).given()
        {'seed': 1}
        """
        known = {f.name for f in dataclasses.fields(self)}
        merged = {**earlier, **self.given()}
        return Options(**{k: v for k, v in merged.items() if k in known and v != ""})

    @classmethod
    def wrong(cls, stored: dict[str, Any]) -> dict[str, Any]:
        """Those of stored options that no flag can have given.

        >>> Options.wrong({"flash": "8KiB", "macs": 5, "seed": "x"})
        {'seed': 'x'}
        """
        kinds: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(cls)}

        def fits(name: str, value: Any) -> bool:
            if isinstance(value, bool) and not isinstance(False, kinds[name]):
                return False
            whole = isinstance(value, int) and abs(value) < 1 << 53  # a float in JSON, perhaps
            return isinstance(value, kinds[name]) or (whole and isinstance(0.0, kinds[name]))

        return {k: v for k, v in stored.items() if k in kinds and not fits(k, v)}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run with nothing left open."""

    options: Options
    recipe: Recipe  # with all that was overridden
    data: str | None
    where: Device
    runners: tuple[str, ...]
    verify_examples: int
    size_compiles: int
    seed: int
    # What was read for this run; the runs of a front share it.
    kept: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    # The work directory that names the model, if the user did not in this call.
    model_stored_in: str | None = None
    compresses: bool = False  # whether nothing is searched and trained

    def load_data(self, download: bool = True) -> Dataset | FileDataset:
        """The data, read once for all steps of the run."""
        if "data" not in self.kept:
            self.kept["data"] = self._load_data(download)
        return self.kept["data"]

    def _fingerprint(self) -> str:
        if "fingerprint" not in self.kept:
            self.kept["fingerprint"] = self.load_data().fingerprint()
        return self.kept["fingerprint"]

    def _load_data(self, download: bool) -> Dataset | FileDataset:
        o, recipe = self.options, self.recipe
        if self.data is None:
            raise data.DataError(
                f"--data is needed: one of {', '.join(data.NAMES)}, an .npz, a .csv of windows, or "
                "a folder with one folder of images, recordings (.wav) or tables (.csv) per class."
            )
        size = flag_values.image_size(o.image_size) or tuple(recipe.input_shape[:2])
        # A network of the user's own takes the data as they come.
        own_rank = 2 if o.sequences else None
        loaded = data.load(
            self.data,
            o.data_dir,
            image_size=size if len(size) == 2 else None,
            channels=o.channels or recipe.input_shape[-1],
            seed=self.seed,
            download=download,
            rank=own_rank if o.model else len(recipe.input_shape),
            clip_seconds=1.0 if o.clip_seconds is None else o.clip_seconds,
            window=o.window or _WINDOW,
        )
        if o.model is None and len(recipe.input_shape) == 2 != len(loaded.input_shape):
            raise UsageError(
                f"The network of {recipe.name} takes windows of steps and channels. Received: "
                f"--data={self.data} with examples of shape {loaded.input_shape}"
            )
        loaded = loaded.limited(self.options.examples)
        if self.recipe.task == "classification" and not loaded.classes:
            raise UsageError(
                f"--data={self.data} has no classes: y must be one whole number per example, or "
                "say --task=reconstruction for a network that reproduces its input."
            )
        return loaded

    def build_model(self, input_shape: tuple[int, ...] | None, classes: int) -> keras.Model:
        keras.utils.set_random_seed(self.seed)
        if self.options.model is not None:
            return load_model(self.options.model, input_shape, classes, self.model_stored_in)
        return self.recipe.model(input_shape, classes)

    @property
    def search_batch(self) -> int:
        """The examples of a step of the search, all samples together."""
        return self.recipe.search_batch_size or self.recipe.batch_size

    @property
    def accelerator(self) -> str:
        """Vela's name of the NPU."""
        return self.where.accelerator

    def targets(self) -> list[Target]:
        return self.where.targets(self.recipe.flash, self.recipe.macs)

    @property
    def device(self) -> str | None:
        """The NPU that the targets are for; None if they only count multiplications."""
        return self.accelerator if any(hasattr(t, "accelerator") for t in self.targets()) else None

    @property
    def allow_cpu(self) -> bool:
        """Whether operators that the NPU does not run may be left to the CPU."""
        return bool(self.options.allow_cpu)

    @property
    def flash_target(self) -> Flash | None:
        return next((t for t in self.targets() if isinstance(t, Flash)), None)

    def sections(self) -> dict[str, dict[str, Any]]:
        """What each step depends on, as it is compared with a work directory's."""
        o, r = self.options, self.recipe
        search = {
            "recipe": o.recipe,
            "model": o.model or r.network,
            "arguments": dict(r.arguments),
            "task": r.task,
            "data": self.data,
            "content of the data": self._fingerprint(),
            "image_size": o.image_size,
            "channels": o.channels,
            **{k: v for k in ("clip_seconds", "window", "sequences") if (v := getattr(o, k))},
            "examples": o.examples,
            "flash": None if r.flash is None else parse_bytes(r.flash),
            "macs": r.macs,
            "accelerator": self.accelerator,
            "system": self.where.system,
            "sram": self.where.sram,
            "cycles": self.where.cycles,
            "space": r.space.to_dict(),
            "search": dataclasses.asdict(r.search),
            "search_epochs": r.search_epochs,
            "batch_size": self.search_batch,
            "learning_rate": r.learning_rate,
            **{k: v for k in _TRAINED_WITH if (v := getattr(o, k)) is not None},
            "size_compiles": self.size_compiles,
            "seed": self.seed,
        }
        if self.compresses:
            search["how"] = "udc-compress"
        finetune: dict[str, Any] = {"stages": dataclasses.asdict(r.stages), "teacher": o.teacher}
        if r.search_batch_size is not None:
            finetune["batch_size"] = r.batch_size
        return {"search": search, "finetune": finetune, "export": {}}


def resolve(options: Options, needs_budget: bool = True) -> Run:
    """Fills in what the recipe says, and checks what the user said.

    Raises:
        UsageError: in one line, with the fix.
    """
    flag_values.check_ranges(options.given())
    recipe = _base_recipe(options)
    changes: dict[str, Any] = {}
    if options.flash is not None:
        changes["flash"] = flag_values.checked_flash(options.flash)
    for name in _AS_THEY_ARE:
        if (value := getattr(options, name)) is not None:
            changes[name] = value
    if "batch_size" in changes:
        changes.setdefault("search_batch_size", None)  # for both, unless told otherwise
    for name, known in (("task", recipes.TASKS), ("optimizer", recipes.OPTIMIZERS)):
        if (value := getattr(options, name)) is not None:
            changes[name] = flag_values.one_of(name, value, known)
    if options.learning_rate is not None:
        changes["learning_rate"] = (options.learning_rate, options.learning_rate / 1000)
    try:
        changes["space"] = flag_values.space(options.given(), recipe)
        seed = options.seed or 0
        search = dataclasses.replace(recipe.search, seed=seed)
        of_search = ("samples", "samples_per_pass", "warmup", "certainty")
        given = {n: v for n in of_search if (v := getattr(options, n)) is not None}
        changes["search"] = dataclasses.replace(search, **given)
        changes["stages"] = flag_values.stages(options.given(), recipe)
        task = changes.get("task", recipe.task)
        if options.augmentation is not None:
            changes["augmentation"] = flag_values.augmentation(options.augmentation, task)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    where = Device.of(options.given())
    changes["flash"] = flash_budget(options.given(), changes.get("flash", recipe.flash))
    recipe = dataclasses.replace(recipe, **changes)
    if needs_budget and not where.targets(recipe.flash, recipe.macs):
        raise UsageError(
            "A budget is needed: --flash=24KiB, --sram=64KiB, --cycles=2e6, --latency=5ms, "
            "--macs=5e6, a --board, or a recipe that has one."
        )
    return Run(
        options=options,
        recipe=recipe,
        data=options.data or recipe.data,
        where=where,
        runners=flag_values.runners(options.runners),
        verify_examples=options.verify_examples or 64,
        size_compiles=_SIZE_COMPILES if options.size_compiles is None else options.size_compiles,
        seed=seed,
    )


def front_runs(options: Options) -> dict[str, Run]:
    """For each budget that --flash lists, by its name, the run that it would be alone.

    Two thirds of such a run are warm-up, which is trained once for all: three budgets cost as much
    as 1.67 of them alone. `--warmup` decides otherwise.
    """
    runs: dict[str, Run] = {}
    kept: dict[str, Any] = {}
    for budget in options.budgets():
        flag_values.checked_flash(budget, options.flash)
        run = resolve(dataclasses.replace(options, flash=budget))
        if options.warmup is None:
            changes: dict[str, Any] = {
                "warmup": 2 / 3,
                "search_epochs": max(2, run.recipe.search_epochs),
            }
            run = resolve(dataclasses.replace(run.options, **changes))
        if shared_epochs(run.recipe.search.warmup, run.recipe.search_epochs) < 1:
            raise UsageError(
                "Several budgets share their warm-up, which must be an epoch or more. Received: "
                f"--warmup={options.warmup} of {run.recipe.search_epochs} epochs"
            )
        runs[budget.strip()] = dataclasses.replace(run, kept=kept)
    if len(runs) < len(options.budgets()):
        raise UsageError(f"The budgets must differ. Received: --flash={options.flash}")
    return runs


def _base_recipe(options: Options) -> Recipe:
    if options.recipe is not None:
        try:
            return recipes.get(options.recipe)
        except ValueError:
            raise UsageError(
                f"There is no recipe {options.recipe!r}. Recipes: {', '.join(recipes.RECIPES)}."
            ) from None
    if options.model is None:
        raise UsageError(
            "Say what to search: --recipe=NAME, or --model=module:function with --data and "
            f"--flash. Recipes: {', '.join(recipes.RECIPES)}."
        )
    return Recipe(
        name="own",
        about="a network of your own",
        network=options.model,
        data=None,
        input_shape=(96, 96, 3),
        classes=0,
    )


def steps_per_epoch(examples: int, batch_size: int) -> int:
    return math.ceil(examples / batch_size)
