"""Which of this package's layers a compact network has."""

import keras

from udc_tf.layers.activation_quantizer import ActivationQuantizer
from udc_tf.layers.compact_kernels import CompactKernel


def kernel_layers(network: keras.Model) -> list[CompactKernel]:
    """The layers with quantized, pruned weights."""
    return [layer for layer in network.layers if isinstance(layer, CompactKernel)]


def activation_quantizers(network: keras.Model) -> list[ActivationQuantizer]:
    return [layer for layer in network.layers if isinstance(layer, ActivationQuantizer)]
