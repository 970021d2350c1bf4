"""Fits the size model to what Vela really writes for a network and a search space.

A handful of configurations, drawn near the budget, are built, converted and compiled. What the
weight streams take says how efficient the coding is; what is left of the files then says what
operators, channels and the container take. Both are fitted by least squares and held near the
defaults where the sample says little.
"""

import dataclasses
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Sequence

import keras
import numpy as np

from udc_tf.cost.flash import BoundFlash, SizeModel, bytes_per_channel, operations
from udc_tf.cost.targets import Flash
from udc_tf.export import size_truth, vela
from udc_tf.export.int8 import to_int8
from udc_tf.files import DamagedFileError, read_json, replaced_atomically
from udc_tf.search.extract import architecture_of
from udc_tf.search.make import make_searchable
from udc_tf.search.model import SearchModel
from udc_tf.search.repair import Budget, extreme, repair
from udc_tf.search.space import SearchSpace

DEFAULT_CONFIGURATIONS = 16
_FORMAT = 3
# How far coefficients may reasonably be from their defaults: absolute, or of the default.
_OVERHEAD_SPREAD = {"fixed": 1500.0, "per_operator": 150.0, "per_channel": 2.0}
_CODING_SPREAD = 0.08
_NOISE = 0.01  # of a file's size


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One configuration: what it counts and what its compiled file takes.

    Attributes:
        options: the number of the option of each decision.
        features: amount of each coefficient of the size model; `bit_cost/4` is one of a table.
        constant: bytes that no coefficient touches.
        weight_bytes: the encoded weights of the layers that are priced.
        flash_bytes: the file.
    """

    options: tuple[int, ...]
    features: dict[str, float]
    constant: float
    weight_bytes: int
    flash_bytes: int

    def predicted(self, model: SizeModel) -> float:
        """What a size model says about it."""
        return self.constant + sum(
            amount * _coefficient(model, name) for name, amount in self.features.items()
        )


@dataclasses.dataclass(frozen=True)
class SizeFit:
    """A fitted size model and what it was fitted to."""

    size_model: SizeModel
    accelerator: str
    measurements: tuple[Measurement, ...]

    def errors(self, measurements: Sequence[Measurement] | None = None) -> np.ndarray:
        """Relative errors, predicted over compiled minus 1."""
        rows = self.measurements if measurements is None else measurements
        return np.array([m.predicted(self.size_model) / m.flash_bytes - 1 for m in rows])

    def save(self, path: str | os.PathLike) -> None:
        content = {
            "format": _FORMAT,
            "accelerator": self.accelerator,
            "size_model": self.size_model.to_dict(),
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
            model = SizeModel.from_dict(content["size_model"])
            return cls(model, content["accelerator"], rows)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedFileError(path, error, remedy) from error


def fit_size_model(
    model: keras.Model,
    space: SearchSpace | str,
    target: Flash,
    *,
    path: str | os.PathLike | None = None,
    configurations: int = DEFAULT_CONFIGURATIONS,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    allow_cpu: bool = False,
) -> Flash:
    """`target` with a size model that fits this network and space.

    Args:
        model, space, target: as for `udc_tf.make_searchable`.
        path: where the fit is kept; read from there if it is there already.
        configurations: how many to compile; each takes a few seconds.
        seed: of the sample.
        progress: is called with how many are done, of how many.
        allow_cpu: whether operators may be left to the CPU.

    Example:

    ```python
    flash = udc_tf.Flash("32KiB")
    target = udc_tf.export.fit_size_model(model, "ethos_u55", flash, path="size.json")
    search = udc_tf.make_searchable(model, "ethos_u55", target)
    ```
    """
    if path is not None and pathlib.Path(path).is_file():
        kept = SizeFit.load(path)
        if kept is not None and kept.accelerator == target.accelerator:
            return dataclasses.replace(target, size_model=kept.size_model)
    rows = measure(model, space, target, configurations, seed, progress, allow_cpu)
    fitted = SizeFit(fit(rows), target.accelerator, tuple(rows))
    if path is not None:
        fitted.save(path)
    return dataclasses.replace(target, size_model=fitted.size_model)


calibrate = fit_size_model  # deprecated: the name until 0.1.0


def measure(
    model: keras.Model,
    space: SearchSpace | str,
    target: Flash,
    configurations: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    allow_cpu: bool = False,
) -> list[Measurement]:
    """Compiles random configurations whose predicted size is near the target's budget."""
    search = make_searchable(model, space, target)
    bound = search.problem.bound[0]
    flash = target.cost.bind(search.problem.plan)
    budget = Budget((bound,))
    smallest = extreme(bound, search.problem.plan, True)
    valid = search.state.valid.numpy()
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(configurations):
        # Random preferences, moved inside the budget: what a search could have ended with.
        wish = np.where(valid, 3.0 * rng.normal(size=valid.shape), -np.inf)
        chosen = repair(wish, valid, budget, smallest)
        rows.append(_measure(search, flash, chosen, target.accelerator, rng, allow_cpu))
        if progress is not None:
            progress(number + 1, configurations)
    return rows


