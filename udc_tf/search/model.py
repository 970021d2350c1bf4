"""The searchable model: a Keras model whose `fit` trains weights and decisions together."""

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import BoundTarget, Target, target_from_dict
from udc_tf.layers.current_sample import following
from udc_tf.layers.searchable_kernels import SearchableKernel
from udc_tf.search import decisions, start
from udc_tf.search.followers import followers_of
from udc_tf.search.linking import link_layer
from udc_tf.search.settings import SearchSettings
from udc_tf.search.space import SearchSpace
from udc_tf.search.state import SearchState
from udc_tf.training import batch_norm, divergence, schedules, training_data, workers
from udc_tf.training.training_state import KeepState, TrainingState, history_of, state_of

_CALIBRATION_BATCHES = 8
_FASTEST_DECISION_RATE = 0.5  # runs of a few steps would else decide in one
# Adam steps by its rate however noisy the gradient is. From a first guess that must stay small, or
# a short search only unlearns what it began with: at 0.03, layers next to nothing in size lost a
# third of their weights, and the network 0.8 points (CIFAR-10 at 16x16, 26,000 bytes, one seed).
_FASTEST_FROM_A_GUESS = 0.01


@dataclasses.dataclass(frozen=True)
class SearchProblem:
    """What is searched, apart from how: the parts of a `SearchModel` that have no variables."""

    source: dict[str, Any] | None  # the original model, serialized; None if it cannot be
    plan: Plan
    space: SearchSpace
    targets: tuple[Target, ...]
    bound: tuple[BoundTarget, ...]
    compactable: Any  # (graph, channel groups) of the original, None for subclassed models


class _Samples:
    """The samples of one step; a layer's kernels for all of them are made at its first call."""

    def __init__(self, z: tf.Tensor, rows: dict[str, int]):
        self.z, self.rows = z, rows
        self._kernels: dict[int, list[tf.Tensor]] = {}

    def view(self, index: int) -> "_SampleView":
        return _SampleView(self, index)

    def kernels_of(self, layer: SearchableKernel) -> list[tf.Tensor]:
        if id(layer) not in self._kernels:
            self._kernels[id(layer)] = layer.kernels_of_samples(self.z)
        return self._kernels[id(layer)]


@dataclasses.dataclass(frozen=True)
class _SampleView:
    samples: _Samples
    index: int

    def kernel_of(self, layer: SearchableKernel) -> tf.Tensor:
        return self.samples.kernels_of(layer)[self.index]

    def weights_of(self, decision: str) -> tf.Tensor:
        return self.samples.z[self.index, self.samples.rows[decision]]


