"""`make demo`: the whole pipeline on embedded data, in a few minutes and without a network.

python -m udc_tf.cli.demo [--workdir=FOLDER] [flags of udc]
"""

import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from udc_tf.cli.commands import main as run_command
from udc_tf.cli.workdir import WorkDir

_WORKDIR = "runs/demo"


def main(arguments: list[str]) -> int:
    """Runs `udc --recipe=digits` and sums it up."""
    folder = next((a.split("=", 1)[1] for a in arguments if a.startswith("--workdir=")), None)
    given = arguments if folder is not None else [f"--workdir={_WORKDIR}", *arguments]
    started = time.monotonic()
    code = run_command("udc", ["udc", "--recipe=digits", *given])
    if code == 0:
        print(summary(WorkDir.open(folder or _WORKDIR), time.monotonic() - started))
    return code


def summary(work: WorkDir, seconds: float) -> str:
    """What came out, in a few lines."""
    results = work.read_results()
    flash, budget = results["flash_bytes"], results["flash_budget"]
    runs = {row["runner"]: row for row in results["verification"]}
    npu = runs.get("npu", {}).get("differs_from_tflm")
    verdict = "equal to TFLM bit for bit" if npu == 0 else "NOT equal to TFLM"
    lines = [
        "",
        f"  {results['test_score']:.1%} of {results['examples']['test']} test digits right, "
        "with 8-bit activations and the weights that go into flash",
        f"  {flash:,} of {budget:,} bytes of flash used ({flash / budget:.1%}), "
        f"{results['sram_bytes']:,} bytes of SRAM",
        f"  the compiled command stream, executed: {verdict}",
        f"  {seconds:.0f} seconds",
        f"  artefacts for firmware: {work.artefacts}",
        f"  report: {work.report.resolve()}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
