"""The commands: `udc` runs all steps, the others one each."""

import contextlib
import dataclasses
import errno
import pathlib
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import flags

from udc_tf.cli.checks import check_runs
from udc_tf.cli.flags import help_text, make_flags, options_of
from udc_tf.cli.options import Options, Run, front_runs, resolve
from udc_tf.cli.usage import Say, UsageError
from udc_tf.cli.workdir import STEPS, WorkDir
from udc_tf.files import first_line
from udc_tf.training.workers import Workers, leave
from udc_tf.version import __version__

_ABOUT = {
    "udc": "Searches, finetunes, exports, verifies and reports, into --workdir. `udc doctor` says "
    "what is installed here and what is missing.",
    "udc-search": "Searches for the network that fits the budget.",
    "udc-finetune": "Finetunes what udc-search found in --workdir.",
    "udc-export": "Compiles and verifies what udc-finetune left in --workdir, and reports.",
    "udc-compress": "Brings a trained network into the budget without training; exports, verifies "
    "and reports.",
    "udc-teacher": "Trains the network as it is, for --teacher, into --workdir.",
    "udc-check": "Says what the NPU makes of each layer of a network; exit code 1: refused.",
}
_NO_FOLDER = "--workdir=FOLDER is needed: everything is kept there."
_STEPS_OF = {
    "udc": STEPS,
    "udc-search": ("search",),
    "udc-finetune": ("finetune",),
    "udc-export": ("export",),
    "udc-compress": ("search", "export"),  # it stands in the place of search and finetuning
}


def udc() -> None:
    leave(main("udc", sys.argv))


def udc_search() -> None:
    leave(main("udc-search", sys.argv))


def udc_finetune() -> None:
    leave(main("udc-finetune", sys.argv))


def udc_export() -> None:
    leave(main("udc-export", sys.argv))


def udc_compress() -> None:
    leave(main("udc-compress", sys.argv))


def udc_teacher() -> None:
    leave(main("udc-teacher", sys.argv))


def udc_check() -> None:
    leave(main("udc-check", sys.argv))


def main(command: str, argv: Sequence[str], say: Say = print) -> int:
    """Runs a command; returns its exit code.

    Mistakes of the user end in one line on standard error and exit code 2, failures of a step in
    code 1. An interrupted run says how to go on.
    """
    if command == "udc" and list(argv[1:]) == ["doctor"]:
        from udc_tf.cli.doctor import run_doctor

        return run_doctor(say)
    values = make_flags(command)
    try:
        rest = values([command, *argv[1:]])
    except flags.Error as error:
        return _fail(command, f"{error} (--help shows all flags)", 2)
    if values["help"].value:
        say(f"{command}: {_ABOUT[command]}\n\n{help_text(values)}")
        return 0
    if values["version"].value:
        say(f"{command} {__version__}")
        return 0
    if values["helpfull"].value:
        say(f"{command}: {_ABOUT[command]}\n{values.get_help()}")
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
    except tf.errors.UnavailableError:
        if values["traceback"].value:
            traceback.print_exc()
        advice = "start all of them again, with the same command: they go on from the last epoch"
        return _fail(command, f"another worker is gone; {advice}", 1)
    except Exception as error:
        if values["traceback"].value:
            traceback.print_exc()
        return _fail(command, _explain(error), 1)


def _explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        where = f" for {error.filename}" if error.filename else ""
        return f"the disk has no room left{where}: make some, and the same command goes on"
    if isinstance(error, (ValueError, OSError, RuntimeError)):
        return str(error) or type(error).__name__
    return f"{first_line(error)} (--traceback shows where)"


