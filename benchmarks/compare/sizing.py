"""Making proposals take up the budget: size models, and trial compilations."""

import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Callable

import keras
import numpy as np

import udc_tf
from benchmarks.compare.tasks import Task
from udc_tf.export.int8 import to_int8
from udc_tf.export.size_fit import DEFAULT_CONFIGURATIONS
from udc_tf.search.extract import architecture_of
from udc_tf.search.repair import Budget, extreme, repair

SPACE = "ethos_u55"
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_PLAIN_EPOCHS = 2
# A proposal is to take up such a share of the budget when compiled. Finetuned weights compile
# to more, of sparse networks by 2 to 5%, and what is over the budget then must be tightened.
_COMPILES, _SHARE = 6, (0.935, 0.955)


@dataclasses.dataclass(frozen=True)
class Bench:
    """A task with a place for what is made once and kept."""

    task: Task
    cache: pathlib.Path
    size_compiles: int = DEFAULT_CONFIGURATIONS

    @property
    def _name(self) -> str:
        return f"{self.task.name}_{len(self.task.train[0])}"

    def target(self, budget: int) -> udc_tf.Flash:
        """The budget with a size model fitted to this network near it."""
        path = self.cache / f"size_{self._name}_{budget}.json"
        is_new, model = not path.is_file(), self.plain_network()
        target = udc_tf.export.fit_size_model(
            model, SPACE, udc_tf.Flash(budget), path=path, configurations=self.size_compiles
        )
        if is_new:
            self._tell_range(model, target)
        return target

    def _tell_range(self, model: keras.Model, target: udc_tf.Flash) -> None:
        (reach,) = udc_tf.make_searchable(model, SPACE, target).reachable()
        near = f"{self.task.name} near {target.budget} bytes"
        print(f"{near}: {reach} can be reached.", flush=True)

    def plain_network(self) -> keras.Model:
        """The network after a little training: fresh weights fill their range and compress less."""
        path = self.cache / f"plain_{self._name}.weights.h5"
        keras.utils.set_random_seed(0)
        model = self.task.network()
        if path.is_file():
            model.load_weights(path)
            return model
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), LOSS, jit_compile=False)
        batch_size = self.task.batch_size
        model.fit(*self.task.train, batch_size=batch_size, epochs=_PLAIN_EPOCHS, verbose=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{os.getpid()}_{path.name}")
        model.save_weights(partial)
        os.replace(partial, path)
        return model


def sized(
    propose: Callable[[float], udc_tf.Architecture | None], task: Task, target: udc_tf.Flash
) -> udc_tf.Architecture | None:
    """The proposal whose compiled file fills the budget best, with room for finetuning's weights.

    Args:
        propose: from a predicted size to an architecture with weights, not above it; or None.
    """
    low, high = (share * target.budget for share in _SHARE)
    wanted = high
    found: list[tuple[int, udc_tf.Architecture]] = []
    for _ in range(_COMPILES):
        arch = propose(wanted)
        if arch is None or any(arch.choices == earlier.choices for _, earlier in found):
            break
        size = compiled_bytes(arch, task, target.accelerator)
        found.append((size, arch))
        if low <= size <= high:
            break
        wanted = arch.flash_bytes + high - size
    if not found:
        return None
    fitting = [f for f in found if f[0] <= high]
    # If none fits, export tightens the smallest after its training.
    return (max if fitting else min)(fitting or found, key=lambda f: f[0])[1]


def compiled_bytes(arch: udc_tf.Architecture, task: Task, accelerator: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        path.write_bytes(to_int8(arch.build(), [task.train[0][:64]]).content)
        return udc_tf.export.compile_with_vela(path, folder, accelerator).flash_bytes


def statistics_batches(task: Task) -> list[np.ndarray]:
    """Inputs to measure batch-norm statistics on."""
    x, size = task.train[0], task.batch_size
    return [x[i : i + size] for i in range(0, min(len(x), 8 * size), size)]


def most_likely_within(
    search, log_pi: np.ndarray, predicted: float, task: Task, worth: np.ndarray | None = None
):
    """The architecture with the most likely options below a predicted size; None if too small.

    `worth` as for `repair`: what the search knows of the options, whatever they cost.
    """
    bound = dataclasses.replace(search.problem.bound[0], budget=predicted)
    budget, valid = Budget((bound,)), search.state.valid.numpy()
    smallest = extreme(bound, search.problem.plan, True)
    if budget.ratio(smallest) > 1:
        return None
    chosen = repair(log_pi, valid, budget, smallest, worth)
    return architecture_of(search, chosen, statistics_batches(task))
