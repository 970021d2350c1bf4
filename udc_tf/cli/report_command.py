"""`udc-report`: the report of a work directory anew, or several of them on one page."""

import sys
from collections.abc import Sequence

from absl import flags

from udc_tf.cli.usage import Say, UsageError
from udc_tf.files import first_line
from udc_tf.training.workers import leave
from udc_tf.version import __version__

_ABOUT = """udc-report: writes the report of a work directory anew, or compares several.

  udc-report runs/first
  udc-report runs/* --output=runs/report.html

  --output   Where the page of several goes. Default: report.html in the current folder.
  --version  Show the version."""


def entry_point() -> None:
    leave(main(sys.argv))


def main(argv: Sequence[str], say: Say = print) -> int:
    """Runs the command; mistakes end in one line on standard error."""
    values = flags.FlagValues()
    flags.DEFINE_string("output", None, "Where the page of several goes.", flag_values=values)
    flags.DEFINE_bool("help", False, "Show this.", short_name="h", flag_values=values)
    flags.DEFINE_bool("version", False, "Show the version.", flag_values=values)
    try:
        folders = values(["udc-report", *argv[1:]])[1:]
        if values["help"].value:
            say(_ABOUT)
        elif values["version"].value:
            say(f"udc-report {__version__}")
        else:
            say(f"report: {_write(folders, values['output'].value)}")
    except (flags.Error, UsageError) as error:
        print(f"udc-report: {first_line(error)}", file=sys.stderr)
        return 2
    except (ValueError, OSError) as error:
        print(f"udc-report: {first_line(error)}", file=sys.stderr)
        return 1
    return 0


def _write(folders: Sequence[str], output: str | None) -> str:
    if not folders:
        raise UsageError("Work directories are needed, such as udc-report runs/*. Received: none")
    try:
        from udc_tf.report.comparison_page import write_comparison
        from udc_tf.report.page import write_report
    except ImportError as error:
        raise UsageError(f"{error.name} is missing: pip install 'udc-tf[report]'") from error
    if len(folders) > 1:
        return str(write_comparison(folders, output or "report.html"))
    if output is not None:
        raise UsageError("--output is for several work directories: one has its own report.html.")
    return str(write_report(folders[0]))
