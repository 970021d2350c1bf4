"""MobileNetV1: at width 0.25 MLPerf Tiny's network for visual wake words."""

import keras

from udc_tf.models.blocks import classifier, conv_bn, depthwise_bn, whole_channels

# Output channels and stride of each depthwise separable block.
_BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *((512, 1),) * 5,
    (1024, 2),
    (1024, 1),
)


def mobilenet_v1(
    input_shape: tuple[int, ...] = (96, 96, 3),
    classes: int = 2,
    alpha: float = 0.25,
    softmax: bool = False,
) -> keras.Model:
    """MobileNetV1.

    Args:
        input_shape: of one image.
        classes: how many logits.
        alpha: multiplies the channels of every layer.
        softmax: probabilities instead of logits.

    Example:

    >>> mobilenet_v1().get_layer("block13_pointwise").filters
    256
    """
    inputs = keras.Input(input_shape, name="image")
    x = conv_bn(inputs, whole_channels(32, alpha), 3, "stem", strides=2)
    for number, (channels, strides) in enumerate(_BLOCKS, start=1):
        x = depthwise_bn(x, 3, f"block{number}_depthwise", strides)
        x = conv_bn(x, whole_channels(channels, alpha), 1, f"block{number}_pointwise")
    return keras.Model(inputs, classifier(x, classes, softmax), name="mobilenet_v1")
