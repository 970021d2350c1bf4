"""The commands: `udc` runs all steps, the others one each."""

import pathlib
import shlex
import sys
import traceback
from collections.abc import Sequence

from absl import flags

from udc_tf.cli.errors import UsageError
from udc_tf.cli.flags import help_text, make_flags, options_of
from udc_tf.cli.options import Run, resolve
from udc_tf.cli.workdir import STEPS, WorkDir

_ABOUT = {
    "udc": "Searches, finetunes, exports, verifies and reports, into --workdir.",
    "udc-search": "Searches for the network that fits the budget.",
    "udc-finetune": "Finetunes what udc-search found in --workdir.",
    "udc-export": "Compiles and verifies what udc-finetune left in --workdir, and reports.",
}
_STEPS_OF = {
    "udc": STEPS,
    "udc-search": ("search",),
    "udc-finetune": ("finetune",),
    "udc-export": ("export",),
}


def udc() -> None:
    sys.exit(main("udc", sys.argv))


def udc_search() -> None:
    sys.exit(main("udc-search", sys.argv))


def udc_finetune() -> None:
    sys.exit(main("udc-finetune", sys.argv))


def udc_export() -> None:
    sys.exit(main("udc-export", sys.argv))


def main(command: str, argv: Sequence[str], say=print) -> int:
    """Runs a command; returns its exit code.

    Mistakes of the user end in one line on standard error and exit code 2, failures of a step in
    code 1. An interrupted run says how to go on.
    """
    values = make_flags()
    try:
        rest = values([command, *argv[1:]])
    except flags.Error as error:
        return _fail(command, f"{error} (--help shows all flags)", 2)
    if values["help"].value:
        from udc_tf.models.recipes import RECIPES

        recipes = "\n".join(f"  {r.name:<26} {r.about}" for r in RECIPES.values())
        say(f"{command}: {_ABOUT[command]}\n\nFlags:\n{help_text(values)}\n\nRecipes:\n{recipes}")
        return 0
    try:
        if len(rest) > 1:
            raise UsageError(f"All settings are flags. Received: {' '.join(rest[1:])}")
        return _run(command, values, shlex.join([command, *argv[1:]]), say)
    except KeyboardInterrupt:
        return _fail(command, "interrupted; the same command goes on from there", 130)
    except UsageError as error:
        if values["traceback"].value:
            traceback.print_exc()
        return _fail(command, str(error), 2)
    except (ValueError, OSError, RuntimeError) as error:
        if values["traceback"].value:
            traceback.print_exc()
        return _fail(command, str(error) or type(error).__name__, 1)


def _run(command: str, values: flags.FlagValues, line: str, say) -> int:
    options = options_of(values)
    if values["dry_run"].value:
        from udc_tf.cli.dry_run import dry_run

        dry_run(resolve(options), say)
        return 0
    folder = values["workdir"].value
    # Before a folder is made for a run that cannot be; what was said there before still holds.
    earlier = {} if folder is None else WorkDir(pathlib.Path(folder)).read_record()["options"]
    run = resolve(options.over(earlier))
    if folder is None:
        raise UsageError("--workdir=FOLDER is needed: everything is kept there.")
    if not WorkDir(pathlib.Path(folder)).network.exists():
        run.load_data()  # whatever is wrong with the data is said before anything is written
    work = WorkDir.open(folder)
    with work.locked():
        for step in _STEPS_OF[command]:
            work.begin(step, run.sections(), run.options.given(), line)
            _STEP[step](run, work, say)
        _report(run, work, say)
    return 0


def _search(run: Run, work: WorkDir, say) -> None:
    from udc_tf.cli.training import run_search

    say(run_search(run, work, say).table())


def _finetune(run: Run, work: WorkDir, say) -> None:
    from udc_tf.cli.tasks import task_of
    from udc_tf.cli.training import run_finetune

    run_finetune(run, work, say)
    task, results = task_of(run.recipe.task), work.read_results()
    said = (f"{p} {task.describe(results[f'{p}_score'])}" for p in ("validation", "test"))
    say(f"finetune: {task.label} of the quantized network: {', '.join(said)}")
    for name, row in results.get("sets", {}).items():
        say(f"finetune: {name}, {row['psnr']:.2f} dB on Y, bicubic {row['bicubic']:.2f}")


def _export(run: Run, work: WorkDir, say) -> None:
    from udc_tf.cli.exporting import run_export

    run_export(run, work, say)


_STEP = {"search": _search, "finetune": _finetune, "export": _export}


def _report(run: Run, work: WorkDir, say) -> None:
    try:
        from udc_tf.report.page import write_report
    except ImportError as error:
        say(f"report: left out, {error.name} is missing (pip install matplotlib)")
        return
    say(f"report: {write_report(work.path)}")


def _fail(command: str, message: str, code: int) -> int:
    print(f"{command}: {message}", file=sys.stderr)
    return code