@keras.saving.register_keras_serializable("udc_tf")
class SearchModel(workers.TrainsInLockstep, keras.Model):
    """Searches, by gradient descent, for the configuration of a network that meets its targets.

    Made by `udc_tf.make_searchable`. Called, evaluated or asked to predict, it is the most likely
    configuration; `fit` samples. Each epoch logs, beside loss and metrics:

    - `size_loss`: |E - e*| / e* over the samples,
    - `argmax_ratio`, `expected_ratio`: E / e* of the most likely configuration, and on average,
    - `entropy`: of the decisions, 1 undecided to 0 decided,
    - `tau`, `xi`, `vartheta`: where the schedules are.
    """

    def __init__(
        self,
        network: keras.Model,
        layers: dict[str, keras.layers.Layer],
        problem: SearchProblem,
        settings: SearchSettings,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.network = network
        self.problem = problem
        self.settings = settings
        plan = problem.plan
        self.state = SearchState(plan.decisions, settings, name="decisions")
        self.state.build(None)
        self._rows = {d.name: i for i, d in enumerate(plan.decisions)}
        self.layers_by_name = layers
        self._kernel_layers = [layers[p.name] for p in plan.layers]
        for priced in plan.layers:
            links = link_layer(plan, priced, self.state.options)
            layers[priced.name].follow(links, settings.pruned_gradient)
        # Variables and not constants, for `retarget`; not saved, since the targets are.
        self._budgets = tf.Variable([float(t.budget) for t in problem.bound], trainable=False)
        self._calibration: Iterable[Any] | None = None
        self._calibrated_at = -1
        self.built = network.built

    # What the model is.
    @property
    def targets(self) -> tuple[Target, ...]:
        return self.problem.targets

    def call(self, inputs, training=None):
        z = decisions.most_likely(self.state.log_probabilities())[None]
        with following(_Samples(z, self._rows).view(0)):
            return self.network(inputs, training=training)

    def cost_ratios(self, z: tf.Tensor) -> tf.Tensor:
        """E / e* of the most demanding target for samples z, [samples, decisions, options]."""
        flat = tf.reshape(z, [z.shape[0], -1])
        ratios = [
            t.cost(t.maps.counts(flat)) / self._budgets[i] for i, t in enumerate(self.problem.bound)
        ]
        return tf.reduce_max(tf.stack(ratios), axis=0)

    def retarget(self, target: Target | Sequence[Target]) -> None:
        """Aims at other budgets on the same costs, at the beginning of a run.

        Weights and decisions stay as they are, and nothing has to be traced anew.
        """
        targets = tuple(target) if isinstance(target, (list, tuple)) else (target,)
        kinds = [[{**t.to_dict(), "budget": 0} for t in ts] for ts in (targets, self.targets)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"Only budgets can change. Received: {targets} instead of {self.targets}"
            )
        bound = tuple(t.bind(self.problem.plan) for t in targets)
        self.problem = dataclasses.replace(self.problem, targets=targets, bound=bound)
        self._budgets.assign([float(t.budget) for t in bound])
        self.state.step.assign(0)
        self._calibrated_at = -1

    def probabilities(self) -> dict[str, dict[float, float]]:
        """Decision -> option -> probability."""
        pi = np.exp(self.state.log_probabilities().numpy())
        return {
            d.name: {option: float(p) for option, p in zip(d.options, pi[i], strict=False)}
            for i, d in enumerate(self.problem.plan.decisions)
        }

    def architecture(self, calibration: Any = None):
        """The most likely configuration, repaired so that every target holds.

        It carries this model's weights, with batch-norm statistics measured for it on `calibration`
        (inputs; by default a few batches of what `fit` was given).
        """
        from udc_tf.search.extract import extract_architecture

        if calibration is not None:
            batches = training_data.first_batches(calibration, None, _CALIBRATION_BATCHES)
        else:
            batches = self._calibration
        return extract_architecture(self, batches)

    def summary(self, print_fn=print) -> None:
        """Prints the most likely option of every decision, layer by layer, with its size."""
        from udc_tf.search.extract import most_likely_architecture

        print_fn(most_likely_architecture(self).table())

    # Training.
    def compile(
        self,
        optimizer=None,
        decision_optimizer=None,
        range_optimizer=None,
        loss=None,
        metrics=None,
        **kwargs,
    ):
        """As `keras.Model.compile`, with two more optimizers.

        Args:
            optimizer: of the weights. Default: SGD with momentum 0.9 and a cosine from 0.1 to 1e-4.
            decision_optimizer: of the decisions. Default: Adam, its rate from the run's length.
            range_optimizer: of the quantization ranges. Default: Adam with 1e-3.
        """
        if optimizer is None:
            rate = schedules.CosineOverRun(warmup=self.settings.warmup)
            optimizer = keras.optimizers.SGD(rate, momentum=0.9)
        self._derive_decision_rate = decision_optimizer is None
        self.decision_optimizer = keras.optimizers.get(decision_optimizer or "adam")
        self.range_optimizer = keras.optimizers.get(range_optimizer or keras.optimizers.Adam(1e-3))
        super().compile(optimizer=optimizer, loss=loss, metrics=metrics, **kwargs)
        if self.network.built:
            self._build_optimizers()

    def _build_optimizers(self):
        self.optimizer.build(self.trainable_variables)
        self.decision_optimizer.build([self.state.logits])
        self.range_optimizer.build(self._ranges)

    @property
    def _ranges(self):
        return [layer.log_ranges for layer in self._kernel_layers if layer.log_ranges is not None]

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        planned_epochs=None,
        workdir=None,
        **kwargs,
    ):
        """As `keras.Model.fit`. Schedules follow from `epochs` and the length of an epoch.

        With `planned_epochs` this call is the first part of a run of so many epochs.

        With `workdir`, a folder (or a `StateFolder`), the state is kept there after every epoch. A
        run that was interrupted goes on from there when it is called again, and ends as it would
        have; the history it returns is that of all epochs.

        Arrays are shuffled in an order that depends on the seed and the epoch alone, so that a run
        which is interrupted and resumed sees what it would have seen. With a dataset or generator,
        that is for its maker to see to.
        """
        if not self.compiled:
            raise ValueError("Call `compile` before `fit`, at least with a loss.")
        for labels in (y, *_second(kwargs.get("validation_data"))):
            training_data.check_class_numbers(labels, self.loss, self.network)
        if training_data.is_arrays(x):
            x, kwargs = training_data.as_dataset(
                x, y, batch_size or 32, self.settings.seed, self.state.steps_done, kwargs
            )
            y = batch_size = None
        steps = training_data.steps_per_epoch(x, batch_size, kwargs.get("steps_per_epoch"))
        self._calibration = training_data.first_batches(x, batch_size, _CALIBRATION_BATCHES)
        state = None
        if workdir is not None:
            state = self._training_state(workdir, steps, planned_epochs or epochs)
            if state.restore():
                self._calibrated_at = -1
                done = state.progress
                kwargs["initial_epoch"] = epochs if done.stopped else done.epochs
        self._plan_run(steps * ((planned_epochs or epochs) - kwargs.get("initial_epoch", 0)))
        replicas = self.distribute_strategy.num_replicas_in_sync
        if isinstance(x, tf.data.Dataset):
            x = training_data.for_replicas(x, replicas)
        # Last of all, behind whatever restores a state; the state is kept with all logs.
        last = [_SetOut(), *([] if state is None else [KeepState(state)])]
        callbacks = kwargs.get("callbacks") or []
        if isinstance(callbacks, keras.callbacks.CallbackList):
            for callback in last:
                callbacks.append(callback)
        else:
            kwargs["callbacks"] = [*tree.flatten(callbacks), *last]
        with divergence.told_briefly():
            history = super().fit(x, y, batch_size=batch_size, epochs=epochs, **kwargs)
        return history if state is None else history_of(self, state.progress.logs)

    def _training_state(self, workdir, steps: int, epochs: int) -> TrainingState:
        if not self.built:
            raise ValueError("The model must be built, so that its state can be restored.")
        workers.barrier(self.distribute_strategy)  # the chief has written what is read here
        optimizers = ("optimizer", "decision_optimizer", "range_optimizer")
        variables = {name: getattr(self, name).variables for name in optimizers}
        plan = {
            "settings": dataclasses.asdict(self.settings),
            "targets": [t.to_dict() for t in self.targets],
            "steps_per_epoch": steps,
            "epochs": epochs,
        }
        return TrainingState(workdir, "search", {"network": state_of(self), **variables}, plan)

    def set_out(self, certainty: float | None = None) -> None:
        """Sets the decisions to the first guess for the weights as they are.

        `fit` does when the warm-up ends, with the settings' certainty.
        """
        certainty = self.settings.certainty if certainty is None else certainty
        if not certainty:
            return
        priced = zip(self.problem.plan.layers, self._kernel_layers, strict=True)
        thetas = {p.name: layer.theta for p, layer in priced}
        harms = start.harms_of(self.problem.plan, thetas, self.state.options)
        valid = self.state.valid.numpy()
        self.state.start_at(start.first_guess(harms, valid, self.cost_ratios, certainty))

    def _plan_run(self, steps: int) -> None:
        total = self.state.steps_done() + steps
        self.state.planned.assign(total)
        rate = schedules.CosineOverRun.unfinished(self.optimizer)
        if rate is not None:
            self.optimizer.learning_rate = schedules.CosineOverRun(**{**rate, "steps": total})
        if self._derive_decision_rate:
            deciding = max(1.0, (1 - self.settings.warmup) * total)
            guessed = bool(self.settings.certainty)
            fastest = _FASTEST_FROM_A_GUESS if guessed else _FASTEST_DECISION_RATE
            rate = min(self.settings.decision_travel / deciding, fastest)
            self.decision_optimizer.learning_rate = rate

    def evaluate(self, *args, **kwargs):
        """As `keras.Model.evaluate`, for the most likely configuration with its own statistics."""
        self.recalibrate()
        return super().evaluate(*args, **kwargs)

    def recalibrate(self, calibration: Any = None) -> None:
        """Measures the batch-norm statistics of the most likely configuration."""
        batches = calibration if calibration is not None else self._calibration
        now = self.state.steps_done()
        if batches is None or (calibration is None and self._calibrated_at == now):
            return
        batch_norm.recalibrate(
            batch_norm.batch_norm_layers(self.network), lambda x: self(x, training=True), batches
        )
        self._calibrated_at = now

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        now = self.state.schedule()
        self._refresh_if_due()
        weights, ranges = self.trainable_variables, self._ranges
        with tf.GradientTape() as tape:
            for variable in (self.state.logits, *ranges):
                tape.watch(variable.value)
            z = self.state.draw(now)
            y_pred = self._predict_by_samples(x, z)
            task_loss = self.compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )
            size_loss = tf.reduce_mean(tf.abs(self.cost_ratios(z) - 1.0))
            # Every replica adds its gradient; together they are to count once, as the task does.
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            loss = task_loss + self.settings.strength * size_loss / replicas
            loss = divergence.checked_finite(loss, x)
        sources = [v.value for v in (self.state.logits, *ranges, *weights)]
        gradients = tape.gradient(loss, sources, unconnected_gradients="zero")
        self._apply(gradients, ranges, weights, now)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(task_loss * replicas)
        logs = self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return {**logs, "size_loss": size_loss, **self._decision_logs(now)}

    def _apply(self, gradients, ranges, weights, now):
        of_logits, of_ranges = gradients[0], gradients[1 : 1 + len(ranges)]
        self.optimizer.apply(gradients[1 + len(ranges) :], weights)
        if ranges:
            self.range_optimizer.apply(of_ranges, ranges)
        # Frozen during the warm-up: without gradient, and with the optimizer's clock held at zero,
        # so that it starts afresh afterwards. (No tf.cond: replicas cannot synchronise in one.)
        clock = self.decision_optimizer.iterations
        clock.assign(tf.where(now.warming_up, tf.zeros_like(clock), clock.value))
        of_logits = tf.where(now.warming_up, tf.zeros_like(of_logits), of_logits)
        self.decision_optimizer.apply([of_logits], [self.state.logits])
        self.state.finish_step(now)

    def _refresh_if_due(self):
        """Every few steps, masks and ranges follow the weights."""
        due = tf.equal(self.state.step % self.settings.mask_refresh, 0)
        followers, fresh = self._followers(self.settings.range_follow)
        if not followers:
            return
        now = [tf.convert_to_tensor(v) for v in followers]
        # Assigned outside of the tf.cond: replicas cannot synchronise in one.
        for variable, value in zip(followers, tf.cond(due, fresh, lambda: now), strict=True):
            variable.assign(value)

    def _followers(self, range_follow: float):
        def probabilities():
            return tf.exp(self.state.log_probabilities())

        return followers_of(self._kernel_layers, probabilities, range_follow)

    def refresh_masks(self) -> None:
        """Ranks all weights anew under the present probabilities."""
        followers, fresh = self._followers(range_follow=0.0)
        for variable, value in zip(followers, fresh() if followers else [], strict=True):
            variable.assign(value)

    def _predict_by_samples(self, x, z):
        """Each sample on its own slice of the batch; a batch smaller than that is gone round."""
        samples = _Samples(z, self._rows)
        count = z.shape[0]
        if count == 1:
            with following(samples.view(0)):
                return self.network(x, training=True)
        size = tf.shape(tree.flatten(x)[0])[0]
        filled = tf.maximum(size, count)
        outputs = []
        for s in range(count):
            rows = tf.range(filled * s // count, filled * (s + 1) // count) % size
            part = tree.map_structure(lambda t, rows=rows: tf.gather(t, rows), x)
            with following(samples.view(s)):
                outputs.append(self.network(part, training=True))
        return tree.map_structure(lambda *parts: tf.concat(parts, axis=0)[:size], *outputs)

    def _decision_logs(self, now):
        log_pi = self.state.log_probabilities()
        both = tf.stack([decisions.most_likely(log_pi), tf.exp(log_pi)])
        argmax_ratio, expected_ratio = tf.unstack(self.cost_ratios(both))
        return {
            "argmax_ratio": argmax_ratio,
            "expected_ratio": expected_ratio,
            "entropy": decisions.entropy(log_pi, self.state.valid),
            "tau": now.tau,
            "xi": now.xi,
            "vartheta": now.vartheta,
        }

    # Saving.
    def get_config(self):
        if self.problem.source is None:
            raise ValueError(
                "A search over a subclassed model can be saved with `save_weights` only."
            )
        return {
            "model": copy.deepcopy(self.problem.source),
            "space": self.problem.space.to_dict(),
            "targets": [_loadable(t) for t in self.problem.targets],
            "settings": dataclasses.asdict(self.settings),
        }

    @classmethod
    def from_config(cls, config):
        from udc_tf.search.make import make_searchable

        return make_searchable(
            keras.saving.deserialize_keras_object(config["model"]),
            space=SearchSpace.from_dict(config["space"]),
            target=[target_from_dict(t) for t in config["targets"]],
            settings=SearchSettings(**config["settings"]),
        )

    def get_compile_config(self):
        config = super().get_compile_config()
        if not self.compiled:
            return config
        for name in ("decision_optimizer", "range_optimizer"):
            config[name] = keras.saving.serialize_keras_object(getattr(self, name))
        config["derive_decision_rate"] = self._derive_decision_rate
        return config

    def compile_from_config(self, config):
        config = {k: keras.saving.deserialize_keras_object(v) for k, v in config.items()}
        derive = config.pop("derive_decision_rate")
        self.compile(**config)
        self._derive_decision_rate = derive


def _second(data: Any) -> tuple:
    """The labels of a tuple of inputs and labels."""
    return data[1:2] if isinstance(data, tuple) else ()


def _loadable(target: Target) -> dict[str, Any]:
    """A target as it is saved; one that would not load again is refused now, not then."""
    values = target.to_dict()
    target_from_dict(values)
    return values


class _SetOut(keras.callbacks.Callback):
    """Makes the first guess when the warm-up has shaped the weights."""

    def on_train_batch_begin(self, batch, logs=None):
        state = self.model.state
        if state.steps_done() == state.warmup_steps():
            self.model.set_out()
