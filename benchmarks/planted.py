"""Does the search put bytes where the data say? Networks whose right answer is known beforehand.

Each problem plants something that no look at the weights can tell: a part of the network that sees
only noise, a layer that must be exact, a block that is needed or idle. `score` is the share of the
bytes, or of the decisions, that end where they belong. Beside the defaults: decisions held at the
first guess, the paper's algorithm, and what an oracle would do within the same budget.

    python -m benchmarks.planted
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping

import keras
import numpy as np
from keras import layers as kl

import udc_tf
from benchmarks import harness
from benchmarks.data import scaled_digits
from benchmarks.harness import Row, Rows, Stopwatch
from udc_tf.cost.counts import binary_entropy
from udc_tf.search.decisions import log_probabilities, most_likely
from udc_tf.search.extract import describe, repaired_choice
from udc_tf.search.repair import preferences

SEEDS = (0, 1, 2)
EPOCHS, BATCH, IMAGES = 20, 32, 1_200
SPACE = udc_tf.SearchSpace.preset("ethos_u55")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A network, data and what is known of the answer.

    Attributes:
        model: makes the network.
        data: from a generator, inputs and labels.
        budget: bytes of flash.
        score: the share of an architecture that is as it should be.
        right: by parts of the names of decisions, the number of the option that is right.
        loss: as for `compile`.
    """

    model: Callable[[], keras.Model]
    data: Callable[[np.random.Generator], tuple]
    budget: int
    score: Callable[[udc_tf.Architecture], float]
    right: Mapping[str, int]
    loss: object = "sparse_categorical_crossentropy"
    space: udc_tf.SearchSpace = SPACE


def conv(x, filters: int, size: int, name: str, strides: int = 1):
    """Convolution, batch norm, ReLU."""
    x = kl.Conv2D(filters, size, strides, "same", use_bias=False, name=name)(x)
    return kl.ReLU()(kl.BatchNormalization(momentum=0.9)(x))


def classes(x, count: int = 10):
    return kl.Dense(count, activation="softmax", name="classes")(x)


def bytes_of(arch: udc_tf.Architecture, part: str) -> float:
    """Of the weights of all layers with this in their name, without what an operator costs."""
    return sum(
        layer.weights * (layer.nonzeros * layer.bits + binary_entropy(layer.nonzeros)) / 8
        for layer in arch.layers
        if part in layer.name
    )


def share(arch: udc_tf.Architecture, good: str, bad: str) -> float:
    return bytes_of(arch, good) / (bytes_of(arch, good) + bytes_of(arch, bad))


def digits_and_noise(rng: np.random.Generator) -> tuple:
    x, y = scaled_digits("train", IMAGES)
    return [x, rng.normal(size=x.shape).astype("float32")], y


def towers() -> keras.Model:
    """Two towers of one shape; one sees the digits, one noise."""
    inputs = [keras.Input((8, 8, 1), name=n) for n in ("digit", "noise")]
    ends = []
    for x, name in zip(inputs, ("signal", "noise"), strict=True):
        x = conv(conv(x, 32, 3, f"{name}_1"), 48, 3, f"{name}_2", strides=2)
        ends.append(kl.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, classes(kl.Concatenate()(ends)))


def branches() -> keras.Model:
    """A trunk with two residual branches, one of which is made from noise."""
    inputs = [keras.Input((8, 8, 1), name=n) for n in ("digit", "noise")]
    trunk = conv(inputs[0], 24, 3, "stem")
    noise = conv(inputs[1], 24, 3, "noise_stem")

    def branch(x, name):
        x = conv(x, 32, 3, f"{name}_1")
        x = kl.Conv2D(24, 3, padding="same", use_bias=False, name=f"{name}_2")(x)
        return kl.BatchNormalization(momentum=0.9)(x)

    x = kl.ReLU()(kl.Add()([trunk, branch(trunk, "signal"), branch(noise, "noise")]))
    return keras.Model(inputs, classes(kl.GlobalAveragePooling2D()(x)))


def bottleneck() -> keras.Model:
    """A linear layer of 64 channels made from 2: two carry all that there is."""
    x = inputs = keras.Input((8, 8, 1))
    useful = conv(conv(x, 24, 3, "useful_1"), 32, 3, "useful_2", strides=2)
    x = kl.Conv2D(2, 3, padding="same", name="narrow")(x)
    x = kl.Conv2D(64, 1, use_bias=False, name="wide")(x)
    x = conv(x, 32, 3, "behind", strides=2)
    x = kl.GlobalAveragePooling2D()(kl.Concatenate()([useful, x]))
    return keras.Model(inputs, classes(x))


