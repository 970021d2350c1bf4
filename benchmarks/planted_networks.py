"""The networks and data of `planted_variants`."""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
from keras import layers as kl

import udc_tf
from benchmarks.data import scaled_digits
from benchmarks.planted import IMAGES, classes, conv, digits_and_noise, shades, textures

_PARTS = ("signal", "noise")


def two_inputs(shape: tuple[int, ...]) -> list[keras.KerasTensor]:
    return [keras.Input(shape, name=name) for name in ("digit", "noise")]


def dense_towers() -> keras.Model:
    """Two perceptrons; one sees the digits, one noise."""
    inputs, ends = two_inputs((64,)), []
    for x, name in zip(inputs, _PARTS, strict=True):
        for i in range(2):
            x = kl.Dense(64, use_bias=False, name=f"{name}_{i}")(x)
            x = kl.ReLU()(kl.BatchNormalization(momentum=0.9)(x))
        ends.append(x)
    return keras.Model(inputs, classes(kl.Concatenate()(ends)))


def flat_digits_and_noise(rng: np.random.Generator) -> tuple:
    x, y = digits_and_noise(rng)
    return [part.reshape(len(part), -1) for part in x], y


def separable_towers() -> keras.Model:
    """Towers of depthwise and pointwise layers."""
    inputs, ends = two_inputs((8, 8, 1)), []
    for x, name in zip(inputs, _PARTS, strict=True):
        x = conv(x, 24, 3, f"{name}_0")
        for i, (filters, strides) in enumerate(((48, 2), (64, 1), (64, 1)), 1):
            x = kl.DepthwiseConv2D(3, strides, "same", use_bias=False, name=f"{name}_{i}_dw")(x)
            x = kl.ReLU()(kl.BatchNormalization(momentum=0.9)(x))
            x = conv(x, filters, 1, f"{name}_{i}_pw")
        ends.append(kl.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, classes(kl.Concatenate()(ends)))


def towers_1d() -> keras.Model:
    """Towers over time."""
    inputs, ends = two_inputs((64, 1)), []
    for x, name in zip(inputs, _PARTS, strict=True):
        for i, (filters, size, strides) in enumerate(((24, 5, 2), (32, 5, 2), (48, 3, 1))):
            x = kl.Conv1D(filters, size, strides, "same", use_bias=False, name=f"{name}_{i}")(x)
            x = kl.ReLU()(kl.BatchNormalization(momentum=0.9)(x))
        ends.append(kl.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, classes(kl.Concatenate()(ends), 4))


def unequal_towers(filters: Mapping[str, Sequence[int]]) -> keras.Model:
    """One tower per name, with its own numbers of filters; the first sees the digits."""
    inputs, ends = [keras.Input((8, 8, 1), name=f"{name}_input") for name in filters], []
    for x, (name, of_tower) in zip(inputs, filters.items(), strict=True):
        for i, count in enumerate(of_tower):
            x = conv(x, count, 3, f"{name}_{i}", strides=1 + i % 2)
        ends.append(kl.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, classes(kl.Concatenate()(ends)))


def digits_and_noises(rng: np.random.Generator) -> tuple:
    x, y = scaled_digits("train", IMAGES)
    return [x, *(rng.normal(size=x.shape).astype("float32") for _ in range(2))], y


def regression_towers() -> keras.Model:
    """Two perceptrons without batch norm; a target is computed from what one of them sees."""
    inputs, ends = two_inputs((32,)), []
    for x, name in zip(inputs, _PARTS, strict=True):
        for i in range(2):
            x = kl.Dense(64, activation="relu", name=f"{name}_{i}")(x)
        ends.append(x)
    return keras.Model(inputs, kl.Dense(4, name="values")(kl.Concatenate()(ends)))


def vectors_and_noise(rng: np.random.Generator) -> tuple:
    x, noise = (rng.normal(size=(IMAGES, 32)).astype("float32") for _ in range(2))
    teacher = np.random.default_rng(5)
    hidden = np.maximum(x @ (teacher.normal(size=(32, 24)) / 5), 0)
    return [x, noise], (hidden @ teacher.normal(size=(24, 4))).astype("float32")


