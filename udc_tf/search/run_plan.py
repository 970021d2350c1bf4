"""What the length of a run settles: its schedules, the decisions' rate, when the guess is made."""

import dataclasses
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from udc_tf.training import schedules, workers
from udc_tf.training.training_state import TrainingState, state_of

if TYPE_CHECKING:
    from udc_tf.search.model import SearchModel

_FASTEST_DECISION_RATE = 0.5  # runs of a few steps would else decide in one
# Adam steps by its rate however noisy the gradient is. From a first guess that must stay small, or
# a short search only unlearns what it began with: at 0.03, layers next to nothing in size lost a
# third of their weights, and the network 0.8 points (CIFAR-10 at 16x16, 26,000 bytes, one seed).
_FASTEST_FROM_A_GUESS = 0.01


def plan_run(search: "SearchModel", steps: int) -> None:
    """Lays the schedules of a `SearchModel` over what it has done and `steps` more."""
    total = search.state.steps_done() + steps
    search.state.planned.assign(total)
    rate = schedules.CosineOverRun.unfinished(search.optimizer)
    if rate is not None:
        search.optimizer.learning_rate = schedules.CosineOverRun(**{**rate, "steps": total})
    if search.derives_decision_rate:
        settings = search.settings
        deciding = max(1.0, (1 - settings.warmup) * total)
        fastest = _FASTEST_FROM_A_GUESS if settings.certainty else _FASTEST_DECISION_RATE
        of_decisions = min(settings.decision_travel / deciding, fastest)
        search.decision_optimizer.learning_rate = of_decisions


class StopsToSetOut(keras.Model):
    """Mixed into a model, lets one of its executions stop between two steps for the first guess."""

    steps_to_guess: int | None = None  # of the next execution, before the guess; None for no guess

    def set_out(self) -> None:
        raise NotImplementedError

    def make_train_function(self, force: bool = False) -> Any:
        if self.train_function is not None and not force:
            return self.train_function
        steps = self.steps_per_execution
        if steps > 1:
            self.steps_per_execution = 1
            super().make_train_function(force=True)
            one_step, self.steps_per_execution = self.train_function, steps
        super().make_train_function(force=True)
        if steps == 1:
            return self.train_function
        all_steps = self.train_function

        def execution(iterator: Any) -> Any:
            before, self.steps_to_guess = self.steps_to_guess, None
            return all_steps(iterator) if before is None else stopping(iterator, before)

        def stopping(iterator: Any, before: int) -> Any:
            logs = None
            for step in range(steps):
                if step == before:
                    self.set_out()
                try:
                    logs = one_step(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):
                    if logs is None:
                        raise
                    break
            return logs

        self.train_function = execution
        return execution


class SetOut(keras.callbacks.Callback):
    """Has the first guess made when the warm-up has shaped the weights."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Read here and not in every batch: it would wait for the device.
        self._done = self.model.state.steps_done()
        self._warmup = self.model.state.warmup_steps()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        left = self._warmup - (self._done + batch)
        if left == 0:
            self.model.set_out()
        elif 0 < left < self.model.steps_per_execution:
            self.model.steps_to_guess = left


def with_last(
    model: keras.Model, callbacks: Any, *last: keras.callbacks.Callback
) -> list[keras.callbacks.Callback] | keras.callbacks.CallbackList:
    """`fit`'s callbacks and, behind all of them, those that must see what the others did."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return keras.callbacks.CallbackList(
            [*callbacks.callbacks, *last], add_history=True, model=model, **(callbacks.params or {})
        )
    return [*keras.tree.flatten(callbacks or []), *last]


def training_state(search: "SearchModel", workdir: Any, steps: int, epochs: int) -> TrainingState:
    """All that a run of a `SearchModel` needs to go on; without a `workdir` it keeps nothing."""
    if workdir is not None and not search.built:
        raise ValueError("The model must be built, so that its state can be restored.")
    workers.barrier(search.distribute_strategy)  # the chief has written what is read here
    optimizers = ("optimizer", "decision_optimizer", "range_optimizer")
    variables = {name: getattr(search, name).variables for name in optimizers}
    plan = {
        "settings": dataclasses.asdict(search.settings),
        "targets": [t.to_dict() for t in search.targets],
        "steps_per_epoch": steps,
        "epochs": epochs,
    }
    return TrainingState(workdir, "search", {"network": state_of(search), **variables}, plan)