def _measure(
    search: SearchModel,
    bound: BoundFlash,
    chosen: np.ndarray,
    accelerator: str,
    rng: np.random.Generator,
    allow_cpu: bool = False,
) -> Measurement:
    compact = architecture_of(search, chosen).build()
    make_bell_shaped(compact, rng)
    inputs = keras.tree.flatten(compact.input)
    # Ranges do not matter to the size: a sample of noise gives some.
    noise = [rng.normal(size=(1, *x.shape[1:])).astype(np.float32) for x in inputs]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        exact = to_int8(compact, noise)
        path.write_bytes(exact.content)
        compiled = vela.compile_with_vela(path, folder, accelerator, allow_cpu_operators=allow_cpu)
    streams = size_truth.layer_sizes(exact.network, compiled)
    features, constant = _features(bound, chosen)
    return Measurement(
        options=tuple(map(int, chosen)),
        features=features,
        constant=constant,
        weight_bytes=sum(s.vela_bytes or 0 for s in streams),
        flash_bytes=compiled.flash_bytes,
    )


def make_bell_shaped(compact: keras.Model, rng: np.random.Generator) -> None:
    """Gives layers weights as training leaves them: a bell, pruned, with fitted ranges.

    An initializer's uniform weights would not do: at 8 bits they take a tenth more.
    """
    for layer in compact.layers:
        if hasattr(layer, "integer_kernel"):
            layer.theta.assign(rng.normal(scale=0.05, size=layer.theta.shape))
            layer.initialize_range()
            layer.refresh_mask(shifted=layer.nonzeros < 1)
            layer.fit_range()


def _features(bound: BoundFlash, chosen: np.ndarray) -> tuple[dict[str, float], float]:
    """How much of each coefficient a configuration has, and what it has besides."""
    plan, maps = bound.maps.plan, bound.maps
    counts = maps.counts(maps.one_hot(np.asarray(chosen)))
    present, parts = counts.present, counts.part_present
    operators = np.array([operations(p.price) for p in plan.fixed])
    features = {
        "fixed": 1.0,
        "per_operator": float(present.sum() + (parts * operators).sum()),
        "per_channel": float((present * counts.outputs).sum()),
    }
    for table, amount in bound.amounts(counts).items():
        stored = present * amount / 8
        if table == "mask_cost":
            features[table] = float(stored.sum())
            continue
        for i in np.flatnonzero(stored):
            name = f"{table}/{int(counts.bits[i])}"
            features[name] = features.get(name, 0.0) + float(stored[i])
    constant = sum(
        float(n) * (p.constants + bytes_per_channel(p.price) * float(c))
        for n, c, p in zip(parts, counts.part_channels, plan.fixed, strict=True)
    )
    return features, constant


def fit(rows: list[Measurement]) -> SizeModel:
    """The coefficients that fit best, by least squares on relative errors."""
    default = SizeModel()
    sizes = np.array([row.flash_bytes for row in rows], float)
    names = sorted({name for row in rows for name in row.features} - set(_OVERHEAD_SPREAD))
    coding = _amounts(rows, names)
    prior = np.array([_coefficient(default, n) for n in names])
    streams = np.array([row.weight_bytes for row in rows], float)
    solved = _least_squares(coding, streams, prior, _CODING_SPREAD * prior, sizes)
    found = dict(zip(names, solved, strict=True))
    # What coding leaves, its own errors included, so that these do not add to the overheads'.
    rest = sizes - coding @ solved - np.array([row.constant for row in rows])
    overheads = list(_OVERHEAD_SPREAD)
    prior = np.array([_coefficient(default, n) for n in overheads])
    spread = np.array(list(_OVERHEAD_SPREAD.values()))
    solved = _least_squares(_amounts(rows, overheads), rest, prior, spread, sizes)
    found |= dict(zip(overheads, solved, strict=True))
    values: dict = {}
    for name, value in found.items():
        field, _, bits = name.partition("/")
        if bits:
            values.setdefault(field, {})[int(bits)] = float(value)
        else:
            values[field] = float(value)
    return SizeModel(**values)


def _amounts(rows: list[Measurement], names: list[str]) -> np.ndarray:
    return np.array([[row.features.get(n, 0.0) for n in names] for row in rows])


def _least_squares(
    amounts: np.ndarray,
    wanted: np.ndarray,
    prior: np.ndarray,
    spread: np.ndarray,
    sizes: np.ndarray,
) -> np.ndarray:
    """Coefficients in units of their spread from the prior, rows in units of the noise."""
    noise = _NOISE * sizes
    design = amounts * spread / noise[:, None]
    target = (wanted - amounts @ prior) / noise
    system = design.T @ design + np.eye(len(prior))
    return prior + spread * np.linalg.solve(system, design.T @ target)


def _coefficient(model: SizeModel, name: str) -> float:
    field, _, bits = name.partition("/")
    return float(model.tables[field][int(bits)] if bits else getattr(model, field))
