"""Training in several processes: the documented name of `udc_tf.training.workers`."""

from udc_tf.training.workers import (
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
    "TrainsInLockstep",
    "Workers",
    "average_over_replicas",
    "barrier",
    "is_chief",
    "leave",
    "spans_processes",
    "strategy_from_environment",
]
