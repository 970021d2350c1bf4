"""Every layer and every activation of Keras, one network each: what becomes of it.

    python -m benchmarks.layers

A network with that layer behind a convolution (augmentations: between two, since some of them have
no gradient) is made searchable, which refuses it in a sentence or does not; then it is finetuned in
all three stages, a few steps each, and exported. A row has the sentence, or the correlation of
TFLM's outputs with the finetuned Keras network's (the worst of them), whether the NPU is equal to
TFLM bit for bit, and the int8 operators.
"""

from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf
from keras import layers as kl

import udc_tf
from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from tests.support import npu_networks as nets
from tests.support.every_layer import ACTIVATIONS, AUGMENTATIONS, LAYERS, network_of
from udc_tf.export import agreement, tflm_check
from udc_tf.export.int8 import to_int8
from udc_tf.export.npu import NpuNetwork

ROOMY = udc_tf.Flash("64MiB")
SAMPLES = 32


def with_layer(name: str) -> keras.Model:
    model = network_of(name)
    if name not in AUGMENTATIONS:
        return model
    return keras.Model(model.inputs, [kl.Conv2D(2, 1)(output) for output in model.outputs])


def with_activation(name: str) -> keras.Model:
    image = keras.Input((8, 8, 4), name="image")
    stem = kl.Conv2D(4, 1, name="stem")(image)
    return keras.Model(image, kl.Conv2D(4, 3, activation=name, name="tested")(stem))


def measure(model: keras.Model) -> Row:
    try:
        udc_tf.make_searchable(model, "ethos_u55", ROOMY)
    except ValueError as error:
        return {"refused": str(error).partition(": ")[2]}
    data = np.random.default_rng(0).normal(size=(SAMPLES, 8, 8, 4)).astype("float32")
    tiny = finetuned(model, data)
    exact = to_int8(tiny, data)
    agreement.check(tiny, exact, [data])
    codes = exact.quantize_inputs([data])
    golden = tflm_check.run(exact.content, codes)
    npu = NpuNetwork(nets.compile_in_process(exact.content)).run(codes)
    expected = keras.tree.flatten(tiny(data, training=False))
    outputs = zip(exact.network.outputs, golden, strict=True)
    ours = [exact.quantizations[i].dequantize(codes) for i, codes in outputs]
    correlations = [
        np.corrcoef(np.ravel(a), np.ravel(b))[0, 1] for a, b in zip(ours, expected, strict=True)
    ]
    return {
        "correlation": round(float(min(correlations)), 5),
        "equal": all((a.reshape(b.shape) == b).all() for a, b in zip(npu, golden, strict=True)),
        "operators": [step.kind for step in exact.network.steps],
    }


def finetuned(model: keras.Model, data: np.ndarray) -> keras.Model:
    tiny = udc_tf.compact(model)
    aims = [output.numpy() for output in keras.tree.flatten(model(data, training=False))]
    udc_tf.finetune(
        tiny,
        (data, aims),
        stages=udc_tf.Stages(epochs=3),
        loss=["mse"] * len(aims),
        loss_weights=[1e-3] * len(aims),
        batch_size=SAMPLES // 2,
        verbose=0,
        accelerator=None,
    )
    return tiny


def report(rows: Mapping[str, Row]) -> str:
    accepted = {name: row for name, row in rows.items() if "refused" not in row}
    lines = [
        ("right", len(accepted)),
        ("of them equal on the NPU", sum(row["equal"] for row in accepted.values())),
        ("lowest correlation", min((r["correlation"] for r in accepted.values()), default=None)),
        ("refused", len(rows) - len(accepted)),
    ]
    return table(("layers and activations", ""), lines)


def run(rows: Rows) -> str:
    tf.config.run_functions_eagerly(True)  # tracing takes longer than these few steps
    for name in LAYERS:
        rows.once(f"layer {name}", lambda name=name: _seeded(lambda: with_layer(name)))
    for name in ACTIVATIONS:
        rows.once(f"activation {name}", lambda name=name: _seeded(lambda: with_activation(name)))
    return report(rows.read())


def _seeded(make: Callable[[], keras.Model]) -> Row:
    keras.utils.set_random_seed(0)
    return measure(make())


if __name__ == "__main__":
    harness.main(run, "layers")
