"""Finetuning: a compact network trained so that deployment changes nothing."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from udc_tf import network_check
from udc_tf.finetune.double_rounding import match_double_rounding
from udc_tf.finetune.losses import Crossentropy, gives_probabilities
from udc_tf.finetune.preparation import begin
from udc_tf.finetune.pruning import AnnealedPruning, refresh_masks
from udc_tf.finetune.stages import Stages
from udc_tf.finetune.statistics import frozen_statistics, recalibrate, without_dropout
from udc_tf.finetune.step import Finetuner, check_teacher
from udc_tf.finetune.whole_biases import make_biases_whole
from udc_tf.layers.activation_quantizer import held
from udc_tf.layers.compact_kernels import WeightTraining
from udc_tf.layers.inventory import activation_quantizers, kernel_layers
from udc_tf.layers.precision import computing_in
from udc_tf.training import batch_norm, training_data, workers
from udc_tf.training.batch_norm import batch_norm_layers
from udc_tf.training.built_metrics import build_metrics
from udc_tf.training.divergence import EndsWhenNotFinite, told_briefly
from udc_tf.training.epochs import EpochData
from udc_tf.training.training_state import (
    KeepState,
    StateFolder,
    TrainingState,
    history_of,
    state_of,
)


def finetune(
    tiny: keras.Model,
    train: Any,
    validation_data: Any = None,
    stages: Stages | None = None,
    teacher: keras.Model | None = None,
    *,
    loss: Any = None,
    loss_weights: Any = None,
    metrics: Any = None,
    weighted_metrics: Any = None,
    optimizer: keras.optimizers.Optimizer | None = None,
    batch_size: int = 128,
    steps_per_epoch: int | None = None,
    class_weight: dict[int, float] | None = None,
    validation_split: float = 0.0,
    validation_steps: int | None = None,
    validation_freq: Any = 1,
    run_eagerly: bool = False,
    steps_per_execution: int = 1,
    jit_compile: bool | str = "auto",
    workdir: str | os.PathLike | StateFolder | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    seed: int = 0,
    verbose: int | str = "auto",
    accelerator: str | None = "ethos-u55-128",
    allow_cpu: bool = False,
) -> keras.callbacks.History:
    """Trains a compact network in three stages, in place.

    Afterwards `tiny.evaluate(...)` is the accuracy of the deployed network: integer weights,
    exactly the target number of non-zeros, 8-bit activations.

    Args:
        tiny: what `Architecture.build()` made.
        train: a tuple `(x, y)` or `(x, y, sample_weight)` of arrays, which are shuffled, or batches
            of such tuples: a `tf.data.Dataset`, one pass of which is an epoch (or
            `steps_per_epoch`), a `keras.utils.PyDataset`, or a generator. Inputs and labels may be
            lists or dictionaries, as in Keras.
        validation_data: as for `keras.Model.fit`.
        stages: the plan; `Stages()` by default, `Stages(epochs=n)` for a run of n epochs.
        teacher: a Keras model of the same inputs and outputs to distil from.
        loss: cross-entropy by default (labels may be class numbers or one-hot rows). Networks of
            several outputs have no default; it may be a list or dictionary, as in Keras.
        loss_weights: as for `keras.Model.compile`.
        metrics: accuracy by default, of one output.
        weighted_metrics: as for `keras.Model.compile`.
        optimizer: for the weights; SGD by default. Its learning rate is replaced by the plan's.
            Averages that it keeps (`use_ema`) become the weights at the end of each stage.
        batch_size: for arrays.
        steps_per_epoch: for a generator, or a data set that an epoch is only a part of.
        class_weight, validation_split, validation_steps, validation_freq: as for `keras.Model.fit`.
        run_eagerly, steps_per_execution, jit_compile: as for `keras.Model.compile`.
        workdir: where the state is kept after every epoch. A run that was interrupted goes on from
            there when it is called again, and ends with the weights it would have had. (With a
            `tf.data.Dataset`, if its own randomness comes from fixed seeds.)
        callbacks: for `fit`, which runs once a stage; epochs are counted through. Logs have a
            `weight_norm`, the sum of the squared weights of all kernels. A `ModelCheckpoint` saves
            the network as it is after an epoch; what is deployed is `tiny` at the end of the run.
        seed: of the order of arrays, of fresh weights, and of random layers such as dropout.
        verbose: as for `keras.Model.fit`.
        accelerator: the NPU for which the network is meant: what it does not run is refused before
            the first step. None: for no device, so that a layer which cannot be exported is only
            warned of.
        allow_cpu: whether operators that the NPU does not run may be left to the CPU.

    Returns:
        The history of all epochs, those before an interruption included.

    Raises:
        DivergedError: the loss of a step was not finite; the state in `workdir` is that of the
            epoch before.
        StateError: the state cannot be written or read; the message says what to do.

    Example:

    >>> import udc_tf
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="head")])
    >>> tiny = udc_tf.compact(model, bits=4, nonzeros=0.5)
    >>> x, y = np.random.default_rng(0).normal(size=(64, 4)).astype("float32"), np.arange(64) % 3
    >>> history = finetune(tiny, (x, y), stages=Stages(epochs=3), batch_size=16, verbose=0)
    >>> tiny.get_layer("head").integer_kernel().nonzeros
    6
    """
    stages = stages or Stages()
    _check(tiny, teacher, loss)
    network_check.require_network(tiny, accelerator, allow_cpu)
    if validation_split and validation_data is None:
        train, validation_data = _split(train, validation_split)
    data = EpochData(train, batch_size, seed, steps_per_epoch)
    loss = loss or Crossentropy(not gives_probabilities(tiny), stages.label_smoothing)
    _check_labels(tiny, loss, train, validation_data)
    if metrics is None and len(tiny.outputs) == 1:
        metrics = ["accuracy"]
    finetuner = _finetuner(
        tiny,
        stages,
        teacher,
        optimizer=lambda: _with_rate(optimizer, stages.learning_rate(data.steps), stages.momentum),
        loss=loss,
        loss_weights=loss_weights,
        metrics=metrics,
        weighted_metrics=weighted_metrics,
        run_eagerly=run_eagerly,
        steps_per_execution=steps_per_execution,
        jit_compile=jit_compile,
    )
    state = _state(workdir, finetuner, {"steps": data.steps, "seed": seed})
    if state.restore():
        data.skip_to(state.progress.passes)
    else:
        begin(tiny, stages, seed)
    if not state.progress.finished:
        build_metrics(finetuner, tiny, data.dataset.element_spec)
        run = _Run(finetuner, data, state, list(callbacks), verbose)
        run.all_stages(
            validation_data=validation_data,
            class_weight=class_weight,
            validation_steps=validation_steps,
            validation_freq=validation_freq,
        )
    tiny.compile("sgd", loss, loss_weights, metrics, jit_compile=False)
    return history_of(tiny, state.progress.logs)


def _finetuner(
    tiny: keras.Model,
    stages: Stages,
    teacher: keras.Model | None,
    optimizer: Callable[[], keras.optimizers.Optimizer],
    **of_compile: Any,
) -> Finetuner:
    for layer in kernel_layers(tiny):
        layer.weight_training = WeightTraining(
            stages.pruned_gradient, min(stages.alphas) < 1, stages.clip_unquantized
        )
    with tiny.distribute_strategy.scope():
        finetuner = Finetuner(tiny, stages, teacher)
        ranges = keras.optimizers.Adam(stages.range_learning_rate, name="range_adam")
        finetuner.compile(optimizer(), range_optimizer=ranges, **of_compile)
    return finetuner


def _state(workdir: Any, finetuner: Finetuner, also: dict[str, int]) -> TrainingState:
    """All that a run needs to go on; it is only gone on with under the same plan."""
    variables = {
        "network": state_of(finetuner.network),
        "optimizer": finetuner.optimizer.variables,
        "range_optimizer": finetuner.range_optimizer.variables,
    }
    plan = {**dataclasses.asdict(finetuner.stages), **also}
    return TrainingState(workdir, "finetune", variables, plan=plan)


def _check(tiny: keras.Model, teacher: keras.Model | None, loss: Any) -> None:
    """Raises if this is no network to finetune, or not with this teacher or loss."""
    if not kernel_layers(tiny):
        raise ValueError(
            "The model has no quantized layers: finetune what `Architecture.build()` made. "
            f"Received: {tiny} with layers {[layer.name for layer in tiny.layers]}"
        )
    if teacher is not None:
        check_teacher(teacher, tiny)
    if loss is None and len(tiny.outputs) > 1:
        raise ValueError(
            "A network of several outputs needs a `loss` for them, as in keras.Model.compile. "
            f"Received: loss=None for {len(tiny.outputs)} outputs"
        )


def _split(train: Any, share: float) -> tuple[tuple, tuple]:
    """The parts to train on and to validate on."""
    if not isinstance(train, (tuple, list)) or not training_data.is_arrays(tuple(train)):
        raise ValueError(
            "`validation_split` splits arrays; give `validation_data` with anything else. "
            f"Received: training data of {type(train)}"
        )
    if not 0 < share < 1:
        raise ValueError(f"`validation_split` must be between 0 and 1. Received: {share!r}")
    return training_data.split_off(training_data.checked_arrays(*train), share)


def _check_labels(tiny: keras.Model, loss: Any, *data: Any) -> None:
    for part in data:
        if isinstance(part, (tuple, list)) and len(part) > 1:
            training_data.check_class_numbers(part[1], loss, tiny)


def weight_norm(network: keras.Model) -> float:
    """The sum of the squared weights of all kernels."""
    kernels = (keras.ops.convert_to_numpy(layer.theta) for layer in kernel_layers(network))
    return float(sum(np.sum(np.square(k, dtype=np.float64)) for k in kernels))


class _Run:
    """The stages of one run, from wherever its state is."""

    def __init__(
        self,
        finetuner: Finetuner,
        data: EpochData,
        state: TrainingState,
        callbacks: Sequence[keras.callbacks.Callback],
        verbose: int | str,
    ):
        self._finetuner, self._network = finetuner, finetuner.network
        self._stages: Stages = finetuner.stages
        self._data, self._state = data, state
        self._callbacks, self._verbose = callbacks, verbose
        self._settled = state.progress.epochs > self._stages.boundaries[1]

    def all_stages(self, **of_fit: Any) -> None:
        """Goes through what is left of the stages; the arguments are for `keras.Model.fit`."""
        previous = 0
        for stage, end in enumerate(self._stages.boundaries, start=1):
            if self._state.progress.epochs <= previous:
                self._take_averages()
                self._enter(stage)
            if stage < 3:
                self._fit(end, **of_fit)
            else:
                quantizers = activation_quantizers(self._network)
                with frozen_statistics(self._network), held(quantizers), self._undisturbed():
                    self._fit(end, **of_fit)
            previous = end
            if self._state.progress.stopped:
                # A callback asked to stop: what is left is to make the network deployable.
                break
        self._finish()

    def _undisturbed(self) -> contextlib.AbstractContextManager[None]:
        """What was fitted without dropout is kept without it."""
        kept = self._stages.start == "kept"
        return without_dropout(self._network) if kept else contextlib.nullcontext()

    def _take_averages(self) -> None:
        """Keras does at the end of a fit; but the state is kept before, and a run may be cut."""
        if self._state.progress.epochs:
            self._finetuner.take_averages()

    def _enter(self, stage: int) -> None:
        for layer in kernel_layers(self._network):
            layer.alpha.assign(self._stages.alphas[stage - 1])
        if stage >= 2:
            for quantizer in activation_quantizers(self._network):
                quantizer.enabled.assign(1.0)
        if stage == 3:
            self._settle()

    def _settle(self) -> None:
        """Fixes masks, statistics and ranges."""
        self._settled = True
        if self._stages.start == "kept":
            return
        refresh_masks(self._network, 1.0, self._stages)
        if self._stages.calibration_batches:
            recalibrate(self._network, self._data.inputs(self._stages.calibration_batches))
        for quantizer in activation_quantizers(self._network):
            quantizer.tracking.assign(0.0)

    def _finish(self) -> None:
        self._take_averages()
        if not self._settled:
            self._enter(3)
        for layer in kernel_layers(self._network):
            layer.alpha.assign(1.0)
        make_biases_whole(self._network)
        match_double_rounding(self._network)
        self._state.progress.finished = True
        self._state.save()

    def _fit(self, end: int, **of_fit: Any) -> None:
        done = self._state.progress.epochs
        if done >= end or self._state.progress.stopped:
            return
        # In stage 3 fewer variables are trained, which the step before it does not know.
        self._finetuner.make_train_function(force=self._stages.stage_of(done) == 3)
        passes = _Passes(self._stages, self._network, self._data)
        pruning = AnnealedPruning(self._stages, self._network, self._data.steps)
        keep = KeepState(self._state, passes=lambda: self._data.passed)
        replicas = self._finetuner.distribute_strategy.num_replicas_in_sync
        network = self._network
        computed = computing_in(network, keras.config.dtype_policy())
        with told_briefly(), computed, batch_norm.fused(network):
            self._finetuner.fit(
                training_data.for_replicas(self._data.dataset, replicas),
                initial_epoch=done,
                epochs=end,
                callbacks=[passes, pruning, *self._callbacks, EndsWhenNotFinite(), keep],
                verbose=self._verbose,
                shuffle=False,  # `EpochData` does
                **of_fit,
            )


class _Passes(keras.callbacks.Callback):
    """Begins the passes over the data, and logs the stage and the weight norm."""

    def __init__(self, stages: Stages, network: keras.Model, data: EpochData):
        super().__init__()
        self._stages, self._network, self._data = stages, network, data

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._data.begin_pass()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._agree_on_statistics()

    def _agree_on_statistics(self) -> None:
        """Every replica has batch-norm statistics of its own part of the data."""
        statistics = [
            v
            for bn in batch_norm_layers(self._network)
            for v in (bn.moving_mean, bn.moving_variance)
        ]
        workers.average_over_replicas(self._network.distribute_strategy, statistics)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._agree_on_statistics()
        if logs is not None:
            logs["weight_norm"] = weight_norm(self._network)
            logs["stage"] = self._stages.stage_of(epoch)


def _with_rate(
    optimizer: keras.optimizers.Optimizer | None,
    schedule: keras.optimizers.schedules.LearningRateSchedule,
    momentum: float,
) -> keras.optimizers.Optimizer:
    if optimizer is None:
        return keras.optimizers.SGD(schedule, momentum=momentum)
    optimizer = keras.optimizers.get(optimizer)
    return type(optimizer).from_config({**optimizer.get_config(), "learning_rate": schedule})
