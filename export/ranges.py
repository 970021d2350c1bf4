"""The 8-bit range of every tensor: from training where it gave one, else from data."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from udc_tf.export import reach, simulation
from udc_tf.export.errors import CalibrationError
from udc_tf.export.integer_network import IntegerNetwork, Quantization, Step, Value

DEFAULT_SAMPLES = 128
_BATCH = 32
_ONE_SCALE = ("CONCATENATION", "MAXIMUM", "MINIMUM")  # of all inputs and the output


def quantize_values(
    network: IntegerNetwork, samples: list[np.ndarray] | None
) -> tuple[IntegerNetwork, list[Quantization]]:
    """A quantization for each value of the network.

    Operators that cannot change the scale (pooling, reshaping, ...) give their output that of
    their input; all tensors of a concatenation, a maximum or a minimum get one, or a `QUANTIZE` in
    front where training gave them different ranges: hence the network that is returned.
    """
    network, groups = _with_joined_agreeing(network)
    observed = _observe(network, samples, groups)
    quantizations = []
    for index in range(len(network.values)):
        members = groups.members(index)
        trained = _trained(network, groups, index)
        if trained:
            quantizations.append(Quantization.of_range(*trained))
            continue
        low = min(observed[m][0] for m in members)
        high = max(observed[m][1] for m in members)
        limit = min(network.values[m].limit for m in members)
        quantizations.append(Quantization.of_range(max(low, -limit), min(high, limit)))
    return network, quantizations


def take_samples(
    calibration: Any, network: IntegerNetwork, structure: Any = None, limit: int = DEFAULT_SAMPLES
) -> list[np.ndarray]:
    """One array per input of the network, at most `limit` samples each.

    Args:
        calibration: an array, a list or dictionary of arrays (one per input), a `tf.data.Dataset`,
            a `keras.utils.PyDataset`, or any iterable over batches; a batch is inputs or
            `(inputs, targets, ...)`. Dictionaries go by the names of the inputs.
        structure: the inputs of the Keras model, `model.input`, if data may be nested like them.
    """
    shapes = network.input_shapes()
    names = [network.values[index].name for index in network.inputs]
    batches = _batches(calibration, _Inputs(names, structure))
    taken: list[list[np.ndarray]] = [[] for _ in shapes]
    count = 0
    for batch in batches:
        if len(batch) != len(shapes):
            raise CalibrationError(
                f"The network has {len(shapes)} inputs. Received: calibration data with "
                f"{len(batch)} of them"
            )
        for rows, array, shape in zip(taken, batch, shapes, strict=True):
            rows.append(_checked(array, shape)[: limit - count])
        count += len(taken[0][-1])
        if count >= limit:
            break
    if not count:
        raise CalibrationError("Calibration data must have at least one sample. Received: none")
    return [np.concatenate(rows) for rows in taken]


def _checked(array: Any, shape: tuple[int, ...]) -> np.ndarray:
    if np.iscomplexobj(array):
        raise CalibrationError("Calibration data must be real numbers. Received: complex ones")
    try:
        array = np.asarray(array, np.float32)
    except (TypeError, ValueError) as error:
        raise CalibrationError(
            f"Calibration data must be numbers. Received: {type(array).__name__} ({error})"
        ) from error
    if array.shape[1:] != tuple(shape):
        raise CalibrationError(
            f"Calibration data must have the shape (batch, {', '.join(map(str, shape))}). "
            f"Received: {array.shape}"
        )
    if not np.isfinite(array).all():
        bad = int(np.size(array) - np.isfinite(array).sum())
        raise CalibrationError(
            f"Calibration data must be finite numbers. Received: {bad} NaN or infinite values"
        )
    return array


@dataclasses.dataclass(frozen=True)
class _Inputs:
    """How inputs may come: by name, in a row, or nested as the model has them."""

    names: list[str]
    structure: Any

    def of(self, batch: Any) -> list[Any]:
        """One array per input, in the network's order, out of inputs or `(inputs, targets)`."""
        if self._is_nested_alike(batch):
            return keras.tree.flatten(batch)
        if isinstance(batch, Mapping):
            missing = [name for name in self.names if name not in batch]
            if missing:
                raise CalibrationError(
                    f"Calibration data by name must have the inputs {', '.join(self.names)}. "
                    f"Received: {', '.join(map(str, batch))}"
                )
            return [batch[name] for name in self.names]
        if not isinstance(batch, (tuple, list)):
            return [batch]
        if not batch or (len(self.names) > 1 and self._is_row(batch)):
            return list(batch)
        return self.of(batch[0])  # (inputs, targets)

    def is_one_batch(self, data: tuple | list) -> bool:
        """Whether these are inputs, or inputs and targets, rather than a list of batches."""
        if isinstance(data, tuple):
            return all(hasattr(a, "__array__") for a in keras.tree.flatten(data))
        return self._is_nested_alike(data) or all(hasattr(a, "__array__") for a in data)

    def _is_row(self, batch: Sequence[Any]) -> bool:
        return len(batch) == len(self.names) and all(hasattr(a, "__array__") for a in batch)

    def _is_nested_alike(self, batch: Any) -> bool:
        if not keras.tree.is_nested(self.structure):
            return False
        try:
            keras.tree.assert_same_structure(
                *map(keras.tree.lists_to_tuples, (self.structure, batch))
            )
        except (TypeError, ValueError):
            return False
        return True


