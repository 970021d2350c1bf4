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
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import keras
import numpy as np

from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.device_targets import OnDevice
from udc_tf.cost.flash import FlashCost, SizeModel
from udc_tf.cost.targets import Flash, Target, target_from_dict
from udc_tf.export import size_truth, vela
from udc_tf.export.device_fit import fit_device, step_cycles
from udc_tf.export.int8 import Int8Model, to_int8
from udc_tf.export.size_coefficients import Measurement, features_of, fit
from udc_tf.files import DamagedFileError, read_json, replaced_atomically
from udc_tf.layers.inventory import activation_quantizers
from udc_tf.search.extract import architecture_of
from udc_tf.search.make import searchable, searchable_to_fit
from udc_tf.search.model import SearchModel
from udc_tf.search.repair import Budget, extreme, repair
from udc_tf.search.space import SearchSpace

DEFAULT_CONFIGURATIONS = 16
_LARGEST = 4.0  # value of a tensor
_FORMAT = 6  # another formula for what is fitted is another format
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
        kept = SizeFit(device, system.accelerator, tuple(rows), key)
        _FITS[key] = kept
    if path is not None:
        kept.save(path)
    fitted: Any = [_with_model(t, kept.device_model) for t in targets]
    return type(target)(fitted) if isinstance(target, (list, tuple)) else fitted[0]


calibrate = fit_size_model  # deprecated: the name until 0.1.0
_FITS: dict[str, SizeFit] = {}  # of this process


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


def measure_one(
    search: SearchModel,
    chosen: np.ndarray,
    system: vela.System,
    rng: np.random.Generator,
    allow_cpu: bool = False,
    any_ranges: bool = False,
) -> Measurement:
    """Compiles one configuration, with weights such as training leaves them.

    Args:
        any_ranges: of activations, too: the most that commands and tables may come to.
    """
    exact = trial_network(search, chosen, rng, any_ranges)
    return compiled_measurement(search, chosen, exact, system, allow_cpu)


def trial_network(
    search: SearchModel, chosen: np.ndarray, rng: np.random.Generator, any_ranges: bool = False
) -> Int8Model:
    """The int8 network of a configuration, with weights such as training leaves them."""
    compact = architecture_of(search, chosen).build()
    make_bell_shaped(compact, rng)
    if any_ranges:
        make_ranges_differ(compact, rng)
    inputs = keras.tree.flatten(compact.input)
    # Ranges hardly matter to the size: a sample of noise gives some.
    noise = [rng.normal(size=(1, *x.shape[1:])).astype(np.float32) for x in inputs]
    return to_int8(compact, noise)


def compiled_measurement(
    search: SearchModel,
    chosen: np.ndarray,
    exact: Int8Model,
    system: vela.System,
    allow_cpu: bool = False,
) -> Measurement:
    """What Vela makes of a configuration's network."""
    flash = next((t for t in search.problem.targets if isinstance(t, Flash)), None)
    model = flash.size_model if flash else SizeModel()
    bound = FlashCost(system.accelerator, model).bind(search.problem.plan)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        path.write_bytes(exact.content)
        settings = dataclasses.asdict(system)
        compiled = vela.compile_with_vela(path, folder, **settings, allow_cpu_operators=allow_cpu)
    streams = size_truth.layer_sizes(exact.network, compiled)
    features, constant = features_of(bound, chosen)
    return Measurement(
        options=tuple(map(int, chosen)),
        features=features,
        constant=constant,
        weight_bytes=sum(s.vela_bytes or 0 for s in streams),
        flash_bytes=compiled.flash_bytes,
        sram_bytes=compiled.sram_bytes,
        cycles=compiled.cycles,
        step_cycles=step_cycles(exact.network, compiled),
        encoded_bytes=compiled.encoded_weight_bytes,
    )


def make_bell_shaped(compact: keras.Model, rng: np.random.Generator) -> None:
    """Gives layers weights as training leaves them: kernels a bell, pruned, with fitted ranges.

    An initializer's uniform weights would not do: at 8 bits they take a tenth more.
    """
    for layer in compact.layers:
        if hasattr(layer, "integer_kernel"):
            layer.theta.assign(rng.normal(scale=0.05, size=layer.theta.shape))
            layer.initialize_range()
            layer.refresh_mask(shifted=layer.nonzeros < 1)
            layer.fit_range()
        elif isinstance(layer, keras.layers.PReLU):  # slopes that are all alike would take nothing
            layer.alpha.assign(rng.uniform(0.0, 0.5, size=layer.alpha.shape))


def make_ranges_differ(compact: keras.Model, rng: np.random.Generator) -> None:
    """Gives activations ranges that are all different, as training may leave them.

    Vela stores but once what is alike, and does not repeat what a command finds as it was.
    """
    for quantizer in activation_quantizers(compact):
        if quantizer.fixed_range is None:
            low, high = rng.uniform(_LARGEST / 2, _LARGEST, 2)
            quantizer.set_range(-low, high)
