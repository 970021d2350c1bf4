"""A network for super resolution in the manner of FSRCNN, with searched depth and kernels."""

import keras
from keras import layers

from udc_tf.layers.choice import Choice

# Without batch norm, Keras' default would let the signal fade from layer to layer.
_INITIALIZER = "he_normal"


def fsrcnn(
    input_shape: tuple[int, ...] = (64, 64, 1),
    features: int = 56,
    mapping: int = 12,
    depth: int = 4,
    kernel_size: int = 5,
    search_depth: bool = True,
) -> keras.Model:
    """Enlarges the brightness of an image four times.

    Features are extracted, shrunk, mapped, expanded and enlarged, all on the small image until the
    end. Where FSRCNN has one transposed convolution of stride 4, there are two of stride 2, the
    most an Ethos-U55 takes; and the network adds detail to the enlarged input instead of redrawing
    it, which makes it learn much faster.

    Args:
        input_shape: height, width, 1.
        features: channels of the extraction and of the expansion.
        mapping: channels in between.
        depth: mapping layers.
        kernel_size: of the mapping layers, the largest a search can choose.
        search_depth: whether each mapping layer after the first is a `udc_tf.Choice` between itself
            and nothing.

    Example:

    >>> fsrcnn((16, 16, 1)).output_shape
    (None, 64, 64, 1)
    """
    inputs = keras.Input(input_shape, name="image")
    x = _conv(inputs, features, 5, "extract")
    shrunk = x = layers.Conv2D(mapping, 1, kernel_initializer=_INITIALIZER, name="shrink")(x)
    for number in range(1, depth + 1):
        x = _mapping(mapping, kernel_size, number, search_depth and number > 1)(x)
    # Around the mapping: without it, narrow layers of ReLU die before they have learned anything.
    x = layers.Add(name="around")([x, shrunk])
    x = _conv(x, features, 1, "expand")
    x = layers.Conv2DTranspose(
        mapping, 4, strides=2, padding="same", kernel_initializer=_INITIALIZER, name="enlarge1"
    )(x)
    x = layers.ReLU(name="enlarge1_relu")(x)
    x = layers.Conv2DTranspose(1, 4, strides=2, padding="same", name="enlarge2")(x)
    base = layers.UpSampling2D(2, interpolation="nearest", name="base1")(inputs)
    base = layers.UpSampling2D(2, interpolation="nearest", name="base2")(base)
    return keras.Model(inputs, layers.Add(name="sum")([x, base]), name="fsrcnn")


def _mapping(filters: int, kernel_size: int, number: int, optional: bool) -> keras.layers.Layer:
    layer = layers.Conv2D(
        filters,
        kernel_size,
        padding="same",
        activation="relu",
        kernel_initializer=_INITIALIZER,
        name=f"map{number}",
    )
    if not optional:
        return layer
    return Choice([layer, layers.Identity(name=f"no_map{number}")], name=f"depth{number}")


def _conv(x: keras.KerasTensor, filters: int, kernel_size: int, name: str) -> keras.KerasTensor:
    x = layers.Conv2D(
        filters, kernel_size, padding="same", kernel_initializer=_INITIALIZER, name=name
    )(x)
    return layers.ReLU(name=f"{name}_relu")(x)
