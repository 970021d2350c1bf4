"""Fits the size model to what Vela really writes for a network and a search space.

A handful of configurations, drawn near the budget, are built, converted and compiled. What the
weight streams take says how efficient the coding is; what is left of the files then says what
operators, channels and the container take. Both are fitted by least squares and held near the
defaults where the sample says little.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import keras
import numpy as np

from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.device_targets import OnDevice, Sram
from udc_tf.cost.flash import SizeModel
from udc_tf.cost.targets import Flash, Target, target_from_dict
from udc_tf.export import vela
from udc_tf.export.device_check import undisturbed_randomness
from udc_tf.export.device_fit import fit_device
from udc_tf.export.measuring import measure_one
from udc_tf.export.size_coefficients import Measurement, fit
from udc_tf.export.trials import choose_within, predicted
from udc_tf.files import DamagedFileError, read_json, replaced_atomically
from udc_tf.search.make import searchable, searchable_to_fit
from udc_tf.search.model import SearchModel
from udc_tf.search.repair import Budget, extreme, repair
from udc_tf.search.space import SearchSpace

DEFAULT_CONFIGURATIONS = 16
_FORMAT = 8  # another formula for what is fitted is another format
_Targets = TypeVar("_Targets")  # a target, a list or a tuple of targets


@dataclasses.dataclass(frozen=True)
class SizeFit:
    """A fitted size model and what it was fitted to."""

    device_model: DeviceModel
    accelerator: str
    measurements: tuple[Measurement, ...]
    key: str = ""

    @property
    def size_model(self) -> SizeModel:
        return self.device_model.size

    def errors(self, measurements: Sequence[Measurement] | None = None) -> np.ndarray:
        """Relative errors, predicted over compiled minus 1."""
        rows = self.measurements if measurements is None else measurements
        return np.array([m.predicted(self.size_model) / m.flash_bytes - 1 for m in rows])

    def save(self, path: str | os.PathLike) -> None:
        content = {
            "format": _FORMAT,
            "accelerator": self.accelerator,
            "key": self.key,
            "device_model": self.device_model.to_dict(),
            "measurements": [dataclasses.asdict(m) for m in self.measurements],
        }
        with replaced_atomically(pathlib.Path(path)) as partial:
            partial.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> "SizeFit | None":
        """What `save` wrote; None if that was another version's.

        Raises:
            DamagedFileError: nothing that `save` wrote.
        """
        path = pathlib.Path(path)
        remedy = "remove it, and some networks are compiled anew to measure their sizes"
        content = read_json(path, remedy)
        if content.get("format") != _FORMAT:
            return None
        try:
            rows = tuple(
                Measurement(**{**row, "options": tuple(row["options"])})
                for row in content["measurements"]
            )
            model = DeviceModel.from_dict(content["device_model"])
            return cls(model, content["accelerator"], rows, content["key"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedFileError(path, error, remedy) from error


def fit_size_model(
    model: keras.Model,
    space: SearchSpace | str,
    target: _Targets,
    *,
    path: str | os.PathLike | None = None,
    configurations: int = DEFAULT_CONFIGURATIONS,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    allow_cpu: bool = False,
) -> _Targets:
    """`target` with coefficients that fit this network and space.

    What was measured is remembered for the network, the space and the targets: the same call again
    compiles nothing.

    Args:
        model, space, target: as for `udc_tf.make_searchable`; of several targets each is fitted.
        path: where the fit is kept; read from there if it is there already and for the same.
        configurations: how many to compile; each takes a few seconds.
        seed: of the sample.
        progress: is called with how many are done, of how many.
        allow_cpu: whether operators may be left to the CPU.

    Returns:
        The target, or as many targets as were given.

    Example:

    ```python
    target = udc_tf.Flash("32KiB")
    target = udc_tf.export.fit_size_model(model, "ethos_u55", target, path="size.json")
    search = udc_tf.make_searchable(model, "ethos_u55", target)
    ```
    """
    targets: list[Any] = list(target) if isinstance(target, (list, tuple)) else [target]
    key = _key(model, space, targets, configurations, seed)
    kept = _FITS.get(key)
    if path is not None and pathlib.Path(path).is_file():
        loaded = SizeFit.load(path)
        kept = loaded if loaded is not None and loaded.key == key else kept
    if kept is None:
        system = vela.System.of(targets)
        search = searchable_to_fit(model, space, targets)
        rows = measure_search(search, system, configurations, seed, progress, allow_cpu)
        device = fit_device(rows, search.problem.plan, system, fit(rows))
        device = _as_it_sets_out(model, space, targets, device, allow_cpu)
        kept = SizeFit(device, system.accelerator, tuple(rows), key)
        _FITS[key] = kept
    if path is not None:
        kept.save(path)
    fitted: Any = [_with_model(t, kept.device_model) for t in targets]
    return type(target)(fitted) if isinstance(target, (list, tuple)) else fitted[0]


calibrate = fit_size_model  # deprecated: the name until 0.1.0
_FITS: dict[str, SizeFit] = {}  # of this process


@undisturbed_randomness()
def _as_it_sets_out(
    model: keras.Model,
    space: SearchSpace | str,
    targets: Sequence[Target],
    device: DeviceModel,
    allow_cpu: bool,
) -> DeviceModel:
    """What was fitted, with memory as Vela plans it for what a search's first guess would end with.

    That may be a network for which Vela has to save what it buffers, and whether it buffers or not
    can be a factor of two. A search that took a network for too large which then is built would
    hardly train its weights.
    """
    fitted = [_with_model(target, device) for target in targets]
    if not any(isinstance(target, Sram) for target in fitted):
        return device
    try:
        search = searchable(model, space, fitted, allow_cpu=allow_cpu)
        search.set_out()
        trial = choose_within(search)
    except ValueError:
        return device  # nothing holds by what is known now: the search itself says what is needed
    for target, bound, need in zip(fitted, search.problem.bound, trial.needs, strict=True):
        if isinstance(target, Sram) and need is not None:
            return dataclasses.replace(
                device, sram=device.sram * need / predicted(bound, trial.chosen)
            )
    return device


def _with_model(target: Target, device: DeviceModel) -> Target:
    if isinstance(target, Flash):
        return dataclasses.replace(target, size_model=device.size)
    if isinstance(target, OnDevice):
        return target_from_dict({**target.to_dict(), "device_model": device})
    return target


def _key(
    model: keras.Model,
    space: SearchSpace | str,
    targets: Sequence[Target],
    configurations: int,
    seed: int,
) -> str:
    """What a fit is for: the network without its weights, the space, the budgets, the sample."""
    space = SearchSpace.preset(space) if isinstance(space, str) else space
    plain = [_with_model(t, DeviceModel()).to_dict() for t in targets]
    layers = [keras.saving.serialize_keras_object(layer) for layer in model.layers]
    for layer in layers:
        layer.pop("build_config", None)
    content = [layers, space.to_dict(), plain, configurations, seed, _FORMAT]
    text = json.dumps(content, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def measure(
    model: keras.Model,
    space: SearchSpace | str,
    target: Target | Sequence[Target],
    configurations: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    allow_cpu: bool = False,
) -> list[Measurement]:
    """Compiles random configurations whose predicted cost is near the targets' budgets."""
    search = searchable(model, space, target)
    system = vela.System.of(search.problem.targets)
    return measure_search(search, system, configurations, seed, progress, allow_cpu)


def measure_search(
    search: SearchModel,
    system: vela.System,
    configurations: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
    allow_cpu: bool = False,
) -> list[Measurement]:
    """The same for a network that has been made searchable."""
    rng = np.random.default_rng(seed)
    rows = []
    for number, chosen in enumerate(configurations_near(search, configurations, rng)):
        rows.append(measure_one(search, chosen, system, rng, allow_cpu))
        if progress is not None:
            progress(number + 1, configurations)
    return rows


def configurations_near(
    search: SearchModel, count: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Random preferences, moved inside the budgets: what a search could have ended with."""
    plan = search.problem.plan
    budget = Budget(search.problem.bound)
    smallest = min((extreme(t, plan, True) for t in budget.targets), key=budget.ratio)
    valid = search.state.valid.numpy()
    for _ in range(count):
        wish = np.where(valid, 3.0 * rng.normal(size=valid.shape), -np.inf)
        yield repair(wish, valid, budget, smallest)
