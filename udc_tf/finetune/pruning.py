"""Stage 2: pruning annealed from nothing to each layer's rate, masks following the weights."""

from typing import Any

import keras

from udc_tf.finetune.stages import Stages
from udc_tf.layers.inventory import kernel_layers


def refresh_masks(network: keras.Model, share: float, stages: Stages) -> None:
    """Prunes `share` of each layer's target rate, the smallest weights as they are now.

    Inherited weights of one bit are pruned all at once. One bit makes large what is small: weights
    that the search had pruned would come back as large as the others, and drown them.
    """
    for layer in kernel_layers(network):
        at_once = stages.start == "inherited" and layer.deployed_bits == 1
        nonzeros = 1 - (1.0 if at_once else share) * (1 - layer.nonzeros)
        layer.refresh_mask(nonzeros, shifted=stages.number_format == "shifted" and nonzeros < 1)


def fit_ranges(network: keras.Model) -> None:
    """Moves the weights' ranges half the way to what fits best; a smooth course of small steps."""
    for layer in kernel_layers(network):
        layer.fit_range(share=0.5)


class AnnealedPruning(keras.callbacks.Callback):
    """Lets masks (in stage 2) and ranges (in stages 1 and 2) follow the weights.

    How much is pruned at a step is `Stages.pruned_share`. In stage 3 both stand still.
    """

    def __init__(self, stages: Stages, network: keras.Model, steps_per_epoch: int):
        super().__init__()
        self._stages, self._network, self._steps = stages, network, steps_per_epoch
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        stage, step = self._stages.stage_of(self._epoch), self._epoch * self._steps + batch
        # Of several steps that are executed at once, the one that asks for it may be any.
        if stage == 3 or -step % self._stages.refresh_every >= self.model.steps_per_execution:
            return
        if stage == 2:
            share = self._stages.pruned_share(step / self._steps)
            refresh_masks(self._network, share, self._stages)
        if self._stages.ranges == "fitted":
            fit_ranges(self._network)
