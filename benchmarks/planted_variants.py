"""Planted problems once more, with other networks, data and budgets than those of `planted`.

Nothing was chosen by them: they tell whether what holds there holds elsewhere.

    python -m benchmarks.planted_variants
"""

import functools
from collections.abc import Callable, Sequence

import keras
import numpy as np
from keras import layers as kl

import udc_tf
from benchmarks import harness
from benchmarks.data import scaled_digits
from benchmarks.planted import (
    IMAGES,
    Problem,
    branches,
    classes,
    conv,
    digits_and_noise,
    exactness,
    measured,
    shades,
    share,
    textures,
    towers,
)

_PARTS = ("signal", "noise")
_PAIR_OF_LOSSES = ["sparse_categorical_crossentropy"] * 2


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


def given_up(narrow: int) -> Callable[[udc_tf.Architecture], float]:
    def score(arch: udc_tf.Architecture) -> float:
        (wide,) = (layer for layer in arch.layers if layer.name == "wide")
        return 1 - max(0, wide.outputs - narrow) / (wide.original_outputs - narrow)

    return score


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


def sees_neighbours(arch: udc_tf.Architecture) -> float:
    return float(arch.choices["choice/block"] == 0)


def two_kernels(largest: int) -> keras.Model:
    inputs, ends = [keras.Input((8, 8, 1), name=n) for n in ("texture", "shade")], []
    for x, name, outputs in zip(inputs, ("far", "near"), (2, 4), strict=True):
        x = kl.GlobalAveragePooling2D()(conv(conv(x, 48, largest, name), 16, 1, f"{name}_after"))
        ends.append(kl.Dense(outputs, activation="softmax", name=f"{name}_classes")(x))
    return keras.Model(inputs, ends)


def kernels(sizes: Sequence[int], distance: int, budget: int, **space: Sequence) -> Problem:
    def data(rng: np.random.Generator) -> tuple:
        (x_far, y_far), (x_near, y_near) = textures(rng, distance), shades(rng)
        return [x_far, x_near], [y_far, y_near]

    def score(arch: udc_tf.Architecture) -> float:
        right = {"kernel/far": max(sizes), "kernel/near": min(sizes)}
        return float(np.mean([arch.choices[name] == size for name, size in right.items()]))

    return Problem(
        lambda: two_kernels(max(sizes)),
        data,
        budget,
        score,
        {"kernel/far": -1, "kernel/near": 0},
        loss=_PAIR_OF_LOSSES,
        space=udc_tf.SearchSpace(kernels=tuple(sizes), **space),
    )


def _signal(arch: udc_tf.Architecture) -> float:
    return share(arch, "signal", "noise")


def _of_noise(model: Callable[[], keras.Model], data: Callable, budget: int) -> Problem:
    return Problem(model, data, budget, _signal, {"/noise": 0})


def _of_width(budget: int, narrow: int, *shape) -> Problem:
    return Problem(
        lambda: bottleneck(narrow, *shape),
        lambda rng: scaled_digits("train", IMAGES),
        budget,
        given_up(narrow),
        {"width/wide": 0},
    )


PROBLEMS = {
    "dense towers": _of_noise(dense_towers, flat_digits_and_noise, 8_500),
    "separable towers": _of_noise(separable_towers, digits_and_noise, 13_000),
    "towers over time": _of_noise(towers_1d, waves_and_noise, 9_000),
    "a tower of other digits": _of_noise(towers, digits_and_others, 9_000),
    "towers, tighter": _of_noise(towers, digits_and_noise, 8_000),
    "towers, looser": _of_noise(towers, digits_and_noise, 14_000),
    "concatenated branch": _of_noise(concatenated_branch, digits_and_noise, 10_000),
    "branch of a blank image": _of_noise(
        branches, functools.partial(digits_and_one_image, is_blank=True), 9_000
    ),
    "branch of one image": _of_noise(
        branches, functools.partial(digits_and_one_image, is_blank=False), 9_000
    ),
    "96 channels from 3": _of_width(9_500, 3, 96, False, True),
    "64 channels from 2, ReLU": _of_width(8_500, 2, 64, True, True),
    "64 channels from 2, alone": _of_width(8_000, 2, 64, False, False),
    "longer exact layer": Problem(
        longer_exact_layer,
        digits_and_a_longer_map,
        9_500,
        exactness,
        {"/exact": -1},
        loss=["sparse_categorical_crossentropy", "mse"],
    ),
    "needed block of three": Problem(
        lambda: three_ways(2),
        lambda rng: textures(rng, 1),
        8_500,
        sees_neighbours,
        {"choice/block": 0},
    ),
    "idle block of three": Problem(
        lambda: three_ways(4),
        shades,
        8_500,
        lambda arch: 1 - sees_neighbours(arch),
        {"choice/block": 2},
    ),
    "kernel sizes 1, 5": kernels((1, 5), 4, 15_400),
    "kernel sizes 1, 3": kernels((1, 3), 2, 14_300),
    "kernel sizes 3, 5": kernels((3, 5), 4, 15_950),
    # Of which 14,209 bytes would hold a larger kernel than is needed, too.
    "kernel sizes, half the weights": kernels((1, 3, 5), 4, 14_000, sparsities=(0.5,)),
}


if __name__ == "__main__":
    harness.main(functools.partial(measured, problems=PROBLEMS), "planted_variants")
