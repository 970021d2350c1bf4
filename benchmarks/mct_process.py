"""Mixed precision by Sony's Model Compression Toolkit, in its own environment (Keras 2).

`benchmarks/compress_mct.py` runs this file there: python mct_process.py FOLDER SHARE.
"""

import json
import pathlib
import sys
import time

import keras
import numpy as np


def quantize(folder: pathlib.Path, share: float) -> None:
    """In MCT's environment: quantizes, and leaves weights, bits and seconds in the folder."""
    with np.load(folder / "network.npz") as file:
        values = dict(file)
    images = values.pop("images")
    layers, number = keras.layers, iter(range(10))

    def conv(x, filters, size=3, strides=1, relu=False):
        name = f"conv_{next(number)}"
        x = layers.Conv2D(filters, size, strides=strides, padding="same", name=name)(x)
        return layers.ReLU()(x) if relu else x

    inputs = keras.Input((32, 32, 3))
    x = conv(inputs, 16, relu=True)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        y = conv(conv(x, filters, strides=strides, relu=True), filters)
        short = x if strides == 1 else conv(x, filters, 1, strides)
        x = layers.ReLU()(layers.Add()([short, y]))
    x = layers.Dense(10, activation="softmax", name="head_9")(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, x)
    for layer in model.layers:
        if layer.weights:
            layer.set_weights([values[f"{layer.name}/{i}"] for i in range(2)])
    size = sum(int(np.prod(layer.kernel.shape)) for layer in model.layers if layer.weights)

    def examples():
        for start in range(0, len(images), 32):
            yield [images[start : start + 32]]

    import model_compression_toolkit as mct  # of that environment

    config = mct.core.CoreConfig(
        mixed_precision_config=mct.core.MixedPrecisionQuantizationConfig(num_of_images=64)
    )
    begun = time.process_time()
    found, _ = mct.ptq.keras_post_training_quantization(
        model,
        examples,
        target_resource_utilization=mct.core.ResourceUtilization(weights_memory=share * size),
        core_config=config,
    )
    seconds = time.process_time() - begun
    weights, bits = {}, {}
    for layer in found.layers:
        if hasattr(layer, "get_quantized_weights") and layer.get_quantized_weights():
            name = layer.layer.name
            how = layer.weights_quantizers["kernel"].get_config()
            weights[f"{name}/0"] = np.asarray(layer.get_quantized_weights()["kernel"])
            weights[f"{name}/1"] = np.asarray(layer.layer.bias)
            weights[f"{name}/steps"] = np.asarray(how["threshold"]) / 2 ** (how["num_bits"] - 1)
            bits[name] = how["num_bits"]
    np.savez(folder / "quantized.npz", **weights)
    facts = {"cpu_seconds": round(seconds, 1), "bits": bits}
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    quantize(pathlib.Path(sys.argv[1]), float(sys.argv[2]))
