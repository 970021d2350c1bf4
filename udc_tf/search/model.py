"""The searchable model: a Keras model whose `fit` trains weights and decisions together."""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from udc_tf.compact.architecture import Architecture
from udc_tf.cost.device_targets import informed
from udc_tf.cost.targets import Target, loadable, target_from_dict
from udc_tf.layers.current_sample import following
from udc_tf.layers.searchable_kernels import SearchableKernel
from udc_tf.search import decisions, setting_out
from udc_tf.search.changes import DecisionChange, changes_of, table_of
from udc_tf.search.followers import rank_anew
from udc_tf.search.linking import link_layer
from udc_tf.search.passes import check_loss
from udc_tf.search.problem import SearchProblem, require_targets
from udc_tf.search.reachable import Reachable, reachable
from udc_tf.search.run_plan import SetOut, StopsBetweenSteps, plan_run, training_state, with_last
from udc_tf.search.samples import Samples, predict_by_samples
from udc_tf.search.search_step import search_step
from udc_tf.search.settings import SearchSettings
from udc_tf.search.space import SearchSpace
from udc_tf.search.state import SearchState
from udc_tf.training import batch_norm, schedules, training_data, workers
from udc_tf.training.built_metrics import build_metrics
from udc_tf.training.divergence import EndsWhenNotFinite, told_briefly
from udc_tf.training.epochs import resumable_batches
from udc_tf.training.one_vector import OneVector
from udc_tf.training.training_state import KeepState, StatePlace, history_of

_STATISTICS_BATCHES = 8