def _run(command: str, values: flags.FlagValues, line: str, say: Say) -> int:
    options = options_of(values)
    if command == "udc-check":
        from udc_tf.cli.check_command import run_check

        return run_check(options.over({}), values, say)
    if values["dry_run"].value and command in ("udc-compress", "udc-teacher"):
        raise UsageError(f"{command} searches nothing: there is nothing to plan. Leave --dry_run.")
    if values["dry_run"].value:
        from udc_tf.cli.dry_run import dry_run

        for name, run in _runs(options.over({})).items():
            if name:
                say(f"{name}:")
            dry_run(run, say)
        return 0
    workers = _workers(values["strategy"].value)
    say = say if workers.is_chief else _say_nothing
    folder = values["workdir"].value
    earlier = {} if folder is None else _earlier(WorkDir.at(folder))
    model_stored_in = None if options.model else folder
    options = options.over(earlier)
    if command == "udc-teacher":
        return _teach(options, model_stored_in, folder, line, say, workers)
    runs = _runs(options, model_stored_in)
    if command == "udc-compress":
        runs = {n: dataclasses.replace(r, compresses=True) for n, r in runs.items()}
    if folder is None:
        raise UsageError(_NO_FOLDER)
    # All that can be refused is refused before anything is made or noted.
    _check(command, runs, WorkDir.at(folder))
    if command == "udc-compress":
        from udc_tf.cli.compress_step import check_compression

        check_compression(runs)
    else:
        check_runs(runs, WorkDir.at(folder), _STEPS_OF[command])
    run = next(iter(runs.values()))
    work = WorkDir.open(folder) if workers.is_chief else WorkDir(pathlib.Path(folder))
    with contextlib.ExitStack() as stack:
        if workers.is_chief:
            stack.enter_context(work.locked())
            stack.enter_context(work.unless_refused())
            work.remove_partials()
        if len(runs) > 1:
            return _run_front(runs, work, _STEPS_OF[command], options, line, say, workers)
        for step in _STEPS_OF[command]:
            _step(step, run, work, line, say, workers)
        if workers.is_chief:
            _report(work, say)
    return 0


def _teach(
    options: Options,
    model_stored_in: str | None,
    folder: str | None,
    line: str,
    say: Say,
    workers: Workers,
) -> int:
    from udc_tf.cli.teacher_step import run_teacher, teacher_run

    run = dataclasses.replace(teacher_run(options), model_stored_in=model_stored_in)
    if folder is None:
        raise UsageError(_NO_FOLDER)
    run.load_data()
    work = WorkDir.open(folder)
    with work.locked(), work.unless_refused():
        work.remove_partials()
        run_teacher(run, work, line, say, workers)
    return 0


def _workers(strategy: str) -> Workers:
    try:
        return Workers.by_strategy(strategy)
    except ValueError as error:
        if strategy == "auto":
            raise  # nobody asked for a strategy: what is wrong is the environment
        raise UsageError(f"--strategy={strategy}: {error}") from error


def _earlier(work: WorkDir) -> dict[str, Any]:
    """The flags that were given to this folder before, and still hold."""
    options = work.read_record()["options"]
    if wrong := Options.wrong(options):
        name, value = next(iter(wrong.items()))
        raise UsageError(
            f"{work.record} is damaged ({name}={value!r}): restore it, or take another --workdir."
        )
    return options


def _check(command: str, runs: Mapping[str, Run], work: WorkDir) -> None:
    """Raises if the folder belongs to other runs, or lacks what the command goes on from."""
    from udc_tf.cli.front_run import front_sections

    if len(runs) > 1:
        work.check(front_sections(runs))
    for name, run in runs.items():
        part = work if len(runs) == 1 else WorkDir(work.path / name)
        part.check(run.sections())
        part.check_files()
        if command == "udc-finetune" and not part.architecture.exists():
            raise UsageError(f"{part.path} has no architecture yet: run udc-search there first.")
        if command == "udc-export" and not part.network.exists():
            raise UsageError(
                f"{part.path} has no finetuned network yet: run udc-finetune there first."
            )


def _runs(options: Options, model_stored_in: str | None = None) -> dict[str, Run]:
    """The run, or the runs of several budgets by their names."""
    runs = front_runs(options) if len(options.budgets()) > 1 else {"": resolve(options)}
    return {n: dataclasses.replace(r, model_stored_in=model_stored_in) for n, r in runs.items()}


