"""Planted problems once more, with other networks, data and budgets than those of `planted`.

They tell whether what holds there holds elsewhere. Five of them failed once and led to the present
rules, so they are no independent test: a longer exact layer, a full layer, two towers of noise, an
idle residual block and two blocks of which one is needed.

    python -m benchmarks.planted_variants
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import keras
import numpy as np

import udc_tf
from benchmarks import harness
from benchmarks import planted_networks as networks
from benchmarks.data import scaled_digits
from benchmarks.planted import (
    IMAGES,
    Problem,
    branches,
    digits_and_noise,
    exactness,
    measured,
    shades,
    share,
    textures,
    towers,
)

_PAIR_OF_LOSSES = ["sparse_categorical_crossentropy"] * 2


def given_up(narrow: int) -> Callable[[udc_tf.Architecture], float]:
    def score(arch: udc_tf.Architecture) -> float:
        (wide,) = (layer for layer in arch.layers if layer.name == "wide")
        return 1 - max(0, wide.outputs - narrow) / (wide.original_outputs - narrow)

    return score


def fullness(arch: udc_tf.Architecture) -> float:
    """Of the layer that needs all its weights, how many it has."""
    return float(next(layer.nonzeros for layer in arch.layers if layer.name == "full"))


def far_alone(arch: udc_tf.Architecture) -> float:
    return float(np.mean([arch.choices["choice/far"] == 0, arch.choices["choice/near"] == 1]))


def sees_neighbours(arch: udc_tf.Architecture) -> float:
    return float(arch.choices["choice/block"] == 0)


def kernels(sizes: Sequence[int], distance: int, budget: int, **space: Sequence) -> Problem:
    def data(rng: np.random.Generator) -> tuple:
        (x_far, y_far), (x_near, y_near) = textures(rng, distance), shades(rng)
        return [x_far, x_near], [y_far, y_near]

    def score(arch: udc_tf.Architecture) -> float:
        right = {"kernel/far": max(sizes), "kernel/near": min(sizes)}
        return float(np.mean([arch.choices[name] == size for name, size in right.items()]))

    return Problem(
        lambda: networks.two_kernels(max(sizes)),
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
        lambda: networks.bottleneck(narrow, *shape),
        lambda rng: scaled_digits("train", IMAGES),
        budget,
        given_up(narrow),
        {"width/wide": 0},
    )


PROBLEMS = {
    "dense towers": _of_noise(networks.dense_towers, networks.flat_digits_and_noise, 8_500),
    "separable towers": _of_noise(networks.separable_towers, digits_and_noise, 13_000),
    "towers over time": _of_noise(networks.towers_1d, networks.waves_and_noise, 9_000),
    "a tower of other digits": _of_noise(towers, networks.digits_and_others, 9_000),
    "towers, tighter": _of_noise(towers, digits_and_noise, 8_000),
    "towers, looser": _of_noise(towers, digits_and_noise, 14_000),
    "concatenated branch": _of_noise(networks.concatenated_branch, digits_and_noise, 10_000),
    "branch of a blank image": _of_noise(
        branches, functools.partial(networks.digits_and_one_image, is_blank=True), 9_000
    ),
    "branch of one image": _of_noise(
        branches, functools.partial(networks.digits_and_one_image, is_blank=False), 9_000
    ),
    "96 channels from 3": _of_width(9_500, 3, 96, False, True),
    "64 channels from 2, ReLU": _of_width(8_500, 2, 64, True, True),
    "64 channels from 2, alone": _of_width(8_000, 2, 64, False, False),
    "longer exact layer": Problem(
        networks.longer_exact_layer,
        networks.digits_and_a_longer_map,
        9_500,
        exactness,
        {"/exact": -1},
        loss=["sparse_categorical_crossentropy", "mse"],
    ),
    "full layer": Problem(
        networks.full_layer,
        networks.digits_and_a_dense_map,
        8_000,
        fullness,
        {"sparsity/full": -1},
        loss=["sparse_categorical_crossentropy", "mse"],
    ),
    "needed block of three": Problem(
        lambda: networks.three_ways(2),
        lambda rng: textures(rng, 1),
        8_500,
        sees_neighbours,
        {"choice/block": 0},
    ),
    "idle block of three": Problem(
        lambda: networks.three_ways(4),
        shades,
        8_500,
        lambda arch: 1 - sees_neighbours(arch),
        {"choice/block": 2},
    ),
    "kernel sizes 1, 5": kernels((1, 5), 4, 15_400),
    "kernel sizes 1, 3": kernels((1, 3), 2, 14_300),
    "kernel sizes 3, 5": kernels((3, 5), 4, 15_950),
    "two towers of noise": _of_noise(
        lambda: networks.unequal_towers(
            {"signal": (24, 32), "noise_a": (24, 32), "noise_b": (24, 32)}
        ),
        networks.digits_and_noises,
        9_000,
    ),
    "a wider tower of noise": _of_noise(
        lambda: networks.unequal_towers({"signal": (24, 32), "noise": (48, 64)}),
        digits_and_noise,
        9_000,
    ),
    "deeper towers": _of_noise(
        lambda: networks.unequal_towers({"signal": (16, 24, 32, 32), "noise": (16, 24, 32, 32)}),
        digits_and_noise,
        12_000,
    ),
    "regression towers": dataclasses.replace(
        _of_noise(networks.regression_towers, networks.vectors_and_noise, 7_500), loss="mse"
    ),
    "64 outputs from 2, dense": Problem(
        networks.dense_bottleneck, networks.flat_digits, 8_000, given_up(2), {"width/wide": 0}
    ),
    "exact convolution": Problem(
        networks.exact_convolution,
        networks.digits_and_a_map_per_pixel,
        8_200,
        exactness,
        {"/exact": -1},
        loss=["sparse_categorical_crossentropy", "mse"],
    ),
    "needed residual block": Problem(
        lambda: networks.optional_residual(2),
        lambda rng: textures(rng, 1),
        8_500,
        sees_neighbours,
        {"choice/block": 0},
    ),
    "idle residual block": Problem(
        lambda: networks.optional_residual(4),
        shades,
        8_500,
        lambda arch: 1 - sees_neighbours(arch),
        {"choice/block": 1},
    ),
    "two blocks, one needed": Problem(
        networks.two_optional_blocks,
        networks.neighbours_and_shades,
        13_000,
        far_alone,
        {"choice/far": 0, "choice/near": 1},
        loss=_PAIR_OF_LOSSES,
    ),
    # Of which 14,209 bytes would hold a larger kernel than is needed, too.
    "kernel sizes, half the weights": kernels((1, 3, 5), 4, 14_000, sparsities=(0.5,)),
}


if __name__ == "__main__":
    harness.main(functools.partial(measured, problems=PROBLEMS), "planted_variants")