def _batches(calibration: Any, inputs: _Inputs) -> Iterable[list[Any]]:
    """Batches as lists of one array per input."""
    if hasattr(calibration, "__array__") or isinstance(calibration, Mapping):
        return [inputs.of(calibration)]
    if isinstance(calibration, (tuple, list)) and inputs.is_one_batch(calibration):
        return [inputs.of(calibration)]
    if hasattr(calibration, "__getitem__") and hasattr(calibration, "__len__"):
        # A PyDataset's iterator may never end.
        return (inputs.of(calibration[i]) for i in range(len(calibration)))
    if not hasattr(calibration, "__iter__"):
        raise CalibrationError(
            "Calibration data must be an array, a list of arrays or batches to iterate over. "
            f"Received: {calibration!r}"
        )
    return map(inputs.of, calibration)


@dataclasses.dataclass
class _Groups:
    """Values that share one quantization."""

    parents: list[int]

    @classmethod
    def of(cls, values: list[Value]) -> "_Groups":
        groups = cls(list(range(len(values))))
        for index, value in enumerate(values):
            if value.follows is not None:
                groups.join(index, value.follows)
        first: dict[str, int] = {}
        for index, value in enumerate(values):
            if value.measured_with is not None and value.trained is None:
                groups.join(index, first.setdefault(value.measured_with, index))
        return groups

    def root(self, index: int) -> int:
        while self.parents[index] != index:
            index = self.parents[index]
        return index

    def join(self, a: int, b: int) -> None:
        self.parents[self.root(a)] = self.root(b)

    def members(self, index: int) -> list[int]:
        root = self.root(index)
        return [i for i in range(len(self.parents)) if self.root(i) == root]


def _with_joined_agreeing(network: IntegerNetwork) -> tuple[IntegerNetwork, _Groups]:
    values, steps = [dataclasses.replace(v) for v in network.values], []
    groups = _Groups.of(values)

    def range_of(index: int) -> tuple[float, float] | None:
        known = [values[m].trained for m in groups.members(index) if values[m].trained]
        return known[0] if known else None

    for step in network.steps:
        if step.kind not in _ONE_SCALE:
            steps.append(step)
            continue
        ranges = [range_of(i) for i in step.inputs]
        known = [r for r in ranges if r is not None]
        if not known and range_of(step.output) is None:
            for index in step.inputs:
                groups.join(index, step.output)
            steps.append(step)
            continue
        # Training's word stands: what has another range is requantized on its way in.
        widest = min(r[0] for r in known or [(0, 0)]), max(r[1] for r in known or [(0, 0)])
        target = range_of(step.output) or widest
        values[step.output].trained = target
        inputs = []
        for n, (index, own) in enumerate(zip(step.inputs, ranges, strict=True)):
            if own != target:
                name = f"{step.name}_input_{n}"
                values.append(Value(name, values[index].shape, trained=target))
                groups.parents.append(len(values) - 1)
                steps.append(Step("QUANTIZE", step.name, (index,), len(values) - 1))
                index = len(values) - 1
            inputs.append(index)
        steps.append(dataclasses.replace(step, inputs=tuple(inputs)))
    return dataclasses.replace(network, values=values, steps=steps), groups


def _trained(network: IntegerNetwork, groups: _Groups, index: int) -> tuple[float, float] | None:
    """The range that training gave a value, or one of those that share its quantization."""
    ranges = (network.values[member].trained for member in groups.members(index))
    return next((known for known in ranges if known), None)


def _observe(
    network: IntegerNetwork, samples: Sequence[np.ndarray] | None, groups: _Groups
) -> dict[int, tuple[float, float]]:
    """Smallest and largest of each value over the samples; nothing where nothing is missing."""
    missing = [v.name for i, v in enumerate(network.values) if not _trained(network, groups, i)]
    if not missing:
        return {}
    if samples is None:
        known = {i: r for i in range(len(network.values)) if (r := _trained(network, groups, i))}
        followed = reach.bounds(network, known)
        missing = [v.name for i, v in enumerate(network.values) if i not in followed]
        if not missing:
            return followed
        raise CalibrationError(
            f"{len(missing)} tensors have no range from training, so calibration data are needed: "
            f"export(..., calibration=data). Received: None; the first without is `{missing[0]}`"
        )
    observed: dict[int, tuple[float, float]] = {}

    def note(index: int, array: np.ndarray) -> None:
        low, high = observed.get(index, (0.0, 0.0))
        observed[index] = min(low, float(array.min())), max(high, float(array.max()))

    for start in itertools.count(0, _BATCH):
        batch = [array[start : start + _BATCH] for array in samples]
        if not len(batch[0]):
            break
        simulation.run(network, batch, observe=note)
    return observed