def waves_and_noise(rng: np.random.Generator) -> tuple:
    """Four classes by frequency."""
    y = rng.integers(0, 4, IMAGES)
    phases = 2 * np.pi * (rng.random((IMAGES, 1)) + (y[:, None] + 1) * np.arange(64) / 32)
    x = np.sin(phases) + 0.7 * rng.normal(size=phases.shape)
    return [a[..., None].astype("float32") for a in (x, rng.normal(size=x.shape))], y


def digits_and_others(rng: np.random.Generator) -> tuple:
    """Beside each digit another one, which says nothing of it."""
    x, y = scaled_digits("train", IMAGES)
    return [x, x[rng.permutation(len(x))]], y


def digits_and_one_image(rng: np.random.Generator, is_blank: bool) -> tuple:
    """Beside each digit one and the same image: all ones, or noise."""
    x, y = scaled_digits("train", IMAGES)
    image = np.ones(x.shape[1:]) if is_blank else rng.normal(size=x.shape[1:])
    return [x, np.repeat(image[None].astype("float32"), len(x), axis=0)], y


def concatenated_branch() -> keras.Model:
    """A trunk with two branches behind it in one tensor; one is made from noise."""
    inputs = two_inputs((8, 8, 1))
    trunk, other = conv(inputs[0], 24, 3, "stem"), conv(inputs[1], 24, 3, "other_stem")
    ends = [
        conv(conv(x, 32, 3, f"{name}_1"), 24, 3, f"{name}_2")
        for x, name in zip((trunk, other), _PARTS, strict=True)
    ]
    x = conv(kl.Concatenate()([trunk, *ends]), 32, 1, "mix")
    return keras.Model(inputs, classes(kl.GlobalAveragePooling2D()(x)))


def bottleneck(narrow: int, wide: int, has_relu: bool, has_others: bool) -> keras.Model:
    """A layer of many channels made from few, alone or beside others."""
    x = inputs = keras.Input((8, 8, 1))
    x = kl.Conv2D(narrow, 3, padding="same", name="narrow")(x)
    x = conv(x, wide, 1, "wide") if has_relu else kl.Conv2D(wide, 1, name="wide")(x)
    x = conv(x, 32, 3, "behind", strides=2)
    if has_others:
        others = conv(conv(inputs, 24, 3, "useful_1"), 32, 3, "useful_2", strides=2)
        x = kl.Concatenate()([others, x])
    return keras.Model(inputs, classes(kl.GlobalAveragePooling2D()(x)))


def longer_exact_layer() -> keras.Model:
    """A map of another shape beside a deeper classifier."""
    image, vector = keras.Input((8, 8, 1), name="digit"), keras.Input((64,), name="vector")
    x = conv(conv(image, 24, 3, "coarse_1"), 48, 3, "coarse_2", strides=2)
    label = classes(kl.GlobalAveragePooling2D()(conv(x, 48, 3, "coarse_3")))
    return keras.Model([image, vector], [label, kl.Dense(16, name="exact")(vector)])


def digits_and_a_longer_map(rng: np.random.Generator) -> tuple:
    x, y = scaled_digits("train", IMAGES)
    matrix = np.random.default_rng(3).normal(size=(64, 16)) / 2
    v = rng.normal(size=(len(x), 64)).astype("float32")
    return [x, v], [y, (v @ matrix).astype("float32")]


def full_layer() -> keras.Model:
    """A map that needs all of its weights, though not many bits, beside a classifier."""
    image, vector = keras.Input((8, 8, 1), name="digit"), keras.Input((32,), name="vector")
    x = conv(conv(image, 24, 3, "coarse_1"), 32, 3, "coarse_2", strides=2)
    label = classes(kl.GlobalAveragePooling2D()(x))
    return keras.Model([image, vector], [label, kl.Dense(32, name="full")(vector)])


def digits_and_a_dense_map(rng: np.random.Generator) -> tuple:
    x, y = scaled_digits("train", IMAGES)
    matrix = np.random.default_rng(3).normal(size=(32, 32)) / 2
    v = rng.uniform(-1, 1, size=(len(x), 32)).astype("float32")
    return [x, v], [y, (v @ matrix).astype("float32")]


def exact_convolution() -> keras.Model:
    """A map per pixel beside a classifier."""
    image, pixels = keras.Input((8, 8, 1), name="digit"), keras.Input((4, 4, 32), name="pixels")
    x = conv(conv(image, 32, 3, "coarse_1"), 48, 3, "coarse_2", strides=2)
    label = classes(kl.GlobalAveragePooling2D()(x))
    return keras.Model([image, pixels], [label, kl.Conv2D(24, 1, name="exact")(pixels)])


