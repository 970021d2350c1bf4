"""The kernels of many layers at once: layers with the same options share their operations.

A layer's kernels take some two hundred operations, gradients included. Small networks have many
small layers, for which making and starting so many is more than the numbers in them. So layers with
the same options and about as many weights are stacked, zeros behind the shorter ones.
"""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from udc_tf.layers.mixture import mixed_kernels
from udc_tf.quantize import masks
from udc_tf.quantize.quantizers import FLOAT_BITS

if TYPE_CHECKING:
    from udc_tf.layers.searchable_kernels import SearchableKernel

# Larger layers are slow by themselves, and stacks of them would fall out of the processor's cache.
_MOST_WEIGHTS = 2**16  # of a stack
_LIKE = 0.75  # of the largest layer's weights, which the smallest in its stack has at least,
_FEW = 1024  # unless there are no more than this


def kernels_of_layers(layers: Sequence["SearchableKernel"], z: tf.Tensor) -> list[list[tf.Tensor]]:
    """Of each layer the kernel under every sample z, [samples, decisions, options]."""
    samples = z.shape[0]
    by_decision = tf.transpose(z, [1, 0, 2])
    tails = masks.tail_sums(by_decision)
    kernels: list[list[tf.Tensor]] = [[]] * len(layers)
    sizes = [layer.theta.shape.num_elements() for layer in layers]
    for stack in stacks_of(sizes, [_options(layer) for layer in layers]):
        mixed = _mixed([layers[i] for i in stack], by_decision, tails)
        for i, of_layer in zip(stack, mixed, strict=True):
            scale = layers[i].channel_and_window_masks(z)
            shape = [samples, *layers[i].theta.shape]
            if of_layer.shape[0] != samples and scale is None:
                kernels[i] = [tf.reshape(of_layer, shape[1:])] * samples  # they are all the same
                continue
            of_layer = tf.reshape(of_layer, [of_layer.shape[0], *shape[1:]])
            kernels[i] = tf.unstack(of_layer if scale is None else of_layer * scale)
    return kernels


def stacks_of(weights: Sequence[int], options: Sequence[Hashable]) -> list[list[int]]:
    """Which layers, by their numbers, are computed together.

    >>> stacks_of([100, 90, 5000, 4000, 3000, 80], "aaaaab")
    [[2, 3], [4], [0, 1], [5]]
    """
    stacks: list[list[int]] = []
    order = sorted(range(len(weights)), key=lambda i: (str(options[i]), -weights[i]))
    for i in order:
        if stacks:
            first, room = stacks[-1][0], _MOST_WEIGHTS // (len(stacks[-1]) + 1)
            alike = weights[first] <= _FEW or weights[i] >= _LIKE * weights[first]
            if options[first] == options[i] and weights[first] <= room and alike:
                stacks[-1].append(i)
                continue
        stacks.append([i])
    return stacks


def padded(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """What is made vectors of, one below the other, filled up with zeros.

    >>> padded([tf.constant([1.0, 2.0]), tf.constant([[3.0]])]).numpy().tolist()
    [[1.0, 2.0], [3.0, 0.0]]
    """
    sizes = [v.shape.num_elements() for v in values]
    pieces = []
    for value, size in zip(values, sizes, strict=True):
        pieces.append(tf.reshape(value, [-1]))
        if size < max(sizes):
            pieces.append(tf.zeros([max(sizes) - size], value.dtype))
    return tf.reshape(tf.concat(pieces, axis=0), [len(sizes), max(sizes)])


def _options(layer: "SearchableKernel") -> Hashable:
    """What layers of a stack have in common."""
    links = layer.followed
    sparsities = None if layer.buckets is None else len(layer.options.sparsities or ())
    undecided = links.bits is None, links.sparsity is None
    return layer.log_ranges is None, layer.options.bits, sparsities, undecided


def _mixed(stack: Sequence["SearchableKernel"], z: tf.Tensor, tails: tf.Tensor) -> list[tf.Tensor]:
    """Of each layer [samples, weights], without the masks of channels and windows.

    Args:
        z: [decisions, samples, options].
        tails: their sums, [decisions, samples, options + 1].
    """
    first, count, samples = stack[0], len(stack), z.shape[1]
    bits: tuple[int, ...] = (FLOAT_BITS,)
    ranges = tf.ones([count, 1])
    if first.log_ranges is not None and first.options.bits is not None:
        bits = first.options.bits
        ranges = tf.exp(tf.stack([tf.convert_to_tensor(layer.log_ranges) for layer in stack]))
    links = [layer.followed for layer in stack]
    same = first.buckets is None and links[0].bits is None
    z_bits = tf.ones([count, 1 if same else samples, 1])
    if links[0].bits is not None:
        z_bits = tf.gather(z, [link.bits for link in links])[..., : len(bits)]
    buckets = of_buckets = None
    if first.buckets is not None:
        buckets = padded([tf.convert_to_tensor(layer.buckets) for layer in stack])
        of_buckets = masks.tail_sums(tf.ones([count, samples, 1]))
        if links[0].sparsity is not None:
            options = len(first.options.sparsities or ())
            of_buckets = tf.gather(tails, [link.sparsity for link in links])[..., : options + 1]
    theta = padded([tf.convert_to_tensor(layer.theta) for layer in stack])
    given = [theta, ranges, z_bits, buckets, of_buckets]
    if count == 1:
        given = [None if t is None else tf.squeeze(t, 0) for t in given]
    theta, ranges, z_bits, buckets, of_buckets = given
    mixed = mixed_kernels(
        theta,
        bits,
        ranges,
        z_bits,
        buckets=buckets,
        tails=of_buckets,
        pruned_gradient=first.pruned_gradient,
    )
    rows = tf.unstack(mixed) if count > 1 else [mixed]
    sizes = [layer.theta.shape.num_elements() for layer in stack]
    # A slice's gradient is a pad, which is faster than what brackets have.
    return [
        row if row.shape[1] == size else tf.slice(row, [0, 0], [-1, size])
        for row, size in zip(rows, sizes, strict=True)
    ]
