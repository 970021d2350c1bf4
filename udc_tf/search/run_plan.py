"""What the length of a run settles: its schedules, the decisions' rate, when the guess is made."""

import dataclasses
from typing import TYPE_CHECKING, Any

import keras

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

    steps_around_guess: tuple[int, int] | None = None  # of the next execution, if one is due in it

    def set_out(self) -> None:
        raise NotImplementedError

    def make_train_function(self, force: bool = False) -> Any:
        if self.train_function is not None and not force:
            return self.train_function
        super().make_train_function(force=True)
        all_steps: Any = self.train_function
        steps = self.steps_per_execution
        if steps == 1:
            return all_steps
        super().make_train_function(force=True)
        one_step: Any = self.train_function  # traced when it is called, with what then is a step

        def execution(iterator: Any) -> Any:
            around, self.steps_around_guess = self.steps_around_guess, None
            if around is None:
                return all_steps(iterator)
            self.steps_per_execution = 1
            try:
                for _ in range(around[0]):
                    one_step(iterator)
                self.set_out()
                return [one_step(iterator) for _ in range(around[1])][-1]
            finally:
                self.steps_per_execution = steps

        self.train_function = execution
        return execution


class SetOut(keras.callbacks.Callback):
    """Has the first guess made when the warm-up has shaped the weights.

    Args:
        steps: of an epoch.
    """

    def __init__(self, steps: int):
        super().__init__()
        self._steps = steps

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Read here and not in every batch: it would wait for the device.
        self._done = self.model.state.steps_done()
        self._warmup = self.model.state.warmup_steps()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        left = self._warmup - (self._done + batch)
        steps = min(self.model.steps_per_execution, self._steps - batch)
        if left == 0:
            self.model.set_out()
        elif 0 < left < steps:
            self.model.steps_around_guess = left, steps - left


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