def digits_and_a_map_per_pixel(rng: np.random.Generator) -> tuple:
    x, y = scaled_digits("train", IMAGES)
    matrix = np.random.default_rng(9).normal(size=(32, 24))
    v = rng.normal(size=(len(x), 4, 4, 32)).astype("float32")
    return [x, v], [y, (v @ matrix).astype("float32")]


def dense_bottleneck() -> keras.Model:
    """A dense layer of 64 outputs made from 2, beside another."""
    inputs = keras.Input((64,))
    wide = kl.Dense(64, name="wide")(kl.Dense(2, name="narrow")(inputs))
    ends = [kl.Dense(48, "relu", name="behind")(wide), kl.Dense(48, "relu", name="useful")(inputs)]
    return keras.Model(inputs, classes(kl.Concatenate()(ends)))


def flat_digits(rng: np.random.Generator) -> tuple:
    x, y = scaled_digits("train", IMAGES)
    return x.reshape(len(x), -1), y


def residual_block(x, name: str) -> keras.Model:
    """Of two convolutions, with what goes past them."""
    inputs = keras.Input(x.shape[1:])
    h = conv(inputs, 24, 3, f"{name}_1")
    h = kl.Conv2D(x.shape[-1], 3, padding="same", use_bias=False, name=f"{name}_2")(h)
    h = kl.BatchNormalization(momentum=0.9)(h)
    return keras.Model(inputs, kl.ReLU()(kl.Add()([inputs, h])))


def optional_residual(outputs: int) -> keras.Model:
    inputs = keras.Input((8, 8, 1))
    x = conv(inputs, 16, 1, "before")
    x = udc_tf.Choice([residual_block(x, "block"), kl.Identity()], name="block")(x)
    x = conv(conv(x, 48, 1, "after_1"), 48, 1, "after_2")
    return keras.Model(inputs, classes(kl.GlobalAveragePooling2D()(x), outputs))


def two_optional_blocks() -> keras.Model:
    """One class is in how pixels go with their neighbours, one in each pixel."""
    inputs = [keras.Input((8, 8, 1), name=n) for n in ("texture", "shade")]
    ends = []
    for x, name, outputs in zip(inputs, ("far", "near"), (2, 4), strict=True):
        x = conv(x, 16, 1, f"{name}_before")
        block_input = keras.Input(x.shape[1:])
        block = conv(conv(block_input, 24, 3, f"{name}_1"), 16, 3, f"{name}_2")
        branches = [keras.Model(block_input, block), kl.Identity()]
        x = conv(udc_tf.Choice(branches, name=name)(x), 48, 1, f"{name}_after")
        x = kl.GlobalAveragePooling2D()(x)
        ends.append(kl.Dense(outputs, activation="softmax", name=f"{name}_classes")(x))
    return keras.Model(inputs, ends)


def neighbours_and_shades(rng: np.random.Generator) -> tuple:
    (x_far, y_far), (x_near, y_near) = textures(rng, 1), shades(rng)
    return [x_far, x_near], [y_far, y_near]


def three_ways(outputs: int) -> keras.Model:
    """A block that sees neighbours, one that does not, or neither."""
    inputs = keras.Input((8, 8, 1))
    x = conv(inputs, 16, 1, "before")
    first, second = keras.Input(x.shape[1:]), keras.Input(x.shape[1:])
    block = keras.Model(first, conv(conv(first, 24, 3, "block_1"), 16, 3, "block_2"))
    point = keras.Model(second, conv(second, 16, 1, "point"))
    x = udc_tf.Choice([block, point, kl.Identity()], name="block")(x)
    x = conv(conv(x, 32, 1, "after_1"), 48, 1, "after_2")
    return keras.Model(inputs, classes(kl.GlobalAveragePooling2D()(x), outputs))


def two_kernels(largest: int) -> keras.Model:
    inputs, ends = [keras.Input((8, 8, 1), name=n) for n in ("texture", "shade")], []
    for x, name, outputs in zip(inputs, ("far", "near"), (2, 4), strict=True):
        x = kl.GlobalAveragePooling2D()(conv(conv(x, 48, largest, name), 16, 1, f"{name}_after"))
        ends.append(kl.Dense(outputs, activation="softmax", name=f"{name}_classes")(x))
    return keras.Model(inputs, ends)
