"""Training in several processes at once, each with its own copy of the model.

TensorFlow's `MultiWorkerMirroredStrategy` keeps the copies equal; the environment variable
`TF_CONFIG` tells every process who the others are. What is here: which of them writes, how they
wait for each other, and what Keras 3 needs so that `fit` runs at all.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf
from keras import tree

STRATEGIES = ("auto", "mirrored", "multi_worker", "tpu")


def strategy_from_environment() -> tf.distribute.Strategy | None:
    """The strategy for the cluster that `TF_CONFIG` describes; None if there is no other worker.

    To be called before TensorFlow computes anything. Blocks until all workers are there.

    >>> strategy_from_environment() is None
    True
    """
    cluster = _environment().get("cluster", {})
    if sum(len(cluster.get(job, ())) for job in ("chief", "worker")) < 2:
        return None
    return tf.distribute.MultiWorkerMirroredStrategy()


def strategy_by_name(name: str = "auto") -> tf.distribute.Strategy | None:
    """The strategy under which a model is to be made and trained; None for one device.

    Args:
        name: "auto" is the cluster of `TF_CONFIG` if there is one, else all GPUs of the machine if
            they are several; "mirrored" is all its GPUs (without any, its logical processors),
            "multi_worker" the cluster, "tpu" the TPU that the environment names.

    To be called before TensorFlow computes anything.

    >>> strategy_by_name() is None  # one device, nobody else
    True
    """
    if name == "auto":
        several = len(tf.config.list_physical_devices("GPU")) > 1
        return strategy_from_environment() or (strategy_by_name("mirrored") if several else None)
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        if len(devices) < 2:
            found = ", ".join(d.name for d in devices)
            raise ValueError(f"A mirrored strategy needs several devices. Received: {found}")
        return tf.distribute.MirroredStrategy([d.name for d in devices])
    if name == "multi_worker":
        strategy = strategy_from_environment()
        if strategy is None:
            text = os.environ.get("TF_CONFIG")
            raise ValueError(f"TF_CONFIG must name two workers or more. Received: {text}")
        return strategy
    if name == "tpu":
        return _tpu_strategy()
    raise ValueError(f"A strategy is one of {', '.join(STRATEGIES)}. Received: {name!r}")


def _tpu_strategy() -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, tf.errors.OpError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"A TPU is needed that TensorFlow finds by itself, as on a TPU VM. Received: {reason}"
        ) from error


def is_chief() -> bool:
    """Whether this process is the one that writes; a process on its own is.

    >>> is_chief()
    True
    """
    environment = _environment()
    task = environment.get("task", {})
    if "chief" in environment.get("cluster", {}):
        return task.get("type") == "chief"
    return int(task.get("index", 0)) == 0


def leave(code: int) -> NoReturn:
    """Ends the process. Of several workers, at once: the orderly way waits for all the others."""
    try:
        together = "cluster" in _environment()
    except ValueError:
        together = False  # what was wrong with it has been said
    if together:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def spans_processes(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def barrier(strategy: tf.distribute.Strategy | None) -> None:
    """Returns when all workers have come here."""
    if strategy is not None and spans_processes(strategy):
        strategy.reduce("SUM", tf.ones([1]), axis=None).numpy()


def mean_over_workers(strategy: tf.distribute.Strategy, values: np.ndarray) -> np.ndarray:
    """The mean of what the processes have found, so that they go on with the same."""
    if not spans_processes(strategy):
        return values
    found = tf.constant(np.append(values.ravel(), 1.0), tf.float32)
    total = strategy.reduce("SUM", found, axis=None).numpy()
    return (total[:-1] / total[-1]).reshape(values.shape)


@dataclasses.dataclass(frozen=True)
class Workers:
    """The processes that train together. A process on its own is their chief."""

    strategy: tf.distribute.Strategy | None = None

    @classmethod
    def from_environment(cls) -> "Workers":
        return cls(strategy_from_environment())

    @classmethod
    def by_strategy(cls, name: str = "auto") -> "Workers":
        """Those of one of `STRATEGIES`; see `strategy_by_name`."""
        return cls(strategy_by_name(name))

    @property
    def is_chief(self) -> bool:
        return self.strategy is None or is_chief()

    def scope(self) -> contextlib.AbstractContextManager:
        """Models that are trained together must be made inside."""
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def wait(self) -> None:
        """Returns when all workers have come here."""
        barrier(self.strategy)

    @contextlib.contextmanager
    def chief_first(self) -> Iterator[None]:
        """The others enter when the chief has left: what it made there, they find."""
        if not self.is_chief:
            self.wait()
        yield
        if self.is_chief:
            self.wait()


def average_over_replicas(strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> None:
    """Sets variables that every replica updates by itself, as batch norm's are, to their mean."""
    if strategy.num_replicas_in_sync == 1 or not variables:
        return

    @tf.function
    def means() -> list[tf.Tensor]:
        copies = strategy.run(lambda: [tf.identity(v.value) for v in variables])
        return [strategy.reduce("MEAN", copy, axis=None) for copy in copies]

    for variable, mean in zip(variables, means(), strict=True):
        variable.assign(mean)


class TrainsInLockstep(keras.Model):
    """Mixed into a `keras.Model`, lets its `fit` and `evaluate` run in several processes.

    Keras 3 fails there in two places (https://github.com/keras-team/keras/issues/20585), for which
    there is no public way around:

    - before the first step it averages a batch over the workers, to learn its shape; that batch
      may have different sizes, or labels that have no mean. The worker's own part serves as well.
    - it averages a step's logs along their first axis; scalars have none. It also does so one by
      one, with two exchanges each; as one vector, they take two together.
    """

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self.distribute_strategy
        if iterator is not None and spans_processes(strategy):
            _, _, batches = next(iter(iterator))
            data_batch = tree.map_structure(
                lambda value: strategy.experimental_local_results(value)[0], next(batches)
            )
            iterator = None
        super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)

    def _make_function(self, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if not spans_processes(self.distribute_strategy):
            return super()._make_function(step_function)
        structure = None

        def packed(data: Any) -> tf.Tensor:
            nonlocal structure  # known when the step is traced, before any logs come out of it
            logs = step_function(data)
            structure = tree.map_structure(lambda _: None, logs)
            return tf.stack([tf.cast(log, tf.float32) for log in tree.flatten(logs)])[None]

        function = super()._make_function(packed)

        def unpacked(iterator: Any) -> Any:
            logs = tf.unstack(function(iterator))
            return tree.pack_sequence_as(structure, logs)

        return unpacked


def _environment() -> dict:
    """What `TF_CONFIG` says, checked here: TensorFlow would wait for workers that do not exist."""
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        content = json.loads(text)
        cluster, task = content.get("cluster", {}), content.get("task", {})
        addresses = [address for job in cluster.values() for address in list(job)]
        if not all(isinstance(a, str) and ":" in a for a in addresses):
            raise ValueError("its addresses must be host:port")
        workers = cluster.get(task.get("type", "worker"), [])
        if cluster and not 0 <= int(task.get("index", 0)) < len(workers):
            raise ValueError(f"task {task} is none of its cluster")
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            'TF_CONFIG is to be such as {"cluster": {"worker": ["host1:12345", "host2:12345"]}, '
            f'"task": {{"type": "worker", "index": 0}}}} ({error}). Received: {text}'
        ) from error
    return content
