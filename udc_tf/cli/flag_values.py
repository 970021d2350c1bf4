"""What single flags say: numbers, lists, sizes and names, each checked."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from udc_tf.cli.usage import UsageError
from udc_tf.cost.byte_sizes import parse_bytes
from udc_tf.export.runners import RUNNERS
from udc_tf.finetune.stages import Stages
from udc_tf.models.data.augmentation import Turning
from udc_tf.models.recipes import Recipe
from udc_tf.search.space import SearchSpace
from udc_tf.training.image_augmentation import Augmentation

# Flags with one number: what holds for it, and how that is said.
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "channels": (lambda n: n in (1, 3), "1 or 3"),
    "clip_seconds": (lambda n: 0.03 <= n <= 60, "from 0.03 to 60"),
    "window": (lambda n: n >= 1, "at least 1"),
    "examples": (lambda n: n >= 1, "at least 1"),
    "macs": (lambda n: 0 < n < 1e18, "a positive number below 1e18"),
    "cycles": (lambda n: 0 < n < 1e18, "a positive number below 1e18"),
    "search_epochs": (lambda n: n >= 1, "at least 1"),
    "warmup": (lambda n: 0 <= n < 1, "at least 0 and below 1"),
    "samples": (lambda n: n >= 1, "at least 1"),
    "samples_per_pass": (lambda n: n >= 1, "at least 1"),
    "certainty": (lambda n: 0 <= n < math.inf, "a number, at least 0"),
    "size_compiles": (lambda n: n >= 0, "at least 0"),
    "batch_size": (lambda n: n >= 1, "at least 1"),
    "search_batch_size": (lambda n: n >= 1, "at least 1"),
    "learning_rate": (lambda n: 0 < n < math.inf, "a positive number"),
    "decision_learning_rate": (lambda n: 0 < n < math.inf, "a positive number"),
    "teacher_epochs": (lambda n: n >= 1, "at least 1"),
    "verify_examples": (lambda n: n >= 1, "at least 1"),
    "seed": (lambda n: 0 <= n < 2**32, "from 0 to 2**32 - 1"),
}


def check_ranges(given: Mapping[str, Any]) -> None:
    """Raises for a number that makes no sense; `given` are the flags by name."""
    for name, (valid, wanted) in _RANGES.items():
        value = given.get(name)
        if value is not None and not (isinstance(value, (int, float)) and valid(value)):
            raise UsageError(f"--{name} must be {wanted}. Received: {value}")


def checked_flash(flash: str, given: str | None = None) -> str:
    """A budget that can be read; `given` is the flag, if it lists several."""
    try:
        parse_bytes(flash)
    except ValueError:
        several = "" if given is None else "; a comma lies between two of them"
        raise UsageError(
            "--flash is a number of at least one byte with a unit (B, kB, KiB, MB, MiB), such as "
            f"--flash=24KiB{several}. Received: {given or flash!r}"
        ) from None
    return flash


def space(given: Mapping[str, Any], recipe: Recipe) -> SearchSpace:
    """The recipe's options, but for those that were given."""
    changes: dict[str, Any] = {}
    for kind, number in (
        ("widths", float),
        ("bits", int),
        ("sparsities", float),
        ("kernels", int),
    ):
        if (text := given.get(kind)) is not None:
            changes[kind] = None if text.lower() == "none" else _numbers(kind, text, number)
    return dataclasses.replace(recipe.space, **changes)


def stages(given: Mapping[str, Any], recipe: Recipe) -> Stages:
    """The recipe's stages, with as many epochs as were given."""
    text = given.get("finetune_epochs")
    if text is None:
        return recipe.stages
    epochs = _numbers("finetune_epochs", text, int)
    if len(epochs) not in (1, 3):
        raise UsageError(
            "--finetune_epochs is one number, or one for each of the three stages, such as 6,10,4. "
            f"Received: {text!r}"
        )
    return dataclasses.replace(recipe.stages, epochs=epochs[0] if len(epochs) == 1 else epochs)


def one_of(flag: str, given: str, known: Sequence[str]) -> str:
    """The name that was given, if it is known."""
    if given not in known:
        raise UsageError(f"--{flag} is one of {', '.join(known)}. Received: {given!r}")
    return given


def augmentation(text: str, task: str) -> Augmentation | Turning | None:
    """What becomes of the training images; `none` leaves them as they are.

    >>> augmentation("flip,crop=2", "classification")
    Augmentation(flip=True, crop=2, cutout=0, seed=0)
    """
    if text.lower() == "none":
        return None
    if task == "super_resolution":
        if text == "turn":
            return Turning()
        raise UsageError(f"--augmentation of super resolution is turn or none. Received: {text!r}")
    parts: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if name == "flip" and not equals:
            parts[name] = True
        elif name in ("crop", "cutout") and number.isdigit() and int(number):
            parts[name] = int(number)
        else:
            raise UsageError(
                "--augmentation lists what is done to images: flip, crop=PIXELS, cutout=PIXELS, as "
                f"in flip,crop=4,cutout=18; or it is none. Received: {text!r}"
            )
    return Augmentation(**{"flip": False, "crop": 0, **parts})


def _numbers(flag: str, text: str, number: Callable[[str], Any]) -> tuple:
    try:
        return tuple(number(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--{flag} is a list of numbers with commas and without spaces. Received: {text!r}"
        ) from None


def image_size(text: str | None) -> tuple[int, int] | None:
    """
    >>> image_size("96"), image_size("96x128")
    ((96, 96), (96, 128))
    """
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) not in (1, 2) or not all(s.isdigit() and int(s) for s in sides):
        raise UsageError(f"--image_size is such as 96 or 96x128. Received: {text!r}")
    return (int(sides[0]), int(sides[-1]))


def runners(text: str | None) -> tuple[str, ...]:
    """Names of runners; two of them unless told otherwise."""
    names = tuple((text or "tflm,npu").split(","))
    if names == ("none",):
        return ()
    for name in names:
        if name not in RUNNERS:
            raise UsageError(f"--runners are of {', '.join(RUNNERS)}. Received: {name!r}")
    return names
