"""What a network begins finetuning with: its weights, and everything that stages change."""

import keras
import numpy as np

from udc_tf.finetune.pruning import refresh_masks
from udc_tf.finetune.rescaling import restore_norms
from udc_tf.finetune.stages import Stages
from udc_tf.layers.inventory import activation_quantizers, kernel_layers
from udc_tf.training.batch_norm import batch_norm_layers
from udc_tf.training.seeding import drawn, seed_for, seed_random_layers


def begin(network: keras.Model, stages: Stages, seed: int = 0) -> None:
    """Sets a network to where stage 1 begins, with weights as `Stages.start` says."""
    seed_random_layers(network, seed)
    if stages.start == "kept":
        _check_settled(network)
        return
    if stages.start == "fresh":
        reinitialize(network, seed)
    else:
        restore_norms(network, seed)
    prepare(network)
    refresh_masks(network, 0.0, stages)
    for layer in kernel_layers(network):
        layer.fit_range()


def _check_settled(network: keras.Model) -> None:
    unsettled = [q.name for q in activation_quantizers(network) if not q.is_rounding]
    if unsettled:
        raise ValueError(
            "start='kept' is for a network from udc_tf.compress or an earlier finetuning; here are "
            f"activations with no ranges yet: use Stages(epochs=...). Received: {unsettled[0]}"
        )


def reinitialize(network: keras.Model, seed: int = 0) -> None:
    """Gives kernels, biases and batch norms the values that a network begins with."""
    for layer in kernel_layers(network):
        of_kernel, of_bias = (seed_for(seed, f"{layer.name}/{v}") for v in ("kernel", "bias"))
        layer.theta.assign(drawn(layer.kernel_initializer, layer.theta.shape, of_kernel))
        if layer.bias is not None:
            layer.bias.assign(drawn(layer.bias_initializer, layer.bias.shape, of_bias))
    for bn in batch_norm_layers(network):
        for name in ("gamma", "beta", "moving_mean", "moving_variance"):
            variable = getattr(bn, name, None)
            if variable is not None:
                one = name in ("gamma", "moving_variance")
                variable.assign(np.full(variable.shape, float(one), "float32"))


def prepare(network: keras.Model) -> None:
    """Unpruned, in the plain format, with ranges that fit the weights as they are."""
    for layer in kernel_layers(network):
        layer.mask.assign(np.ones(layer.mask.shape, "float32"))
        layer.initialize_range()
        layer.deployed.assign(1.0)
    for quantizer in activation_quantizers(network):
        quantizer.enabled.assign(0.0)
        quantizer.tracking.assign(1.0)
        quantizer.seen.assign(0.0)
        quantizer.round_once()
