"""One integer tensor a layer, or two: f(x,Q) + beta*f(x,sign). Flash and accuracy of both.

    python benchmarks/two_tensors.py

A small network, 4 bits and 30% non-zeros in the shifted number format, finetuned on the embedded
digits with two seeds; then exported in both ways. Accuracy on the test part, in TFLM's arithmetic.
Writes two_tensors.json.
"""

import json
import pathlib
import tempfile

import keras
import numpy as np
from absl import app, flags, logging

import udc_tf
import udc_tf.export
from udc_tf import models
from udc_tf.compact.build import Compactor, Configuration, LayerChoice
from udc_tf.export import int8, tflm_check
from udc_tf.files import replaced_atomically
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.trace import trace
from udc_tf.models.data.digits import digits

_EPOCHS = flags.DEFINE_integer("epochs", 12, "Of finetuning.")
SEEDS = (0, 1)


def finetuned(seed: int, train) -> keras.Model:
    keras.utils.set_random_seed(seed)
    graph = trace(models.small_cnn((8, 8, 1), 10))
    layers = {n.name: LayerChoice(4, 0.3) for n in graph.nodes}
    tiny = Compactor(graph, ChannelGroups(graph), Configuration(layers=layers)).build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    stages = udc_tf.Stages(epochs=_EPOCHS.value)
    udc_tf.finetune(tiny, train, stages=stages, loss=loss, batch_size=32, seed=seed, verbose=0)
    return tiny


def case(tiny: keras.Model, deployment: str, calibration, test) -> dict:
    x, y = test
    with tempfile.TemporaryDirectory() as folder:
        result = udc_tf.export.export(
            tiny, folder, calibration=calibration, deployment=deployment, golden_samples=1
        )
        exact = int8.to_int8(tiny, calibration, deployment)
        (outputs,) = tflm_check.run(exact.content, exact.quantize_inputs([x]))
        return {
            "flash_bytes": result.flash_bytes,
            "sram_bytes": result.sram_bytes,
            "estimated_cycles": result.manifest["estimated_cycles"],
            "accuracy": round(float(np.mean(outputs.argmax(-1) == y)), 4),
        }


def main(_):
    logging.set_verbosity(logging.ERROR)
    data = digits()
    parts = {}
    for name in ("train", "test"):
        part = getattr(data, name)
        x = np.asarray(part.x, "float32")
        parts[name] = (x / max(1.0, x.max()), np.asarray(part.y))
    results = {}
    for seed in SEEDS:
        tiny = finetuned(seed, parts["train"])
        predicted = tiny.predict(parts["test"][0], verbose=0).argmax(-1)
        row = {"keras": {"accuracy": round(float(np.mean(predicted == parts["test"][1])), 4)}}
        for deployment in int8.DEPLOYMENTS:
            row[deployment] = case(tiny, deployment, parts["train"][0][:128], parts["test"])
        results[f"seed {seed}"] = row
        print(seed, row, flush=True)
    with replaced_atomically(pathlib.Path(__file__).with_suffix(".json")) as partial:
        partial.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    app.run(main)
