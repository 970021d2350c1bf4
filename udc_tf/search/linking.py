"""Which decisions of a plan each layer's kernel follows."""

import numpy as np

from udc_tf.cost.priced_network import Plan, PricedLayer
from udc_tf.graph.channel_groups import ChannelMap
from udc_tf.layers.links import KernelLinks, MaskLink


def link_layer(plan: Plan, layer: PricedLayer, options: int) -> KernelLinks:
    """The links of one layer; `options` is the width of the padded matrix of decisions."""
    return KernelLinks(
        bits=plan.decision_index("bits", layer.name),
        sparsity=plan.decision_index("sparsity", layer.name),
        inputs=None if layer.inputs is None else _channel_link(plan, layer.inputs, options),
        outputs=_channel_link(plan, layer.outputs, options),
        window=_window_link(plan, layer, options),
    )


def _channel_link(plan: Plan, channels: ChannelMap, options: int) -> MaskLink:
    constant = np.ones(len(channels), np.float32)
    rows, blocks = [], []
    for g in plan.group_of(channels):
        counts = plan.widths.get(g)
        if counts is None:
            continue
        here = channels.group == g
        decision = plan.decision_index("width", plan.groups[g].name)
        if decision is None:
            constant[here] = channels.index[here] < counts[0]
            continue
        constant[here] = 0.0
        block = np.zeros((options, len(channels)), np.float32)
        for k, n in enumerate(counts):
            block[k] = here & (channels.index < n)
        rows.append(decision)
        blocks.append(block)
    matrix = np.concatenate(blocks) if blocks else np.zeros((0, len(channels)), np.float32)
    return MaskLink(constant, tuple(rows), matrix)


def _window_link(plan: Plan, layer: PricedLayer, options: int) -> MaskLink | None:
    kernels = layer.options.kernels
    if kernels is None:
        return None
    full, rank = layer.kernel_size[0], len(layer.kernel_size)
    windows = np.zeros((options, *layer.kernel_size), np.float32)
    for k, size in enumerate(kernels):
        start = (full - size) // 2
        window = (slice(start, start + size),) * rank
        windows[k][window] = 1.0
    flat = windows.reshape(options, -1)
    decision = plan.decision_index("kernel", layer.name)
    if decision is None:
        return MaskLink(flat[0], (), flat[:0])
    return MaskLink(np.zeros(layer.taps, np.float32), (decision,), flat)