def _step(step: str, run: Run, work: WorkDir, line: str, say: Say, workers: Workers) -> None:
    if workers.is_chief:
        work.begin(step, run.sections(), run.options.given(), line)
    workers.wait()
    _STEP[step](run, work, say, workers)


def _run_front(
    runs: Mapping[str, Run],
    top: WorkDir,
    steps: Sequence[str],
    options: Options,
    line: str,
    say: Say,
    workers: Workers,
) -> int:
    """Each budget in a folder of its own, which is a work directory like any other."""
    from udc_tf.cli.front_run import front_sections

    parts = {name: WorkDir(top.path / name) for name in runs}
    if workers.is_chief:
        for step in steps:
            top.begin(step, front_sections(runs), options.given(), line)
        for part in parts.values():
            part.path.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        for part in parts.values() if workers.is_chief else ():
            stack.enter_context(part.locked())
            stack.enter_context(part.unless_refused())
            part.remove_partials()
        _run_parts(runs, top, parts, steps, line, say, workers)
        if workers.is_chief:
            for part in parts.values():
                _report(part, say)
            _report_front(top, tuple(runs), say)
    return 0


def _run_parts(
    runs: Mapping[str, Run],
    top: WorkDir,
    parts: Mapping[str, WorkDir],
    steps: Sequence[str],
    line: str,
    say: Say,
    workers: Workers,
) -> None:
    from udc_tf.cli.compress_step import run_compress
    from udc_tf.cli.front_run import search_front

    workers.wait()
    for step in steps:
        for name, run in runs.items():
            if step == "search":
                if workers.is_chief:
                    parts[name].begin(step, run.sections(), run.options.given(), line)
            else:
                say(f"{name}:")
                _step(step, run, parts[name], line, say, workers)
        if step == "search" and next(iter(runs.values())).compresses:
            run_compress(runs, top, parts, say)
        elif step == "search":
            search_front(runs, top, parts, say, workers)


def _search(run: Run, work: WorkDir, say: Say, workers: Workers) -> None:
    from udc_tf.cli.compress_step import run_compress
    from udc_tf.cli.training_steps import run_search

    if run.compresses:
        run_compress({"": run}, work, {"": work}, say)
        return
    say(run_search(run, work, say, workers).table())


def _finetune(run: Run, work: WorkDir, say: Say, workers: Workers) -> None:
    from udc_tf.cli.tasks import task_of
    from udc_tf.cli.training_steps import run_finetune

    run_finetune(run, work, say, workers)
    if not workers.is_chief:
        return
    task, results = task_of(run.recipe.task), work.read_results()
    said = (f"{p} {task.describe(results[f'{p}_score'])}" for p in ("validation", "test"))
    say(f"finetune: {task.label} of the quantized network: {', '.join(said)}")
    for name, row in results.get("sets", {}).items():
        say(f"finetune: {name}, {row['psnr']:.2f} dB on Y, bicubic {row['bicubic']:.2f}")


def _export(run: Run, work: WorkDir, say: Say, workers: Workers) -> None:
    from udc_tf.cli.exporting import run_export

    if workers.is_chief:
        run_export(run, work, say)


_STEP = {"search": _search, "finetune": _finetune, "export": _export}


def _report(work: WorkDir, say: Say) -> None:
    try:
        from udc_tf.report.page import write_report
    except ImportError as error:
        say(f"report: left out, {error.name} is missing (pip install matplotlib)")
        return
    say(f"report: {write_report(work.path)}")


def _report_front(top: WorkDir, names: tuple[str, ...], say: Say) -> None:
    try:
        from udc_tf.report.front_page import write_front
    except ImportError:
        return  # said before
    say(f"report: {write_front(top.path, names)}")


def _say_nothing(text: str) -> None:
    """For workers that are not the chief."""


def _fail(command: str, message: str, code: int) -> int:
    line = " ".join(part.strip() for part in message.splitlines() if part.strip())
    print(f"{command}: {line}", file=sys.stderr)
    return code
