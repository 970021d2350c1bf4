"""Wide residual network 20-10: the UDC paper's network for CIFAR-100."""

import keras
from keras import layers

from udc_tf.models.blocks import classifier, norm_relu


def wide_resnet(
    input_shape: tuple[int, ...] = (32, 32, 3),
    classes: int = 100,
    blocks: int = 3,
    multiplier: int = 10,
    dropout: float = 0.0,
    softmax: bool = False,
) -> keras.Model:
    """Pre-activation residual network of depth 6 * blocks + 2.

    Depth is counted as McDonnell (2018) does: the first convolution, two per block, the classifier.

    Args:
        input_shape: of one image.
        classes: how many logits.
        blocks: in each of the three groups.
        multiplier: channels are 16, 32 and 64 times this.
        dropout: before the classifier.
        softmax: probabilities instead of logits.

    Example:

    >>> wide_resnet(multiplier=1, blocks=1).output_shape
    (None, 100)
    """
    inputs = keras.Input(input_shape, name="image")
    x = _conv(inputs, 16 * multiplier, 3, 1, "stem")
    for group, channels in enumerate((16, 32, 64), start=1):
        for number in range(1, blocks + 1):
            strides = 2 if group > 1 and number == 1 else 1
            x = _block(x, channels * multiplier, strides, f"group{group}_block{number}")
    x = norm_relu(x, "last")
    name = f"wide_resnet_{6 * blocks + 2}_{multiplier}"
    return keras.Model(inputs, classifier(x, classes, softmax, dropout), name=name)


def _block(x: keras.KerasTensor, filters: int, strides: int, name: str) -> keras.KerasTensor:
    y = norm_relu(x, f"{name}_before")
    # The shortcut of a changing shape starts behind the activation, as in the original.
    if strides > 1 or x.shape[-1] != filters:
        x = _conv(y, filters, 1, strides, f"{name}_shortcut")
    y = norm_relu(_conv(y, filters, 3, strides, f"{name}_conv1"), f"{name}_conv1")
    y = _conv(y, filters, 3, 1, f"{name}_conv2")
    return layers.Add(name=f"{name}_add")([x, y])


def _conv(
    x: keras.KerasTensor, filters: int, kernel_size: int, strides: int, name: str
) -> keras.KerasTensor:
    return layers.Conv2D(
        filters, kernel_size, strides=strides, padding="same", use_bias=False, name=name
    )(x)
