"""What the length of a run settles: its schedules, the decisions' rate, when the guess is made."""

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import keras

from udc_tf.search import setting_out
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
        search.decision_optimizer.learning_rate = settings.decision_rate or of_decisions


class StopsBetweenSteps(keras.Model):
    """Mixed into a model, lets one of its executions stop between steps to decide something."""

    stops: tuple[int, ...] = ()  # before which of its steps the next execution is to stop

    def stop(self) -> None:
        setting_out.stop(cast("SearchModel", self))

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
            (*stops, end), self.stops = self.stops or (0,), ()
            if not stops:
                return all_steps(iterator)
            self.steps_per_execution = 1
            try:
                for step in range(end):
                    if step in stops:
                        self.stop()
                    logs = one_step(iterator)
                return logs
            finally:
                self.steps_per_execution = steps

        self.train_function = execution
        return execution


class SetOut(keras.callbacks.Callback):
    """Has the first guess made when the warm-up has shaped the weights, and the loss asked.

    It is asked again later, when weights have followed: a layer of few weights does not miss its
    bits before it has the weights.

    Args:
        steps: of an epoch.
    """

    def __init__(self, steps: int):
        super().__init__()
        self._steps = steps

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        state = self.model.state
        undecided = state.steps_done() == 0 and not state.logits.numpy().any()
        if undecided and state.warmup_steps() > 0:
            setting_out.warm_up(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Read here and not in every batch: it would wait for the device.
        self._done = self.model.state.steps_done()
        self._moments = setting_out.moments(self.model)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        steps = min(self.model.steps_per_execution, self._steps - batch)
        due = [left for m in self._moments if 0 <= (left := m - (self._done + batch)) < steps]
        if due and due[0] == 0:
            self.model.stop()
            due = due[1:]
        if due:
            self.model.stops = (*due, steps)


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
