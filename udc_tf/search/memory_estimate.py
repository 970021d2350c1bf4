"""What a search step needs in memory, estimated from shapes: before a card is found too small."""

import dataclasses
import math
from typing import Any

import keras
import numpy as np
from keras import tree

from udc_tf.graph.trace import trace
from udc_tf.search.model import SearchModel

_FLOAT = 4
# Per weight and sample: option mix, mask, their product, kernel, and the kernel's gradient.
_PER_SAMPLE = 5
# Layers whose output is their input, or is made again without being kept.
_KEEP_NOTHING = (
    keras.layers.InputLayer,
    keras.layers.Flatten,
    keras.layers.Reshape,
    keras.layers.Rescaling,
)


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes that live at once in a step of the search.

    Attributes:
        variables: weights, masks, statistics, and what the optimizers keep.
        gradients: of the weights; two sets if samples come in several passes.
        kernels: of the samples of one pass, with what their gradients need.
        activations: of the examples of one pass, kept for the backward pass; None for a subclassed
            model, whose graph cannot be read.
    """

    variables: int
    gradients: int
    kernels: int
    activations: int | None

    @property
    def total(self) -> int:
        return self.variables + self.gradients + self.kernels + (self.activations or 0)

    def __str__(self) -> str:
        activations = "not known" if self.activations is None else _mib(self.activations)
        return (
            f"about {_mib(self.total)} per step: variables {_mib(self.variables)}, gradients "
            f"{_mib(self.gradients)}, kernels of samples {_mib(self.kernels)}, "
            f"activations {activations}"
        )


def step_memory(search: SearchModel, batch_size: int) -> StepMemory:
    """What a step of a compiled search needs on one device, by the formula of docs/gpu.md.

    With several devices, `batch_size` is one device's part.

    >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    >>> import udc_tf
    >>> search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Macs(30))
    >>> search.compile(loss="mse")
    >>> step_memory(search, 32).activations  # 32 examples of 4 and 2 values, 4 bytes each
    768
    """
    settings = search.settings
    together = settings.samples_per_pass or settings.samples
    optimizers = (search.optimizer, search.decision_optimizer, search.range_optimizer)
    kept = [*search.variables, *(v for o in optimizers for v in o.variables)]
    passes = 1 if together == settings.samples else 2
    kernels = 0
    for layer in search.kernel_layers:
        options = sum(len(o or ()) for o in (layer.options.bits, layer.options.sparsities))
        kernels += math.prod(layer.theta.shape) * (options + _PER_SAMPLE * together)
    examples = batch_size * together
    if not settings.full_batches:
        examples = math.ceil(examples / settings.samples)
    return StepMemory(
        variables=_bytes({id(v): v for v in kept}.values()),
        gradients=_bytes(search.trainable_variables) * passes,
        kernels=kernels * _FLOAT,
        activations=_activations(search, examples),
    )


def _activations(search: SearchModel, examples: int) -> int | None:
    if search.problem.source is None:
        return None
    total = 0
    for node in trace(search.network).nodes:
        if isinstance(node.layer, _KEEP_NOTHING):
            continue
        size = _bytes_of(getattr(node.layer, "compute_dtype", None) or "float32")
        for output in tree.flatten(node.outputs):
            total += math.prod(n or 1 for n in output.shape[1:]) * size
    return total * examples


def _bytes(variables: Any) -> int:
    return sum(math.prod(v.shape) * _bytes_of(v.dtype) for v in variables)


def _bytes_of(dtype: str) -> int:
    name = keras.backend.standardize_dtype(dtype)
    return 2 if name == "bfloat16" else np.dtype(name).itemsize


def _mib(size: int) -> str:
    """
    >>> _mib(3 << 20), _mib(5 << 30)
    ('3 MiB', '5.0 GiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 1 << 30 else f"{math.ceil(size / 2**20)} MiB"
