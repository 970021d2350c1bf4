"""Small networks of the kinds that the search has to take."""

import keras
import numpy as np
from keras import layers as kl


def _convolution(x, filters, size=3, strides=1, activate=True):
    x = kl.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    x = kl.BatchNormalization()(x)
    return kl.ReLU()(x) if activate else x


def resnet(image=16, filters=(8, 8, 16, 32), classes=10) -> keras.Model:
    """ResNet8's shape: three residual blocks."""
    inputs = keras.Input((image, image, 3))
    x = _convolution(inputs, filters[0])
    for width, strides in zip(filters[1:], (1, 2, 2), strict=True):
        same = strides == 1 and x.shape[-1] == width
        skip = x if same else _convolution(x, width, 1, strides, activate=False)
        x = _convolution(_convolution(x, width, strides=strides), width, activate=False)
        x = kl.ReLU()(kl.Add()([x, skip]))
    return keras.Model(inputs, kl.Dense(classes)(kl.GlobalAveragePooling2D()(x)), name="resnet")


def separable() -> keras.Model:
    """Depthwise-separable, in both of Keras' ways, with a depth multiplier and dilation."""
    inputs = keras.Input((16, 16, 2))
    x = kl.SeparableConv2D(8, 3, padding="same", depth_multiplier=2, activation="relu")(inputs)
    x = kl.DepthwiseConv2D(3, strides=2, padding="same", depth_multiplier=2, use_bias=False)(x)
    x = kl.ReLU(6.0)(kl.BatchNormalization()(x))
    x = kl.Conv2D(12, 3, dilation_rate=2, activation="swish")(x)
    x = kl.Dropout(0.1)(kl.Flatten()(x))
    return keras.Model(inputs, kl.Dense(4, activation="softmax")(x), name="separable")


def u_net() -> keras.Model:
    """Concatenated skips, transposed convolution, upsampling, padding and cropping."""
    inputs = keras.Input((16, 16, 3))
    a = _convolution(kl.Rescaling(2.0, -1.0)(inputs), 8)
    b = _convolution(kl.MaxPooling2D()(a), 16)
    c = _convolution(kl.AveragePooling2D(2)(b), 16)
    up = kl.Conv2DTranspose(8, 2, strides=2, padding="same")(c)
    d = _convolution(kl.Concatenate()([up, b]), 12)
    up = kl.Cropping2D(1)(kl.ZeroPadding2D(1)(kl.UpSampling2D()(d)))
    e = _convolution(kl.Concatenate()([up, a]), 6)
    return keras.Model(inputs, kl.Conv2D(2, 1)(e), name="u_net")


def autoencoder(inputs=24, hidden=16, code=4) -> keras.Model:
    """Dense all through."""
    x = first = keras.Input((inputs,))
    for units in (hidden, hidden, code, hidden):
        x = kl.ReLU()(kl.BatchNormalization()(kl.Dense(units)(x)))
    return keras.Model(first, kl.Dense(inputs)(x), name="autoencoder")


def small_cnn(classes=4) -> keras.Model:
    """The smallest that still has two width groups."""
    inputs = keras.Input((8, 8, 1))
    x = _convolution(inputs, 8)
    x = _convolution(x, 16, strides=2)
    return keras.Model(inputs, kl.Dense(classes)(kl.GlobalAveragePooling2D()(x)), name="small_cnn")


def randomized(model: keras.Model, seed: int = 0) -> keras.Model:
    """Fills batch norms with statistics that no slip could leave unnoticed."""
    rng = np.random.default_rng(seed)
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            randomized(layer, seed)
        elif isinstance(layer, kl.BatchNormalization):
            for variable in layer.weights:
                low = 0.5 if "gamma" in variable.name or "variance" in variable.name else -0.5
                variable.assign(rng.uniform(low, low + 1.0, variable.shape))
    return model


def normal(*shape: int, count: int = 8, seed: int = 1) -> np.ndarray:
    """Normally distributed inputs of a shape."""
    return np.random.default_rng(seed).normal(size=(count, *shape)).astype("float32")


def images(model: keras.Model, count: int = 4, seed: int = 0) -> np.ndarray:
    """Inputs that fit the model."""
    return normal(*model.input_shape[1:], count=count, seed=seed)


def blobs(count: int = 256, classes: int = 4, seed: int = 0):
    """A task that the smallest network learns in seconds: where the bright spot is."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    x = rng.normal(scale=0.4, size=(count, 8, 8, 1)).astype("float32")
    for image, label in zip(x, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1.0
    return x, labels


def cross_entropy() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
