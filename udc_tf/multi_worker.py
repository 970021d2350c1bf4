"""Training in several processes: the documented name of `udc_tf.training.workers`."""

from udc_tf.training.workers import (
    BackupByChief,
    TrainsInLockstep,
    Workers,
    average_over_replicas,
    barrier,
    is_chief,
    leave,
    spans_processes,
    strategy_from_environment,
)

__all__ = [
    "BackupByChief",
    "TrainsInLockstep",
    "Workers",
    "average_over_replicas",
    "barrier",
    "is_chief",
    "leave",
    "spans_processes",
    "strategy_from_environment",
]
