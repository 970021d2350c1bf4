"""A small convolutional network, for the embedded data and for first steps."""

import keras

from udc_tf.models.blocks import classifier, conv_bn


def small_cnn(
    input_shape: tuple[int, ...] = (8, 8, 1),
    classes: int = 10,
    filters: tuple[int, ...] = (32, 48, 64),
    softmax: bool = False,
) -> keras.Model:
    """Convolutions one after the other, each after the first halving the image.

    Args:
        input_shape: of one image.
        classes: how many logits.
        filters: channels of each convolution.
        softmax: probabilities instead of logits.

    Example:

    >>> small_cnn((28, 28, 1)).output_shape
    (None, 10)
    """
    inputs = keras.Input(input_shape, name="image")
    x = inputs
    for number, channels in enumerate(filters, start=1):
        x = conv_bn(x, channels, 3, f"conv{number}", strides=1 if number == 1 else 2)
    return keras.Model(inputs, classifier(x, classes, softmax), name="small_cnn")
