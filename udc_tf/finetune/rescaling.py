"""Weights of the size they began with, in front of batch norms.

A batch norm undoes the scale of the kernel before it, but the learning rate does not: a kernel
twice as large turns a quarter as far in a step. Noisy training makes such kernels grow, a search
two- to threefold in a few epochs; what inherits its weights would then learn more slowly than what
starts afresh (van Laarhoven, arXiv:1706.05350, describes the effect).
"""

import math

import keras
import numpy as np

from udc_tf.graph.folds import folds
from udc_tf.layers.kernels import KernelLayer
from udc_tf.training.seeding import drawn, seed_for

_WEIGHTS = 4096  # whose size is known to a percent


def restore_norms(network: keras.Model, seed: int = 0) -> dict[str, float]:
    """Scales every kernel that a batch norm follows to the size of a fresh one.

    Biases and statistics are scaled along, so that the network computes what it did, but for the
    epsilon of the batch norms. Ranges of quantizers do not follow.

    Args:
        network: is changed in place.
        seed: of the fresh kernels.

    Returns:
        Layer -> factor.

    Example:

    >>> from udc_tf import UDCDense
    >>> dense, bn = UDCDense(40, name="dense"), keras.layers.BatchNormalization()
    >>> model = keras.Sequential([keras.Input((50,)), dense, bn])
    >>> _ = dense.theta.assign(5 * dense.theta)
    >>> {name: round(factor, 1) for name, factor in restore_norms(model).items()}
    {'dense': 0.2}
    """
    factors = {}
    for fold in folds(network):
        kernel, bn = fold.kernel, fold.batch_norm
        if bn is None:
            continue
        size = _root_mean_square(kernel.theta)
        fresh = _fresh_size(kernel, seed)
        if not (size > 0 and fresh > 0):
            continue
        factors[kernel.name] = factor = fresh / size
        scaled = [(kernel.theta, factor), (bn.moving_mean, factor), (bn.moving_variance, factor**2)]
        if kernel.bias is not None:
            scaled.append((kernel.bias, factor))
        for variable, by in scaled:
            variable.assign(variable * by)
    return factors


def _fresh_size(kernel: KernelLayer, seed: int) -> float:
    """The size of a fresh kernel, over so many that chance hardly counts."""
    shape = kernel.theta.shape
    seeds = [seed_for(seed, f"{kernel.name}/{i}") for i in range(-(-_WEIGHTS // math.prod(shape)))]
    return _root_mean_square(
        np.stack([drawn(kernel.kernel_initializer, shape, own) for own in seeds])
    )


def _root_mean_square(weights: np.ndarray | keras.Variable) -> float:
    return float(np.sqrt(np.mean(np.square(keras.ops.convert_to_numpy(weights)))))
