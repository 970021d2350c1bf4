"""`udc-check`: what an NPU makes of a network, layer by layer, before anything is trained."""

import dataclasses

from absl import flags

import udc_tf
from udc_tf.cli.dry_run import data_or_stand_in
from udc_tf.cli.options import Options, Run, resolve
from udc_tf.cli.usage import Say, UsageError


def run_check(options: Options, values: flags.FlagValues, say: Say) -> int:
    """Prints the check; the exit code is 1 if the network is refused."""
    # Whatever the budget is, or the budgets are.
    run = resolve(dataclasses.replace(options, flash=None), needs_budget=False)
    model = run.build_model(*_shape_and_classes(run, values))
    found = udc_tf.check(model, run.accelerator, space=run.recipe.space, allow_cpu=run.allow_cpu)
    say(str(found))
    return 0 if found.ok else 1


def _shape_and_classes(run: Run, values: flags.FlagValues) -> tuple[tuple[int, ...] | None, int]:
    """What the network is built for; a saved one has all that in itself."""
    given, classes = values["input_shape"].value, values["classes"].value
    if given is not None:
        sizes = given.split(",")
        if not all(size.isdigit() and int(size) for size in sizes):
            raise UsageError(f"--input_shape is such as 32,32,3. Received: {given!r}")
        return tuple(map(int, sizes)), classes or run.recipe.classes
    if run.data is None:
        if (run.options.model or "").endswith(".keras"):
            return None, 0
        raise UsageError(
            "For which inputs? Give --input_shape=32,32,3 and --classes=10, or --data. Received: "
            f"--model={run.options.model} alone"
        )
    data = data_or_stand_in(run, lambda text: None)
    return data.input_shape, classes or data.classes
