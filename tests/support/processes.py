"""Python in processes of its own, which import this repository."""

import os
import subprocess
import sys

from tests.support.paths import ROOT


def environment(**changes: str) -> dict[str, str]:
    """This process' variables, for one that imports the repository and says little."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **changes}


def run_python(*arguments, check: bool = True, timeout: float = 300) -> subprocess.CompletedProcess:
    """Runs Python with these arguments; what it wrote comes with the result.

    Args:
        arguments: as on a command line, `"-c", script` or a path first.
        check: whether the test fails if the process does.
        timeout: seconds.
    """
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=timeout
    )
    assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done
