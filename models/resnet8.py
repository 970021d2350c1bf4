"""ResNet8: MLPerf Tiny's network for image classification (CIFAR-10)."""

import keras
from keras import layers

from udc_tf.models.blocks import classifier, conv_bn


def resnet8(
    input_shape: tuple[int, ...] = (32, 32, 3),
    classes: int = 10,
    filters: tuple[int, ...] = (16, 32, 64),
    softmax: bool = False,
) -> keras.Model:
    """Three residual blocks; 78 thousand weights at its original size.

    Args:
        input_shape: of one image.
        classes: how many logits.
        filters: channels of the three blocks.
        softmax: probabilities instead of logits.

    Example:

    >>> resnet8((28, 28, 1)).output_shape
    (None, 10)
    """
    inputs = keras.Input(input_shape, name="image")
    x = conv_bn(inputs, filters[0], 3, "stem")
    for number, channels in enumerate(filters, start=1):
        x = _block(x, channels, 1 if number == 1 else 2, f"block{number}")
    return keras.Model(inputs, classifier(x, classes, softmax), name="resnet8")


def _block(x: keras.KerasTensor, filters: int, strides: int, name: str) -> keras.KerasTensor:
    y = conv_bn(x, filters, 3, f"{name}_conv1", strides)
    y = conv_bn(y, filters, 3, f"{name}_conv2", relu=False)
    if strides > 1 or x.shape[-1] != filters:
        x = layers.Conv2D(filters, 1, strides=strides, padding="same", name=f"{name}_shortcut")(x)
    return layers.ReLU(name=f"{name}_relu")(layers.Add(name=f"{name}_add")([x, y]))