def given_up(arch: udc_tf.Architecture) -> float:
    """Of the channels that the wide layer has for nothing, how many are gone."""
    (wide,) = (layer for layer in arch.layers if layer.name == "wide")
    return 1 - (wide.outputs - 2) / (wide.original_outputs - 2)


def exact_layer() -> keras.Model:
    """A linear map that must be exact, beside a classifier that need not.

    Rounding to 4 bits costs the map 0.7 of squared error, to 8 bits 0.002.
    """
    image, vector = keras.Input((8, 8, 1), name="digit"), keras.Input((48,), name="vector")
    x = conv(conv(image, 32, 3, "coarse_1"), 48, 3, "coarse_2", strides=2)
    label = classes(kl.GlobalAveragePooling2D()(x))
    return keras.Model([image, vector], [label, kl.Dense(24, name="exact")(vector)])


def digits_and_a_map(rng: np.random.Generator) -> tuple:
    x, y = scaled_digits("train", IMAGES)
    matrix = np.random.default_rng(7).normal(size=(48, 24))
    v = rng.normal(size=(len(x), 48)).astype("float32")
    return [x, v], [y, (v @ matrix).astype("float32")]


def exactness(arch: udc_tf.Architecture) -> float:
    """Of the exact layer: 8 bits and all weights are 1, each bit and each tenth less is less."""
    (exact,) = (layer for layer in arch.layers if layer.name == "exact")
    return exact.bits / 8 * exact.nonzeros


def textures(rng: np.random.Generator, distance: int) -> tuple:
    """Two classes by how pixels go with those `distance` away; no pixel alone tells."""
    y = rng.integers(0, 2, IMAGES)
    x = rng.choice([-1.0, 1.0], size=(IMAGES, 8, 8, 1))
    x[:, :, distance:] = np.where(
        rng.random((IMAGES, 8, 8 - distance, 1)) < 0.85, np.nan, x[:, :, distance:]
    )
    for column in range(distance, 8):
        like = x[:, :, column - distance] * np.where(y, 1, -1)[:, None, None]
        x[:, :, column] = np.where(np.isnan(x[:, :, column]), like, x[:, :, column])
    return x.astype("float32"), y


def shades(rng: np.random.Generator) -> tuple:
    """Four classes by how bright pixels are on average; where they are tells nothing."""
    y = rng.integers(0, 4, IMAGES)
    x = rng.normal(size=(IMAGES, 8, 8, 1)) * 0.7 + y[:, None, None, None] * 0.5
    return x.astype("float32"), y


def optional_block(outputs: int) -> keras.Model:
    """A block between layers of single pixels, which may be left out."""
    x = inputs = keras.Input((8, 8, 1))
    x = conv(x, 16, 1, "before")
    block_input = keras.Input(x.shape[1:])
    block = keras.Model(block_input, conv(conv(block_input, 32, 3, "block_1"), 16, 3, "block_2"))
    x = udc_tf.Choice([block, kl.Identity()], name="block")(x)
    x = conv(x, 48, 1, "after_1")
    x = conv(x, 64, 1, "after_2")
    return keras.Model(inputs, classes(kl.GlobalAveragePooling2D()(x), outputs))


def has_block(arch: udc_tf.Architecture) -> float:
    return float(arch.choices["choice/block"] == 0)


def two_kernels() -> keras.Model:
    """One layer whose class is in pixels four apart, one whose class is in each pixel."""
    inputs = [keras.Input((8, 8, 1), name=n) for n in ("texture", "shade")]
    ends = []
    for x, name, outputs in zip(inputs, ("far", "near"), (2, 4), strict=True):
        x = conv(conv(x, 64, 5, name), 16, 1, f"{name}_after")
        x = kl.GlobalAveragePooling2D()(x)
        ends.append(kl.Dense(outputs, activation="softmax", name=f"{name}_classes")(x))
    return keras.Model(inputs, ends)


def textures_and_shades(rng: np.random.Generator) -> tuple:
    (x_far, y_far), (x_near, y_near) = textures(rng, 4), shades(rng)
    return [x_far, x_near], [y_far, y_near]


def right_kernels(arch: udc_tf.Architecture) -> float:
    right = {"kernel/far": 5, "kernel/near": 1}
    return float(np.mean([arch.choices[name] == size for name, size in right.items()]))


