"""Are widths in whole bricks of 16 channels worth anything where working memory is what binds?

    python -m benchmarks.brick_widths

A network of three convolutions of 48 channels on Fashion-MNIST at 14x14 (6,000 images), of which
only the widths are searched, by tenths, under budgets of SRAM that one or two bricks of the first
convolution fit into. Beside the search as it is, whose options snap to bricks, the same with the
tenths themselves (snap=1): 5, 10, 14, 19, 24, 29 ... channels. Equal budgets, equal training: three
epochs of search and six of finetuning; six seeds, nine where six left open which is ahead.
Accuracy is that of the finetuned network, whose arithmetic is the int8 file's, on the whole test
set; nothing was chosen by it. Beside it how far bricks are ahead over equal seeds.
"""

import functools
import itertools
import tempfile
from collections.abc import Mapping

import keras
import numpy as np
from absl import logging
from keras import layers as kl

import udc_tf
import udc_tf.export
from benchmarks import harness
from benchmarks.data import fashion_mnist_14
from benchmarks.harness import Row, Rows, mean_and_deviation, table

TENTHS = tuple(n / 10 for n in range(1, 11))
SPACES = {
    "bricks": udc_tf.SearchSpace(widths=TENTHS, bits=(8,), sparsities=(1.0,)),
    "tenths": udc_tf.SearchSpace(widths=TENTHS, bits=(8,), sparsities=(1.0,), snap=1),
}
SEEDS = {"6KiB": 6, "10KiB": 9}  # by budget: how many
IMAGES = 6000


def network() -> keras.Model:
    x = inputs = keras.Input((14, 14, 1))
    for number, strides in enumerate((1, 2, 1)):
        x = kl.Conv2D(48, 3, strides, padding="same", use_bias=False, name=f"conv{number}")(x)
        x = kl.ReLU()(kl.BatchNormalization()(x))
    x = kl.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, kl.Dense(10, name="head")(x), name="three_convolutions")


def measure(widths: str, budget: str, seed: int) -> Row:
    keras.utils.set_random_seed(seed)
    (x, y), (test_x, test_y) = fashion_mnist_14(IMAGES)
    model, space = network(), SPACES[widths]
    targets = [udc_tf.Flash("256KiB"), udc_tf.Sram(budget)]
    targets = udc_tf.export.fit_size_model(model, space, targets, configurations=4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    search = udc_tf.make_searchable(model, space, targets, udc_tf.SearchSettings(seed=seed))
    search.compile(loss=loss)
    search.fit(x, y, batch_size=64, epochs=3, verbose=0)
    tiny = search.architecture(statistics=x[:512]).build()
    stages = udc_tf.Stages(epochs=(2, 2, 2))
    udc_tf.finetune(tiny, (x, y), stages=stages, loss=loss, batch_size=64, seed=seed, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        result = udc_tf.export.export(tiny, folder, target=targets, calibration=x[:256])
    told = tiny.predict(test_x, batch_size=500, verbose=0).argmax(-1)
    return {
        "accuracy": round(float(np.mean(told == test_y)), 4),
        "channels": [tiny.get_layer(f"conv{n}").output.shape[-1] for n in range(3)],
        "sram": result.sram_bytes,
        "budget": targets[1].budget,
    }


def report(rows: Mapping[str, Row]) -> str:
    head = ("SRAM", "widths", "accuracy, %", "channels", "SRAM needed", "bricks ahead, points")
    lines: list[tuple[object, ...]] = []
    for budget in SEEDS:
        for widths in SPACES:
            if found := [
                row for key, row in rows.items() if key.startswith(f"{budget}, {widths},")
            ]:
                accuracy = mean_and_deviation([row["accuracy"] for row in found], 100)
                channels = "; ".join(", ".join(map(str, row["channels"])) for row in found)
                ahead = _ahead(rows, budget) if widths == "bricks" else ""
                most = max(row["sram"] for row in found)
                lines.append((budget, widths, accuracy, channels, most, ahead))
    return table(head, lines)


def _ahead(rows: Mapping[str, Row], budget: str) -> str:
    """Mean and standard error of what bricks have more than tenths, over equal seeds."""
    keys = [[f"{budget}, {widths}, seed {n}" for widths in SPACES] for n in range(SEEDS[budget])]
    pairs = [[rows[key]["accuracy"] for key in pair] for pair in keys if set(pair) <= set(rows)]
    points = 100 * np.subtract(*np.transpose(pairs))
    return f"{points.mean():.2f}, standard error {points.std(ddof=1) / len(points) ** 0.5:.2f}"


def run(rows: Rows) -> str:
    logging.set_verbosity(logging.ERROR)
    for budget, count in SEEDS.items():
        for seed, widths in itertools.product(range(count), SPACES):
            case = functools.partial(measure, widths, budget, seed)
            rows.once(f"{budget}, {widths}, seed {seed}", case)
    return report(rows.read())


if __name__ == "__main__":
    harness.main(run, "brick_widths")
