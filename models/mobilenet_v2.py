"""MobileNetV2: the UDC paper's network for ImageNet."""

import keras
from keras import layers

from udc_tf.layers.choice import Choice
from udc_tf.models.blocks import classifier, conv_bn, depthwise_bn, whole_channels

# Expansion, output channels, repetitions, stride of the first.
_GROUPS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(
    input_shape: tuple[int, ...] = (224, 224, 3),
    classes: int = 1000,
    alpha: float = 1.0,
    kernel_size: int = 3,
    operators: bool = False,
    softmax: bool = False,
) -> keras.Model:
    """MobileNetV2.

    Args:
        input_shape: of one image.
        classes: how many logits.
        alpha: multiplies the channels of every layer.
        kernel_size: of the depthwise convolutions and the first layer.
        operators: whether each block whose shape allows it becomes a `udc_tf.Choice` between the
            inverted bottleneck, one plain convolution, and nothing, as in the paper's experiment
            with depth and operators.
        softmax: probabilities instead of logits.

    Example:

    >>> mobilenet_v2((32, 32, 3), classes=10, alpha=0.35).output_shape
    (None, 10)
    """
    inputs = keras.Input(input_shape, name="image")
    x = conv_bn(inputs, whole_channels(32, alpha), kernel_size, "stem", 2, max_value=6.0)
    number = 0
    for expansion, channels, repetitions, strides in _GROUPS:
        for repetition in range(repetitions):
            number += 1
            block = _Block(
                whole_channels(channels, alpha),
                expansion,
                strides if repetition == 0 else 1,
                kernel_size,
                f"block{number}",
            )
            keeps_shape = block.strides == 1 and x.shape[-1] == block.filters
            x = block.choice(x) if operators and keeps_shape else block(x)
    x = conv_bn(x, whole_channels(1280, max(1.0, alpha)), 1, "last", max_value=6.0)
    return keras.Model(inputs, classifier(x, classes, softmax), name="mobilenet_v2")


def mobilenet_v2_wide(
    input_shape: tuple[int, ...] = (224, 224, 3), classes: int = 1000, softmax: bool = False
) -> keras.Model:
    """MobileNetV2 with 5x5 kernels and 1.5 times the channels (the paper's 1.25 MB experiment).

    Example:

    >>> mobilenet_v2_wide((32, 32, 3), 10).get_layer("block2_depthwise").kernel_size
    (5, 5)
    """
    return mobilenet_v2(input_shape, classes, alpha=1.5, kernel_size=5, softmax=softmax)


class _Block:
    """An inverted bottleneck: expand, filter each channel, project."""

    def __init__(self, filters: int, expansion: int, strides: int, kernel_size: int, name: str):
        self.filters, self.expansion, self.strides = filters, expansion, strides
        self.kernel_size, self.name = kernel_size, name

    def __call__(self, x: keras.KerasTensor) -> keras.KerasTensor:
        y = x
        if self.expansion > 1:
            channels = self.expansion * x.shape[-1]
            y = conv_bn(y, channels, 1, f"{self.name}_expand", max_value=6.0)
        y = depthwise_bn(y, self.kernel_size, f"{self.name}_depthwise", self.strides, 6.0)
        y = conv_bn(y, self.filters, 1, f"{self.name}_project", relu=False)
        if self.strides > 1 or x.shape[-1] != self.filters:
            return y
        return layers.Add(name=f"{self.name}_add")([x, y])

    def choice(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """This block, one plain convolution in its place, or neither."""
        inside = keras.Input(x.shape[1:])
        bottleneck = keras.Model(inside, self(inside), name=f"{self.name}_bottleneck")
        inside = keras.Input(x.shape[1:])
        plain = conv_bn(inside, self.filters, 3, f"{self.name}_conv", relu=False)
        plain = keras.Model(inside, plain, name=f"{self.name}_plain")
        nothing = layers.Identity(name=f"{self.name}_nothing")
        return Choice([bottleneck, plain, nothing], name=self.name)(x)