# Pruned weights would do as well as a smaller kernel, so here there are none.
_KERNELS = udc_tf.SearchSpace(kernels=(1, 3, 5))
PROBLEMS = {
    "noise tower": Problem(
        towers, digits_and_noise, 9_000, lambda a: share(a, "signal", "noise"), {"/noise": 0}
    ),
    "noise branch": Problem(
        branches, digits_and_noise, 9_000, lambda a: share(a, "signal", "noise"), {"/noise": 0}
    ),
    "over-wide layer": Problem(
        bottleneck, lambda rng: scaled_digits("train", IMAGES), 8_500, given_up, {"width/wide": 0}
    ),
    "exact layer": Problem(
        exact_layer,
        digits_and_a_map,
        8_200,
        exactness,
        {"/exact": -1},
        loss=["sparse_categorical_crossentropy", "mse"],
    ),
    "needed block": Problem(
        lambda: optional_block(2),
        lambda rng: textures(rng, 1),
        8_500,
        has_block,
        {"choice/block": 0},
    ),
    "idle block": Problem(
        lambda: optional_block(4), shades, 8_500, lambda a: 1 - has_block(a), {"choice/block": 1}
    ),
    "kernel sizes": Problem(
        two_kernels,
        textures_and_shades,
        16_600,
        right_kernels,
        {"kernel/far": -1, "kernel/near": 0},
        loss=["sparse_categorical_crossentropy"] * 2,
        space=_KERNELS,
    ),
}


METHODS = {
    "default": udc_tf.SearchSettings(),
    # As in the paper, with samples and a rate for runs as short as these.
    "paper": udc_tf.SearchSettings.paper(samples=4, full_batches=False, decision_rate=None),
}


def searched(problem: Problem, settings: udc_tf.SearchSettings, epochs: int = EPOCHS):
    """A search that has been run."""
    keras.utils.set_random_seed(settings.seed)
    x, y = problem.data(np.random.default_rng(settings.seed))
    target = udc_tf.Flash(problem.budget)
    search = udc_tf.make_searchable(problem.model(), problem.space, target, settings)
    search.compile(loss=problem.loss)
    search.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)
    return search


def oracle(problem: Problem) -> udc_tf.Architecture:
    """What is known to be right, and of all else what the first guess makes of the budget."""
    target = udc_tf.Flash(problem.budget)
    search = udc_tf.make_searchable(problem.model(), problem.space, target)
    search.set_out()
    scores = search.state.log_probabilities().numpy()
    for row, decision in enumerate(search.problem.plan.decisions):
        for part, option in problem.right.items():
            if part in decision.name:
                away = np.arange(len(decision.options)) - option % len(decision.options)
                scores[row, : len(away)] = -100.0 * np.abs(away)
    return describe(search, repaired_choice(search, scores))


def measure(problem: Problem, method: str, seed: int) -> Row:
    watch = Stopwatch()
    search = searched(problem, dataclasses.replace(METHODS[method], seed=seed))
    seconds = watch.read().cpu
    likely = search.state.log_probabilities()
    row = {
        "score": round(problem.score(search.architecture()), 4),
        "argmax / budget": round(float(search.cost_ratios(most_likely(likely)[None])[0]), 4),
        "cpu_seconds": seconds,
    }
    if search.settings.certainty:
        # Where decisions would be if nothing moved them after the guess.
        guess = log_probabilities(search.state.guess.value, search.state.valid).numpy()
        held = repaired_choice(search, preferences(guess, search.problem.plan))
        row["held"] = round(problem.score(describe(search, held)), 4)
        row["oracle"] = round(problem.score(oracle(problem)), 4)
    return row


def report(rows: Mapping[str, Row], problems: Mapping[str, Problem]) -> str:
    lines = []
    for name in problems:
        of = {m: [r for k, r in rows.items() if k.startswith(f"{name}/{m}/")] for m in METHODS}
        scores = [100 * r["score"] for r in of["default"]]
        if not scores:
            continue
        paper = [100 * r["score"] for r in of["paper"]]
        lines.append(
            [
                name,
                f"{np.mean(scores):.0f} ({', '.join(f'{s:.0f}' for s in scores)})",
                f"{np.mean([100 * r['held'] for r in of['default']]):.0f}",
                f"{np.mean(paper):.0f} ({len(paper)})" if paper else "-",
                f"{100 * of['default'][0]['oracle']:.0f}",
            ]
        )
    head = ("problem", "default: mean (seeds)", "held at the guess", "paper (seeds)", "oracle")
    return harness.table(head, lines)


def measured(rows: Rows, problems: Mapping[str, Problem]) -> str:
    """All of these problems with all methods and seeds; returns the report."""
    for method, seed, name in itertools.product(METHODS, SEEDS, problems):
        key = f"{name}/{method}/seed {seed}"
        rows.once(key, functools.partial(measure, problems[name], method, seed))
    return harness.write(rows.path.with_suffix(".md"), report(rows.read(), problems))


if __name__ == "__main__":
    harness.main(functools.partial(measured, problems=PROBLEMS), "planted")