@keras.saving.register_keras_serializable("udc_tf")
class SearchModel(StopsBetweenSteps, workers.TrainsInLockstep, keras.Model):
    """Searches, by gradient descent, for the configuration of a network that meets its targets.

    Made by `udc_tf.make_searchable`. Called, evaluated or asked to predict, it is the most likely
    configuration; `fit` samples. Each epoch logs, beside loss and metrics:

    - `size_loss`: |E - e*| / e* over the samples; `price`: of size, in the unit of the loss,
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
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.network = network
        self.output_names = getattr(network, "output_names", None)  # for losses and metrics by name
        self.problem, self.settings = problem, settings
        plan = problem.plan
        self.state = SearchState(plan.decisions, settings, name="decisions")
        self.state.build(None)
        self.rows = {d.name: i for i, d in enumerate(plan.decisions)}
        self.layers_by_name = layers
        self._kernel_layers = [layers[p.name] for p in plan.layers]
        for priced in plan.layers:
            links = link_layer(plan, priced, self.state.options)
            layers[priced.name].follow(links, settings.pruned_gradient)
        # Variables and not constants, for `retarget`; not saved, since the targets are.
        self._budgets = tf.Variable([float(t.budget) for t in problem.bound], trainable=False)
        self._statistics: Iterable[Any] | None = None
        self.labelled: Any = None  # what `fit` was given, if it can be looked at again
        self.built = network.built

    # What the model is.
    @property
    def targets(self) -> tuple[Target, ...]:
        return self.problem.targets

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        z = decisions.most_likely(self.state.log_probabilities())[None]
        with following(Samples(z, self.rows).view(0)):
            return self.network(inputs, training=training)

    def cost_ratios(self, z: tf.Tensor) -> tf.Tensor:
        """E / e* of the most demanding target for samples z, [samples, decisions, options]."""
        flat = tf.reshape(z, [z.shape[0], -1])
        ratios = [
            t.cost(t.maps.counts(flat, sparse=not self.jit_compile)) / self._budgets[i]
            for i, t in enumerate(self.problem.bound)
        ]
        return tf.reduce_max(tf.stack(ratios), axis=0)

    def retarget(self, target: Target | Sequence[Target]) -> None:
        """Aims at other budgets on the same costs, at the beginning of a run; all else stays."""
        given = tuple(target) if isinstance(target, (list, tuple)) else (target,)
        targets = tuple(informed(t, self.targets) for t in given)
        kinds = [[{**t.to_dict(), "budget": 0} for t in ts] for ts in (targets, self.targets)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"Only budgets can change. Received: {targets} instead of {self.targets}"
            )
        bound = tuple(t.bind(self.problem.plan) for t in targets)
        self.problem = dataclasses.replace(self.problem, targets=targets, bound=bound)
        self._budgets.assign([float(t.budget) for t in bound])
        self.state.step.assign(0)

    def probabilities(self) -> dict[str, dict[float, float]]:
        """Decision -> option -> probability."""
        pi = np.exp(self.state.log_probabilities().numpy())
        return {
            d.name: {option: float(p) for option, p in zip(d.options, pi[i], strict=False)}
            for i, d in enumerate(self.problem.plan.decisions)
        }

    def architecture(self, statistics: Any = None) -> Architecture:
        """The most likely configuration, repaired so that every target holds.

        It carries this model's weights, with batch-norm statistics measured for it on `statistics`
        (inputs; by default a few batches of what `fit` was given).
        """
        from udc_tf.search.extract import extract_architecture

        if statistics is not None:
            batches = training_data.first_batches(statistics, None, _STATISTICS_BATCHES)
        else:
            batches = self._statistics
        return extract_architecture(self, batches)

    def changes(self) -> list[DecisionChange]:
        """For every decision its first guess, where evidence sent it, its end, its price."""
        return changes_of(self)

    def reachable(self) -> tuple[Reachable, ...]:
        """The smallest and the largest cost of any configuration, one entry per target."""
        return reachable(self.targets, self.problem.bound, self.problem.plan)

    def summary(
        self,
        line_length: int | None = None,
        positions: Any = None,
        print_fn: Callable[[str], Any] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Any = None,
    ) -> None:
        """As `keras.Model.summary`; then the most likely network with its size, then `changes`.

        Each table goes to `print_fn` in a call of its own.
        """
        from udc_tf.search.extract import most_likely_architecture

        self.network.summary(
            line_length, positions, print_fn, expand_nested, show_trainable, layer_range
        )
        for text in (most_likely_architecture(self).table(), table_of(self.changes())):
            (print_fn or print)(text)

    # Training.
    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: bool | str = "auto",
        auto_scale_loss: bool = True,
        *,
        decision_optimizer: Any = None,
        range_optimizer: Any = None,
    ) -> None:
        """As `keras.Model.compile`, with two more optimizers.

        Args:
            optimizer: of the weights. Default: SGD with momentum 0.9 and a cosine from 0.1 to 1e-4.
            decision_optimizer: of the decisions. Default: Adam, its rate from the run's length.
            range_optimizer: of the quantization ranges. Default: Adam with 1e-3.
        """
        check_loss(loss, self.settings.samples_per_pass)
        if optimizer is None:
            rate = schedules.CosineOverRun(warmup=self.settings.warmup)
            optimizer = keras.optimizers.SGD(rate, momentum=0.9)
        self.derives_decision_rate = decision_optimizer is None
        self.decision_optimizer = keras.optimizers.get(decision_optimizer or "adam")
        self.range_optimizer = keras.optimizers.get(range_optimizer or keras.optimizers.Adam(1e-3))
        given = (optimizer, loss, loss_weights, metrics, weighted_metrics)
        super().compile(*given, run_eagerly, steps_per_execution, jit_compile, auto_scale_loss)
        if self.network.built:
            self.optimizer.build(self.trainable_variables)
            self.decision_optimizer.build([self.state.logits])
            self.range_optimizer.build([self.ranges_in_one.vector])

    @property
    def kernel_layers(self) -> list[SearchableKernel]:
        """The layers with a searched kernel, in the plan's order."""
        return self._kernel_layers

    @property
    def ranges(self) -> list[keras.Variable]:
        """The ranges of all layers' quantizers, one vector per layer."""
        return [layer.log_ranges for layer in self.kernel_layers if layer.log_ranges is not None]

    @functools.cached_property
    def ranges_in_one(self) -> OneVector:
        """What the ranges' optimizer moves."""
        return OneVector(self.ranges)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        *,
        planned_epochs: int | None = None,
        workdir: StatePlace = None,
    ) -> keras.callbacks.History:
        """As `keras.Model.fit`. Schedules follow from `epochs` and the length of an epoch.

        With `planned_epochs` this call is the first part of a run of so many. With `workdir`, a
        folder, the state is kept there after every epoch: a run that was interrupted goes on from
        there when it is called again, and returns the history of all epochs.

        Arrays are shuffled in an order that depends on the seed and the epoch alone. With a
        dataset or generator, the order of a resumed run is for its maker to see to.
        """
        if not self.compiled:
            raise ValueError("Call `compile` before `fit`, at least with a loss.")
        require_targets(self)
        for labels in (y, training_data.labels_of(validation_data)):
            training_data.check_class_numbers(labels, self.loss, self.network)
        validation_batch_size = validation_batch_size or batch_size
        if training_data.is_arrays(x):
            arrays = training_data.checked_arrays(x, y, sample_weight)
            if validation_split and validation_data is None:
                arrays, validation_data = training_data.split_off(arrays, validation_split)
            x = resumable_batches(
                arrays, batch_size or 32, self.settings.seed, self.state.steps_done, shuffle
            )
            y = sample_weight = batch_size = None
            validation_split, shuffle = 0.0, False  # the dataset made here brings its own order
        steps = training_data.steps_per_epoch(x, batch_size, steps_per_epoch)
        x, self._statistics = training_data.remembering(x, batch_size, _STATISTICS_BATCHES)
        self.labelled = None if isinstance(x, Iterator) else x
        state = training_state(self, workdir, steps, planned_epochs or epochs)
        if state.restore():
            initial_epoch = epochs if state.progress.stopped else state.progress.epochs
        plan_run(self, steps * ((planned_epochs or epochs) - initial_epoch))
        if isinstance(x, tf.data.Dataset):
            x = training_data.of_length(x, steps, one_pass=steps_per_epoch is None)
            x = training_data.for_replicas(x, self.distribute_strategy.num_replicas_in_sync)
            build_metrics(self, self.network, x.element_spec)
        with told_briefly(), batch_norm.fused(self.network):
            history = super().fit(
                x,
                y,
                batch_size,
                epochs,
                verbose,
                with_last(self, callbacks, SetOut(steps), EndsWhenNotFinite(), KeepState(state)),
                validation_split,
                validation_data,
                shuffle,
                class_weight,
                sample_weight,
                initial_epoch,
                steps_per_epoch,
                validation_steps,
                validation_batch_size,
                validation_freq,
            )
        return history if workdir is None else history_of(self, state.progress.logs)

    def set_out(self, certainty: float | None = None) -> None:
        """Sets the decisions to the first guess for the weights as they are.

        `fit` does so when the warm-up ends, with the settings' certainty.
        """
        setting_out.set_out(self, certainty)

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As `keras.Model.evaluate`, for the most likely configuration with its own statistics.

        Those of batch norm are measured for it on a few batches of what `fit` was given, for
        `evaluate` and `predict` alike, and put back at the end: the model stays as it was.
        """
        with self._own_statistics():
            return super().evaluate(
                x, y, batch_size, verbose, sample_weight, steps, callbacks, return_dict, **kwargs
            )

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """As `keras.Model.predict`, with the statistics of `evaluate`, so that both agree."""
        with self._own_statistics():
            return super().predict(x, batch_size, verbose, steps, callbacks)

    @contextlib.contextmanager
    def _own_statistics(self) -> Iterator[None]:
        layers, batches = batch_norm.batch_norm_layers(self.network), self._statistics or ()
        with batch_norm.unchanged(self.network):
            batch_norm.measure_statistics(layers, lambda x: self(x, training=True), batches)
            yield

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        return search_step(self, data)

    def predict_by_samples(self, x: Any, z: tf.Tensor) -> Any:
        """Outputs for samples z, [samples, decisions, options], each on its part of the batch."""
        return predict_by_samples(self.network, x, Samples(z, self.rows), self.kernel_layers)

    def refresh_masks(self) -> None:
        """Ranks all weights anew under the present probabilities."""
        rank_anew(self.kernel_layers, tf.exp(self.state.log_probabilities()))

    # Saving.
    def get_config(self) -> dict[str, Any]:
        if self.problem.source is None:
            raise ValueError(
                "A search over a subclassed model can be saved with `save_weights` only."
            )
        return {
            "model": copy.deepcopy(self.problem.source),
            "space": self.problem.space.to_dict(),
            "targets": [loadable(t) for t in self.problem.targets],
            "settings": dataclasses.asdict(self.settings),
            "allow_cpu": self.problem.allow_cpu,
            "start": self.problem.start,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> "SearchModel":
        from udc_tf.search.make import make_searchable

        return make_searchable(
            keras.saving.deserialize_keras_object(config["model"], custom_objects),
            space=SearchSpace.from_dict(config["space"]),
            target=[target_from_dict(t) for t in config["targets"]],
            settings=SearchSettings(**config["settings"]),
            allow_cpu=config.get("allow_cpu", False),
            start=config.get("start"),
        )

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if not self.compiled:
            return config
        for name in ("decision_optimizer", "range_optimizer"):
            config[name] = keras.saving.serialize_keras_object(getattr(self, name))
        config["derive_decision_rate"] = self.derives_decision_rate
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        config = {k: keras.saving.deserialize_keras_object(v) for k, v in config.items()}
        derive = config.pop("derive_decision_rate")
        self.compile(**config)
        self.derives_decision_rate = derive
